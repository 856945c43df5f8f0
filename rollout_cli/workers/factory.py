"""WorkerFactory: all that is needed to build a worker, and all that crosses the process border for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rollout_cli.cores import usable_cores
from rollout_cli.errors import UsageError, UserCodeError
from rollout_cli.seeding import draw_root_seed
from rollout_cli.user_code import ModuleAttribute
from rollout_cli.workers.default_worker import DefaultWorker
from rollout_cli.workers.worker import Worker


def load_worker_class(spec: str) -> type[Worker]:
    """Return the worker class that `package.module:Class` names.

    Raises:
        UsageError: If it cannot be imported, or is no Worker.
    """
    try:
        found = ModuleAttribute.find(spec, UserCodeError).load(UserCodeError)
    except UserCodeError as error:
        raise UsageError(f"the worker class cannot be loaded: {error.message}", hint=error.hint) from error
    if not (isinstance(found, type) and issubclass(found, Worker)):
        raise UsageError(f"{spec!r} is no worker class", hint="a worker class derives from rollout_cli.Worker")
    return found


class WorkerFactory:
    """Builds the workers of one sampler; picklable.

    Args:
        max_episode_length: Steps after which an episode is truncated; None or infinity for no limit.
        n_workers: How many workers there will be; by default one a usable core.
        seed: The root seed; drawn where it is None.
        worker_class: The class of the workers.
        worker_args: Further keyword arguments of that class.

    Raises:
        ValueError: If `n_workers`, `seed` or `max_episode_length` is out of range.
    """

    def __init__(
        self,
        *,
        max_episode_length: float | None = None,
        n_workers: int | None = None,
        seed: int | None = None,
        worker_class: type[Worker] = DefaultWorker,
        worker_args: Mapping[str, Any] | None = None,
    ) -> None:
        self.n_workers = usable_cores() if n_workers is None else n_workers
        self.seed = draw_root_seed() if seed is None else seed
        self.max_episode_length = max_episode_length
        self.worker_class = worker_class
        self.worker_args = dict(worker_args or {})
        if self.n_workers < 1:
            raise ValueError(f"n_workers is {self.n_workers}, must be at least 1")
        if self.seed < 0:
            raise ValueError(f"seed is {self.seed}, must be at least 0")
        if max_episode_length is not None and max_episode_length < 1:
            raise ValueError(f"max_episode_length is {max_episode_length}, must be at least 1")

    def prepare_worker_messages(self, objs: Any, preprocess: Callable[[Any], Any] = lambda obj: obj) -> list[Any]:
        """Return one object a worker, each through `preprocess`: a list as it is, anything else for all.

        Raises:
            ValueError: If a list does not have exactly `n_workers` entries.
        """
        if isinstance(objs, list):
            if len(objs) != self.n_workers:
                raise ValueError(f"a list with one entry a worker has {self.n_workers} entries, not {len(objs)}")
            return [preprocess(obj) for obj in objs]
        return [preprocess(objs)] * self.n_workers

    def __call__(self, worker_number: int) -> Worker:
        """Build worker number `worker_number`.

        Raises:
            ValueError: If there is no such worker.
        """
        if not 0 <= worker_number < self.n_workers:
            raise ValueError(f"worker_number is {worker_number}, must be from 0 to {self.n_workers - 1}")
        return self.worker_class(
            seed=self.seed,
            max_episode_length=self.max_episode_length,
            worker_number=worker_number,
            **self.worker_args,
        )
