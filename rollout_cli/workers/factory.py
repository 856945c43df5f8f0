"""WorkerFactory: all that is needed to build a worker, and all that crosses the process border for it."""

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
    """Return the worker class that `package.module:Class` names.

    Raises:
        UserCodeError: If it cannot be imported, or is no subclass of Worker.
    """
    if not is_module_attribute(spec):
        raise UserCodeError(
            f"{spec!r} names no worker class", code="worker-class", hint="name it as package.module:Class"
        )
    worker_class = Source.find(spec, UserCodeError).load(UserCodeError)
    if not _is_worker_class(worker_class):
        raise UserCodeError(f"{spec!r} is no worker class", code="worker-class", hint=_SUBCLASS_HINT)
    return worker_class


def refuse_overrides(kind: type[Worker], worker_args: dict[str, Any]) -> None:
    """Raise UserCodeError if a worker class overrides what no sampler calls: its author would never know."""
    base: type[Worker] = VecWorker if issubclass(kind, VecWorker) else DefaultWorker
    called = ("worker_init", *kind.overridable(worker_args))
    uncalled = [name for name in (*VERBS, *OVERRIDABLE) if name not in called]
    if unused := [name for name in uncalled if getattr(kind, name) is not getattr(base, name)]:
        raise UserCodeError(
            f"{kind.__name__} overrides {' and '.join(unused)}, which samplers do not call of it",
            code="worker-class-overrides",
            hint=f"override one of {', '.join(called)}; a script may call all verbs of such a worker",
        )


def _is_worker_class(candidate: Any) -> TypeGuard[type[Worker]]:
    return isinstance(candidate, type) and issubclass(candidate, Worker)


class WorkerFactory:
    """Builds the workers of one sampler; picklable.

    Args:
        max_episode_length: Steps after which an episode is truncated; None or infinity for no limit.
        n_workers: How many workers there will be; by default one a usable core.
        seed: The root seed; drawn where it is None.
        worker_class: The class of the workers, a subclass of Worker.
        worker_args: Further keyword arguments of that class.
        is_tf_worker: Whether a TensorFlow session is open in each worker: the ready-made `worker_setup`.
        worker_setup: Makes a context manager that is entered in each worker before the policy is unpickled
            there, and left when the worker ends; in place of the default, which holds torch to one thread. It
            must be picklable.
        rules: What is done about user code that nearly keeps its contract.
        pins: Which files of a policy and environment are pinned; None where workers do not look for any.
        drop_infos: Infos that are not recorded: dotted paths or globs, see `without_infos`.
        keep: An EXPRESSION: episodes of which it is not true are run, and not sent. None keeps all.

    Attributes:
        numbers_at_once: How many numbers a worker runs at once.
        drop_infos: As given; so is `keep`.

    Raises:
        ArgumentError: If an argument is out of range, the class is no worker class, or two set-ups are given
            (a ValueError, too).
        UserCodeError: If the class overrides what no sampler calls, or does not say how many numbers it runs
            at once.
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
                f"worker_class is {worker_class!r}, which is no Worker",
                code="factory-argument",
                hint=_SUBCLASS_HINT,
            )
        with reporting(UserCodeError, f"{worker_class.__name__}.numbers_at_once failed"):
            self.numbers_at_once = worker_class.numbers_at_once(self.worker_args)
        refuse_overrides(worker_class, self.worker_args)
        for name, least in (("n_workers", 1), ("seed", 0), ("max_episode_length", 1)):
            value = getattr(self, name)
            if value is not None and not value >= least:  # True of nan as well.
                raise ArgumentError(f"{name} is {value}, must be at least {least}", code="factory-argument")
        if (self.rules.tasks or self.rules.reset_options) and self.worker_args.get(
            "vectorization"
        ) == "native":
            raise ArgumentError(
                "options of a reset are for single environments: omit vectorization='native'",
                code="factory-argument",
            )
        if is_tf_worker and worker_setup is not None:
            raise ArgumentError(
                "is_tf_worker=True is a worker_setup itself: give one of the two", code="factory-argument"
            )

    def prepare_worker_messages(
        self, objs: Any, preprocess: Callable[[Any], Any] = lambda obj: obj
    ) -> list[Any]:
        """Return one object a worker, each through `preprocess`: from a list of as many, or one for all."""
        if isinstance(objs, list):
            if len(objs) != self.n_workers:
                raise ArgumentError(
                    f"a list with one entry a worker has {self.n_workers} entries, not {len(objs)}",
                    code="list-length",
                )
            return [preprocess(obj) for obj in objs]
        return [preprocess(objs)] * self.n_workers

    def __call__(self, worker_number: int, crash_box: NullCrashBox | None = None) -> Worker:
        """Build worker 0 to n_workers - 1, or raise ArgumentError; UserCodeError if its class fails."""
        if not 0 <= worker_number < self.n_workers:
            raise ArgumentError(
                f"worker_number is {worker_number}, must be from 0 to {self.n_workers - 1}",
                code="factory-argument",
            )
        arguments: dict[str, Any] = {
            "seed": self.seed,
            "max_episode_length": self.max_episode_length,
            "worker_number": worker_number,
            **self.worker_args,
        }
        hint = f"it is called with {', '.join(arguments)}; the traceback below shows where"
        with reporting(
            UserCodeError, f"the worker class {self.worker_class.__name__} cannot be built", hint=hint
        ):
            context = WorkerContext(self.rules, crash_box or NullCrashBox())
            return self.worker_class.in_context(context, **arguments)

    @contextmanager
    def setup(self) -> Iterator[None]:
        """Enter the context that a worker is built and lives in; UserCodeError if `worker_setup` fails."""
        hint = (
            "worker_setup is called without arguments and returns a context manager; "
            "the traceback below shows where"
        )
        with reporting(
            UserCodeError, "the worker's set-up could not be entered", code="worker-setup", hint=hint
        ):
            stack = ExitStack()
            stack.enter_context((self.worker_setup or nullcontext)())
        try:
            yield
        finally:
            # It is not given an error, which it must not swallow: whoever waits for the worker has to hear of
            # it.
            with reporting(UserCodeError, "the worker's set-up could not be left", code="worker-setup"):
                stack.close()

    def after_updates(self) -> None:
        """Let torch, if loaded and no `worker_setup` decides, use OMP_NUM_THREADS threads, or one."""
        torch: Any = sys.modules.get("torch")
        if self.worker_setup is None and hasattr(torch, "set_num_threads"):
            n_threads = os.environ.get("OMP_NUM_THREADS", "1")
            torch.set_num_threads(max(1, int(n_threads)) if n_threads.isdecimal() else 1)

    @contextmanager
    def borrowed_threads(self) -> Iterator[None]:
        """Set torch's threads as `after_updates` does, in the block alone: the process is the caller's."""
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
    """Make a new graph the default one, and a session of it the default session, until the worker ends."""
    try:
        tensorflow: Any = importlib.import_module("tensorflow")
    except ModuleNotFoundError as error:
        raise UsageError(
            f"is_tf_worker=True needs TensorFlow, but {error.name} is not installed",
            code="package-missing",
            hint=f"pip install {error.name}",
        ) from error
    # TensorFlow 2 keeps the sessions of TensorFlow 1 there.
    tf = tensorflow.compat.v1 if hasattr(tensorflow, "compat") else tensorflow
    with tf.Graph().as_default(), tf.Session().as_default():
        yield
