"""LocalSampler: all workers in the caller's process, for debugging and small runs."""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, ClassVar

from rollout_cli.errors import InternalError, UsageError
from rollout_cli.loading import first_line, is_interrupt, traceback_text
from rollout_cli.samplers.leases import LeaseSize
from rollout_cli.samplers.messages import ToWorker
from rollout_cli.samplers.plan import PlanState
from rollout_cli.samplers.pool import Died, Event, Message
from rollout_cli.samplers.sampler import Sampler
from rollout_cli.samplers.worker_loop import WorkerLoop
from rollout_cli.seeding.seeds import BorrowedGenerators
from rollout_cli.workers.factory import WorkerFactory

TURN_SECONDS = 0.02
"""Longer than in a process: nobody sends commands meanwhile, and each turn changes the global generators twice."""

_DEATH_HINT = "let the user code raise an Exception"


class LocalSampler(Sampler):
    """Samples in the caller's process, whose global random generators it leaves as they are.

    With one policy and one environment for all, worker 0 runs everything that anybody may run, so one environment is
    built. An error has the traceback of the user's own code, which a debugger can enter. The arguments are those of
    `Sampler`.

    Raises:
        UsageError: If a time-out is asked for: nobody could end a step of this process.
    """

    _lease_size: ClassVar[LeaseSize] = LeaseSize(seconds=TURN_SECONDS, ahead=1)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self._supervision.step_timeout is not None or self._supervision.episode_timeout is not None:
            raise UsageError(
                "LocalSampler cannot end a step or an episode that takes too long",
                hint="use MultiprocessingSampler, or give no step_timeout and no episode_timeout",
            )

    def _make_pool(self) -> LocalPool:
        return LocalPool(self._factory)

    def _n_needed(self, state: PlanState) -> int:
        return 1 if state.is_shared else self.n_workers


class LocalPool:
    """Workers in this process, which take turns while somebody waits for them.

    What the user's code raises that is no Exception (by `sys.exit`, say) counts as the death of its worker, as it would
    be one in a process of its own; a Ctrl-C is raised as it is.

    Args:
        factory: Builds the workers.
    """

    def __init__(self, factory: WorkerFactory) -> None:
        self._factory = factory
        self._loops: dict[int, WorkerLoop] = {}
        self._commands: dict[int, deque[ToWorker]] = {}
        # The global generators of each worker's episodes: between two turns of one, others may run.
        self._borrowed: dict[int, BorrowedGenerators] = {}
        self._setup: ExitStack | None = None
        self._is_closed = False

    def start(self, worker: int) -> None:
        """Start a worker; it is built by its first command."""
        self._loops[worker] = WorkerLoop(self._factory, worker, setup=self._enter_setup, turn_seconds=TURN_SECONDS)
        self._commands[worker] = deque()
        self._borrowed[worker] = BorrowedGenerators()

    def _enter_setup(self) -> AbstractContextManager[None]:
        """Enter the set-up of the process for the first worker that asks; all leave it together."""
        if self._setup is None:
            with ExitStack() as entered:
                entered.enter_context(self._factory.setup())
                self._setup = entered.pop_all()
        return nullcontext()

    def send(self, worker: int, command: ToWorker) -> None:
        """Keep a command for the worker's next turn."""
        if worker in self._loops:
            self._commands[worker].append(command)

    def wait(self, timeout: float | None) -> list[Event]:
        """Let every worker that has anything to do take a turn; never waits longer.

        Raises:
            UsageError: If the pool was closed.
            InternalError: If no worker has anything to do, and so nothing would ever happen.
        """
        if self._is_closed:
            raise UsageError("the workers were shut down while their stream was under way", hint="begin a new stream")
        busy = [worker for worker, loop in self._loops.items() if self._commands[worker] or not loop.idle]
        if not busy and timeout is None:
            raise InternalError("the local workers have nothing to do, and the sampler waits for them")
        return [event for worker in busy for event in self._turn(worker)]

    def _turn(self, worker: int) -> list[Event]:
        loop, commands = self._loops[worker], [*self._commands[worker]]
        self._commands[worker].clear()
        with self._borrowed[worker]:
            try:
                return [Message(worker, message) for message in loop.turn(commands)]
            except BaseException as error:
                if is_interrupt(error):
                    raise
                reason = f"was ended by {first_line(error)}"
                death = Died(worker, reason, loop.running_numbers, traceback_text(error), _DEATH_HINT)
                rescued = [Message(worker, message) for message in loop.rescue()]
                self._forget(worker)
                return [*rescued, death]

    def _forget(self, worker: int) -> None:
        """Close a worker."""
        del self._commands[worker]
        self._loops.pop(worker).close()

    def wake(self) -> None:
        """Do nothing: `wait` returns after a turn in any case."""

    def close(self) -> None:
        """Close the workers' environments, and leave the set-up; again does nothing."""
        self._is_closed = True
        setup, self._setup = self._setup, None
        with setup or nullcontext():
            for worker in list(self._loops):
                with self._borrowed[worker]:
                    self._forget(worker)

    def pids(self) -> list[int]:
        """Return no process ids."""
        return []
