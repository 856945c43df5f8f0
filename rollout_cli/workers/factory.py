"""WorkerFactory: all that is needed to build a worker, and all that crosses the process border for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from rollout_cli.chunk import Chunk
from rollout_cli.cores import usable_cores
from rollout_cli.episode_batch import EnvSpec
from rollout_cli.errors import RolloutError, UsageError, UserCodeError
from rollout_cli.info_filter import InfoFilter
from rollout_cli.seeding import draw_root_seed
from rollout_cli.user_code import ModuleAttribute, failure
from rollout_cli.workers.default_worker import DefaultWorker
from rollout_cli.workers.rules import EpisodeRules
from rollout_cli.workers.sample_checks import SampleChecks
from rollout_cli.workers.setting_up import WorkerSetup, entering, one_torch_thread
from rollout_cli.workers.tf_setup import tensorflow_session
from rollout_cli.workers.verbs_adapter import VERBS, VerbsAdapter, has_verbs
from rollout_cli.workers.worker import NumberedWorker

WorkerClass = type[Any]
"""A Worker, or any class with its verbs."""


def load_worker_class(spec: str) -> WorkerClass:
    """Return the worker class that `package.module:Class` names.

    Raises:
        UsageError: If it cannot be imported, or lacks the verbs of a worker.
    """
    try:
        found = ModuleAttribute.find(spec, UserCodeError).load(UserCodeError)
    except UserCodeError as error:
        raise UsageError(f"the worker class cannot be loaded: {error.message}", hint=error.hint) from error
    if not has_verbs(found):
        hint = f"derive it from rollout_cli.DefaultWorker or rollout_cli.Worker, or give it {', '.join(VERBS)}"
        raise UsageError(f"{spec!r} is no worker class", hint=hint)
    worker_class: WorkerClass = found
    return worker_class


class WorkerFactory:
    """Builds the workers of one sampler; picklable.

    Args:
        max_episode_length: Steps after which an episode is truncated; None or infinity for no limit.
        n_workers: How many workers there will be; by default one a usable core.
        seed: The root seed; drawn where it is None.
        worker_class: The class of the workers: a Worker, or any class with its verbs.
        worker_args: Further keyword arguments of that class.
        is_tf_worker: Whether a TensorFlow session is open in each worker; the same as `tensorflow_session` for
            `worker_setup`.
        worker_setup: Makes a context manager that is entered in each worker before the policy is unpickled there, and
            left when the worker ends; in place of the default, which holds torch to one thread.
        rules: What is done about user code that keeps to its contract only nearly.
        drop_infos: Infos that are not recorded: dotted paths or globs, see `InfoFilter`.

    Raises:
        ValueError: If `n_workers`, `seed` or `max_episode_length` is out of range, or two set-ups are given.
    """

    def __init__(
        self,
        *,
        max_episode_length: float | None = None,
        n_workers: int | None = None,
        seed: int | None = None,
        worker_class: WorkerClass = DefaultWorker,
        worker_args: Mapping[str, Any] | None = None,
        is_tf_worker: bool = False,
        worker_setup: WorkerSetup | None = None,
        rules: EpisodeRules | None = None,
        drop_infos: Sequence[str] = (),
    ) -> None:
        self.n_workers = usable_cores() if n_workers is None else n_workers
        self.seed = draw_root_seed() if seed is None else seed
        self.max_episode_length = max_episode_length
        self.worker_class = worker_class
        self.worker_args = dict(worker_args or {})
        self.worker_setup = tensorflow_session if is_tf_worker else worker_setup
        self.rules = rules or EpisodeRules()
        self._filter = InfoFilter(drop_infos)
        self._checks: tuple[EnvSpec, SampleChecks] | None = None
        if self.n_workers < 1:
            raise ValueError(f"n_workers is {self.n_workers}, must be at least 1")
        if self.seed < 0:
            raise ValueError(f"seed is {self.seed}, must be at least 0")
        if max_episode_length is not None and max_episode_length < 1:
            raise ValueError(f"max_episode_length is {max_episode_length}, must be at least 1")
        if is_tf_worker and worker_setup is not None:
            raise ValueError("is_tf_worker=True is a worker_setup itself: give one of the two")

    @property
    def numbers_at_once(self) -> int:
        """Return in blocks of how many numbers a worker wants its work.

        Raises:
            UserCodeError: If a class of the user's own cannot tell for its arguments.
        """
        if not issubclass(self.worker_class, NumberedWorker):
            return 1
        try:
            return self.worker_class.numbers_at_once(self.worker_args)
        except Exception as error:
            what = f"{self.worker_class.__name__}.numbers_at_once"
            raise failure(UserCodeError, what, error, hint="it was given the worker's arguments") from error

    @property
    def whole_episodes(self) -> bool:
        """Return whether the workers give whole episodes only."""
        return not issubclass(self.worker_class, NumberedWorker) or self.worker_class.whole_episodes

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

    def require_whole_episodes(self, where: str) -> None:
        """Refuse workers that give parts of episodes.

        Args:
            where: What cannot use them, for the message.

        Raises:
            UsageError: If the workers are such.
        """
        if not self.whole_episodes:
            name = self.worker_class.__name__
            hint = "use it by itself or with LocalSampler.obtain_samples; elsewhere DefaultWorker or VecWorker"
            raise UsageError(f"{name} gives parts of episodes, which {where} cannot use", hint=hint)

    def setup(self) -> AbstractContextManager[None]:
        """Return the context that a worker lives in: to be entered before it is built.

        Raises:
            RolloutError: On entry and on exit, if `worker_setup` fails.
        """
        return entering(self.worker_setup)

    def after_updates(self) -> None:
        """Do what is set up once a policy is loaded, in a process of the worker's own."""
        if self.worker_setup is None:
            one_torch_thread()

    def take(self, worker: NumberedWorker) -> tuple[Chunk | None, RolloutError | None]:
        """Remove a worker's finished episodes and return them, without the infos to be dropped; None for none.

        An episode with an action that is not of its space, or a reward that is not a number, is left out: the error of
        the first one comes beside the others, and has its number.
        """
        chunk = worker.take()
        if chunk is None:
            return None, None
        good, error = self._checks_of(worker.env_spec).sound(chunk)
        return self._filter.without(good) if good is not None and self._filter else good, error

    def _checks_of(self, spec: EnvSpec) -> SampleChecks:
        """Return the checks for chunks of `spec`, made once for a worker, since finished episodes are taken often."""
        if self._checks is None or self._checks[0] is not spec:
            self._checks = spec, SampleChecks(spec, actions=self.rules.invalid_action != "warn")
        return self._checks[1]

    def __call__(self, worker_number: int) -> NumberedWorker:
        """Build worker number `worker_number`.

        Raises:
            ValueError: If there is no such worker.
            UserCodeError: If the class cannot be built with its arguments.
        """
        if not 0 <= worker_number < self.n_workers:
            raise ValueError(f"worker_number is {worker_number}, must be from 0 to {self.n_workers - 1}")
        common: dict[str, Any] = {
            "seed": self.seed,
            "max_episode_length": self.max_episode_length,
            "worker_number": worker_number,
        }
        if issubclass(self.worker_class, NumberedWorker):
            worker: NumberedWorker = self._built(common | self.worker_args)
            worker.rules = self.rules
            return worker
        # What it cannot know of, the adapter does for it.
        own = {name: value for name, value in self.worker_args.items() if name != "deterministic"}
        deterministic = bool(self.worker_args.get("deterministic", False))
        adapter = VerbsAdapter(self._built(common | own), deterministic=deterministic, **common)
        adapter.rules = self.rules
        return adapter

    def _built(self, arguments: dict[str, Any]) -> Any:
        try:
            return self.worker_class(**arguments)
        except (RolloutError, ValueError):
            raise
        except Exception as error:
            what = f"the worker class {self.worker_class.__name__} cannot be built"
            hint = f"it is called with {', '.join(arguments)}; the traceback below shows where"
            raise failure(UserCodeError, what, error, hint=hint) from error
