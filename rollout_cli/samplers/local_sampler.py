"""LocalSampler: all workers in the caller's process, for debugging and small runs."""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
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


@dataclass(slots=True, eq=False)
class _LocalWorker:
    """A worker, its commands, and the global generators of its episodes: between two of its turns others may run."""

    loop: WorkerLoop
    commands: deque[ToWorker] = field(default_factory=deque)
    generators: BorrowedGenerators = field(default_factory=BorrowedGenerators)


class LocalPool:
    """Workers in this process, which take turns while somebody waits for them; a `Pool`.

    What the user's code raises that is no Exception (by `sys.exit`, say) counts as the death of its worker, as it would
    be one in a process of its own; a Ctrl-C is raised as it is.
    """

    def __init__(self, factory: WorkerFactory) -> None:
        self._factory = factory
        self._workers: dict[int, _LocalWorker] = {}
        self._setup: ExitStack | None = None
        self._is_closed = False

    def start(self, worker: int) -> None:
        """Start a worker; it is built by its first command."""
        loop = WorkerLoop(self._factory, worker, setup=self._enter_setup, turn_seconds=TURN_SECONDS)
        self._workers[worker] = _LocalWorker(loop)

    def _enter_setup(self) -> AbstractContextManager[None]:
        """Enter the set-up of the process for the first worker that asks; all leave it together."""
        if self._setup is None:
            setup = ExitStack()
            setup.enter_context(self._factory.setup())
            self._setup = setup
        return nullcontext()

    def send(self, worker: int, command: ToWorker) -> None:
        """Keep a command for the worker's next turn."""
        if worker in self._workers:
            self._workers[worker].commands.append(command)

    def wait(self, timeout: float | None) -> list[Event]:
        """Let every worker that has anything to do take a turn; never waits longer.

        Raises:
            UsageError: If the pool was closed.
            InternalError: If no worker has anything to do, and so nothing would ever happen.
        """
        if self._is_closed:
            raise UsageError("the workers were shut down while their stream was under way", hint="begin a new stream")
        busy = [number for number, worker in self._workers.items() if worker.commands or not worker.loop.idle]
        if not busy and timeout is None:
            raise InternalError("the local workers have nothing to do, and the sampler waits for them")
        return [event for number in busy for event in self._turn(number)]

    def _turn(self, number: int) -> list[Event]:
        worker = self._workers[number]
        commands, worker.commands = worker.commands, deque()
        with worker.generators:
            try:
                return [Message(number, message) for message in worker.loop.turn(commands)]
            except BaseException as error:
                if is_interrupt(error):
                    raise
                running, hint = worker.loop.running_numbers, "let the user code raise an Exception"
                death = Died(number, f"was ended by {first_line(error)}", running, traceback_text(error), hint)
                rescued = [Message(number, message) for message in worker.loop.rescue()]
                self._workers.pop(number).loop.close()
                return [*rescued, death]

    def wake(self) -> None:
        """Do nothing: `wait` returns after a turn in any case."""

    def close(self) -> None:
        """Close the workers' environments, and leave the set-up; again does nothing."""
        self._is_closed = True
        setup, self._setup = self._setup, None
        with setup or nullcontext():
            for worker in self._workers.values():
                with worker.generators:
                    worker.loop.close()
        self._workers.clear()

    def pids(self) -> list[int]:
        """Return no process ids."""
        return []
