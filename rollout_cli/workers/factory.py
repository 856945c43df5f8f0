"""WorkerFactory, the picklable object that builds workers in their processes."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, TypeGuard

from rollout_cli.cores import usable_cores
from rollout_cli.errors import ArgumentError, UsageError, UserCodeError
from rollout_cli.seeding.seeds import draw_root_seed
from rollout_cli.sources.loading import Source, is_module_attribute, reporting
from rollout_cli.sources.pins import PinRules
from rollout_cli.workers.context import WorkerContext
from rollout_cli.workers.kinds import DefaultWorker, VecWorker
from rollout_cli.workers.values import EpisodeRules, NullCrashBox
from rollout_cli.workers.worker import OVERRIDABLE, VERBS, Worker

WorkerSetup = Callable[[], AbstractContextManager[Any]]

_SUBCLASS_HINT = "derive it from rollout_cli.DefaultWorker or rollout_cli.VecWorker"


def load_worker_class(spec: str) -> type[Worker]:
    """Import the worker class `package.module:Class` and return it.

    Raises:
        UserCodeError: If the class cannot be imported, or is not a subclass of Worker.
    """
    if not is_module_attribute(spec):
        raise UserCodeError(
            f"unknown worker class {spec!r}", code="worker-class", hint="name it as package.module:Class"
        )
    worker_class = Source.find(spec, UserCodeError).load(UserCodeError)
    if not _is_worker_class(worker_class):
        raise UserCodeError(f"{spec!r} is not a worker class", code="worker-class", hint=_SUBCLASS_HINT)
    return worker_class


def refuse_overrides(kind: type[Worker], worker_args: dict[str, Any]) -> None:
    """Raise UserCodeError if a worker class overrides a method that samplers would silently not call."""
    base: type[Worker] = VecWorker if issubclass(kind, VecWorker) else DefaultWorker
    called = ("worker_init", *kind.overridable(worker_args))
    uncalled = [name for name in (*VERBS, *OVERRIDABLE) if name not in called]
    if unused := [name for name in uncalled if getattr(kind, name) is not getattr(base, name)]:
        raise UserCodeError(
            f"{kind.__name__} overrides {' and '.join(unused)}, which samplers do not call",
            code="worker-class-overrides",
            hint=f"override only {', '.join(called)}, or use the worker from a script, without a sampler",
        )


def _is_worker_class(candidate: Any) -> TypeGuard[type[Worker]]:
    return isinstance(candidate, type) and issubclass(candidate, Worker)


class WorkerFactory:
    """Builds the workers of one sampler; picklable.

    Args:
        max_episode_length: Steps after which an episode is truncated; None or infinity for no limit.
        n_workers: Number of workers; by default the number of usable cores.
        seed: The root seed; None draws a random seed.
        worker_class: The class of the workers, a subclass of Worker.
        worker_args: Further keyword arguments of that class.
        is_tf_worker: Whether to open a TensorFlow session in each worker; uses a predefined `worker_setup`.
        worker_setup: Picklable function without arguments that returns a context manager. Each worker enters
            it before the policy is unpickled, and exits it at shutdown. It replaces the default, which limits
            torch to one thread.
        rules: Rules for episodes, such as the handling of invalid actions.
        pins: Files of the policy and environment to pin; None if workers do not search for files.
        drop_infos: Infos to leave out: dotted paths or globs, see `without_infos`.
        keep: Expression that selects episodes; others run but are not sent. None keeps all episodes.

    Attributes:
        numbers_at_once: Number of episodes that a worker runs at once.
        drop_infos: The argument `drop_infos`.
        keep: The argument `keep`.

    Raises:
        ArgumentError: If an argument is out of range, `worker_class` is not a worker class, or both
            `is_tf_worker` and `worker_setup` are given (also a ValueError).
        UserCodeError: If the class overrides a method that samplers do not call, or its `numbers_at_once`
            fails.

    Example:
        >>> import gymnasium
        >>> factory = rollout_cli.WorkerFactory(
        ...     worker_class=rollout_cli.VecWorker, worker_args={"n_envs": 2}, n_workers=1, seed=0
        ... )
        >>> with rollout_cli.LocalSampler(factory, "random", gymnasium.make("CartPole-v1")) as sampler:
        ...     print(sampler.obtain_samples(0, 50, agent_update=None).lengths.tolist())
        [37, 18]
    """

    def __init__(
        self,
        *,
        max_episode_length: float | None = None,
        n_workers: int | None = None,
        seed: int | None = None,
        worker_class: type[Worker] = DefaultWorker,
        worker_args: Mapping[str, Any] | None = None,
        is_tf_worker: bool = False,
        worker_setup: WorkerSetup | None = None,
        rules: EpisodeRules | None = None,
        pins: PinRules | None = None,
        drop_infos: Sequence[str] = (),
        keep: str | None = None,
    ) -> None:
        self.n_workers = usable_cores() if n_workers is None else n_workers
        self.seed = draw_root_seed() if seed is None else seed
        self.max_episode_length = max_episode_length
        self.worker_class = worker_class
        self.worker_args = dict(worker_args or {})
        self.worker_setup = tensorflow_session if is_tf_worker else worker_setup
        self.rules = rules or EpisodeRules()
        self.pins = pins
        self.drop_infos = tuple(drop_infos)
        self.keep = keep
        if not _is_worker_class(worker_class):
            raise ArgumentError(
                f"worker_class is {worker_class!r}, expected a subclass of Worker",
                code="factory-argument",
                hint=_SUBCLASS_HINT,
            )
        with reporting(UserCodeError, f"{worker_class.__name__}.numbers_at_once failed"):
            self.numbers_at_once = worker_class.numbers_at_once(self.worker_args)
        refuse_overrides(worker_class, self.worker_args)
        for name, minimum in (("n_workers", 1), ("seed", 0), ("max_episode_length", 1)):
            value = getattr(self, name)
            if value is not None and not value >= minimum:  # Also true for nan.
                raise ArgumentError(
                    f"{name} is {value}, expected at least {minimum}", code="factory-argument"
                )
        single = self.rules.tasks or self.rules.reset_options or self.rules.store_state
        if single and self.worker_args.get("vectorization") == "native":
            raise ArgumentError(
                "reset options, tasks and store_state cannot be used with vectorization='native'",
                code="factory-argument",
                hint="omit vectorization='native': reset options, tasks and states need single environments",
            )
        if is_tf_worker and worker_setup is not None:
            raise ArgumentError(
                "is_tf_worker=True cannot be used with worker_setup",
                code="factory-argument",
                hint="omit one of them: is_tf_worker=True sets worker_setup",
            )

    def prepare_worker_messages(
        self, objs: Any, preprocess: Callable[[Any], Any] = lambda obj: obj
    ) -> list[Any]:
        """Return one preprocessed object per worker; `objs` is a list of n_workers objects or one object.

        Raises:
            ArgumentError: If a list does not have n_workers entries (also a ValueError).
        """
        if isinstance(objs, list):
            if len(objs) != self.n_workers:
                raise ArgumentError(
                    f"the list has {len(objs)} entries, expected {self.n_workers}, one per worker",
                    code="list-length",
                    hint="pass a list with one policy or environment per worker, or one for all workers",
                )
            return [preprocess(obj) for obj in objs]
        return [preprocess(objs)] * self.n_workers

    def __call__(self, worker_number: int, crash_box: NullCrashBox | None = None) -> Worker:
        """Build worker `worker_number`.

        Raises:
            ArgumentError: If `worker_number` is not from 0 to n_workers - 1 (also a ValueError).
            UserCodeError: If the worker class raises.
        """
        if not 0 <= worker_number < self.n_workers:
            raise ArgumentError(
                f"worker_number is {worker_number}, expected 0 to {self.n_workers - 1}",
                code="factory-argument",
            )
        arguments: dict[str, Any] = {
            "seed": self.seed,
            "max_episode_length": self.max_episode_length,
            "worker_number": worker_number,
            **self.worker_args,
        }
        hint = f"accept the arguments {', '.join(arguments)}; the traceback below shows where"
        with reporting(
            UserCodeError, f"the worker class {self.worker_class.__name__} cannot be built", hint=hint
        ):
            context = WorkerContext(self.rules, crash_box or NullCrashBox())
            return self.worker_class.in_context(context, **arguments)

    @contextmanager
    def setup(self) -> Iterator[None]:
        """Enter the context manager of `worker_setup` around a worker's life; UserCodeError if it fails."""
        hint = (
            "pass a worker_setup without arguments that returns a context manager; "
            "the traceback below shows where"
        )
        with reporting(
            UserCodeError, "worker_setup or its context manager failed", code="worker-setup", hint=hint
        ):
            stack = ExitStack()
            stack.enter_context((self.worker_setup or nullcontext)())
        try:
            yield
        finally:
            # The context manager does not receive the worker's error: it could suppress it, and the sampler
            # would wait forever.
            with reporting(
                UserCodeError, "exiting the context manager of worker_setup failed", code="worker-setup"
            ):
                stack.close()

    def after_updates(self) -> None:
        """Limit torch to OMP_NUM_THREADS threads (default 1), if it is loaded and `worker_setup` is None."""
        torch: Any = sys.modules.get("torch")
        if self.worker_setup is None and hasattr(torch, "set_num_threads"):
            n_threads = os.environ.get("OMP_NUM_THREADS", "1")
            torch.set_num_threads(max(1, int(n_threads)) if n_threads.isdecimal() else 1)

    @contextmanager
    def borrowed_threads(self) -> Iterator[None]:
        """Limit torch's threads as `after_updates` does and restore them on exit, in the caller's process."""
        torch: Any = sys.modules.get("torch")
        n_threads = torch.get_num_threads() if hasattr(torch, "get_num_threads") else None
        self.after_updates()
        try:
            yield
        finally:
            if n_threads is not None:
                torch.set_num_threads(n_threads)


@contextmanager
def tensorflow_session() -> Iterator[None]:
    """Use a new graph and a new session as TensorFlow's defaults until the worker ends."""
    try:
        tensorflow: Any = importlib.import_module("tensorflow")
    except ModuleNotFoundError as error:
        raise UsageError(
            f"is_tf_worker=True needs TensorFlow, but {error.name} is not installed",
            code="package-missing",
            hint=f"pip install {error.name}",
        ) from error
    # TensorFlow 2 has the session API in compat.v1.
    tf = tensorflow.compat.v1 if hasattr(tensorflow, "compat") else tensorflow
    with tf.Graph().as_default(), tf.Session().as_default():
        yield
