"""The worker's state machine: what a worker does when a command, a finished episode or a full pipe comes.

It knows no process, queue or clock: it is told what happened and answers with instructions, which `worker_process.py`
carries out. The table at the end is the machine.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from rollout_cli.errors import InternalError
from rollout_cli.samplers.messages import Continue, Exit, Lease, Start, Stop
from rollout_cli.samplers.number_runs import NumberRuns
from rollout_cli.samplers.ranges import contiguous_ranges, up_to

Array = npt.NDArray[Any]


class WorkerState(enum.Enum):
    """Where a worker stands.

    IDLE: it waits; it may keep messages that the pipe did not take. STREAMING: it runs episodes. FAILED: its policy or
    environment raised, and may be in any state; it waits for a `Start`, after an episode for one that builds it anew.
    EXITED: the end.
    """

    IDLE = "idle"
    STREAMING = "streaming"
    FAILED = "failed"
    EXITED = "exited"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class EpisodesFinished:
    """Episodes ended, one or more; they wait in the worker."""

    numbers: Sequence[int] | Array

    def __repr__(self) -> str:
        # Thousands of numbers at once, each of which would be made a text of, for a history that has room for few.
        return f"EpisodesFinished({len(self.numbers)} from {self.numbers[0]} to {self.numbers[-1]})"


@dataclass(frozen=True, slots=True)
class BatchDue:
    """Enough episodes wait, or they waited long enough."""


@dataclass(frozen=True, slots=True)
class EpisodeFailed:
    """The policy or environment failed; in one of these episodes, or in none."""

    error: bytes
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class OutboxFull:
    """A message was not taken; the shell keeps it, and all after it."""


@dataclass(frozen=True, slots=True)
class OutboxWritable:
    """All kept messages were taken."""


WorkerEvent = Start | Continue | Stop | Exit | EpisodesFinished | BatchDue | EpisodeFailed | OutboxFull | OutboxWritable


@dataclass(frozen=True, slots=True)
class Update:
    """Drop all episodes of the version before, apply the updates, and report `Started`."""

    start: Start


@dataclass(frozen=True, slots=True)
class Assign:
    """Give the worker these numbers: ranges that are not empty, the one with the lowest number first."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Retract:
    """Take from the worker all numbers above `above`; all numbers where it is None."""

    above: int | None


@dataclass(frozen=True, slots=True)
class SendFinished:
    """Send the finished episodes, after what is kept."""


@dataclass(frozen=True, slots=True)
class SendReturned:
    """Send back numbers that were not run."""

    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SendFailed:
    """Report a failure, after the finished episodes."""

    error: bytes
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ShutDown:
    """Close the worker."""


WorkerInstruction = Update | Assign | Retract | SendFinished | SendReturned | SendFailed | ShutDown
Instructions = list[WorkerInstruction]


class WorkerMachine:
    """One worker's state.

    Attributes:
        state: Where it stands.
        open_numbers: Numbers that it was given and that did not end.
        keeping: Whether the shell keeps messages that the pipe did not take.
        history: The last 50 events, for the error of an impossible one.
    """

    def __init__(self) -> None:
        self.state = WorkerState.IDLE
        self.open_numbers = NumberRuns()
        self.keeping = False
        self._spoilt = False  # By an episode that failed.
        self.history: deque[str] = deque(maxlen=50)

    def handle(self, event: WorkerEvent) -> Instructions:
        """Take what happened; return what to do, in order.

        Raises:
            InternalError: If the event cannot come in this state; it shows the last events.
        """
        self.history.append(f"{self.state.value}: {event!r:.120}")
        method = self._TABLE.get((self.state, type(event)))
        if method is None:
            story = "\n".join(self.history)
            raise InternalError(f"a worker got {type(event).__name__} while {self.state.value}", details=story)
        return method(self, event)

    def _start(self, event: Start) -> Instructions:
        self.keeping = self._spoilt = False
        self.open_numbers.take_all()
        return [Retract(None), Update(event), *self._take_on(Continue(event.lease, event.ceiling))]

    def _start_failed(self, event: Start) -> Instructions:
        # A new call's `Start` that crossed the report of the failure: what failed must not run that call's episodes.
        return [] if self._spoilt and not event.anew else self._start(event)

    def _continue_idle(self, event: Continue) -> Instructions:
        instructions = self._take_on(event)
        if self.keeping:
            # The kept messages go first; the shell says when they are gone.
            self.state = WorkerState.IDLE
        return instructions

    def _continue_streaming(self, event: Continue) -> Instructions:
        instructions = self._take_on(event)
        return instructions if self.open_numbers else [*instructions, SendFinished()]

    def _take_on(self, event: Continue) -> Instructions:
        """Add a lease, drop what is above the ceiling, and stream if that leaves any work."""
        instructions: Instructions = []
        if event.ceiling is not None and self.open_numbers.drop_above(event.ceiling):
            instructions.append(Retract(event.ceiling))
        left = (up_to(numbers, event.ceiling) for numbers in event.lease)
        wanted = tuple(sorted((numbers for numbers in left if numbers), key=lambda numbers: numbers.start))
        for numbers in wanted:
            self.open_numbers.add(numbers)
        if wanted:
            instructions.append(Assign(wanted))
        self.state = WorkerState.STREAMING if self.open_numbers else WorkerState.IDLE
        return instructions

    def _stop(self, event: Stop) -> Instructions:
        del event
        returned = tuple(self.open_numbers.take_all())
        self.state = WorkerState.IDLE
        return [Retract(None), SendFinished(), SendReturned(returned)]

    def _exit(self, event: Exit) -> Instructions:
        del event
        self.state = WorkerState.EXITED
        return [ShutDown()]

    def _finished(self, event: EpisodesFinished) -> Instructions:
        for numbers in contiguous_ranges(np.sort(np.asarray(event.numbers, np.int64))):
            self.open_numbers.remove(numbers)
        if self.open_numbers:
            return []
        self.state = WorkerState.IDLE
        return [SendFinished()]

    def _due(self, event: BatchDue) -> Instructions:
        del event
        return [SendFinished()]

    def _failed(self, event: EpisodeFailed) -> Instructions:
        self.open_numbers.take_all()
        self.state = WorkerState.FAILED
        self._spoilt = self._spoilt or bool(event.numbers)
        return [Retract(None), SendFinished(), SendFailed(event.error, event.numbers)]

    def _ignore(self, event: Continue | Stop) -> Instructions:
        # It crossed the report of the failure, by which all numbers are given back.
        del event
        return []

    def _full(self, event: OutboxFull) -> Instructions:
        del event
        self.keeping = True
        if self.state is WorkerState.STREAMING:
            self.state = WorkerState.IDLE
        return []

    def _writable(self, event: OutboxWritable) -> Instructions:
        del event
        self.keeping = False
        if self.open_numbers:
            self.state = WorkerState.STREAMING
        return []

    _TABLE: ClassVar[dict[tuple[WorkerState, type], Callable[[Any, Any], Instructions]]] = {
        (WorkerState.IDLE, Start): _start,
        (WorkerState.IDLE, Continue): _continue_idle,
        (WorkerState.IDLE, Stop): _stop,
        (WorkerState.IDLE, Exit): _exit,
        (WorkerState.IDLE, EpisodeFailed): _failed,
        (WorkerState.IDLE, OutboxFull): _full,
        (WorkerState.IDLE, OutboxWritable): _writable,
        (WorkerState.FAILED, Start): _start_failed,
        (WorkerState.FAILED, Continue): _ignore,
        (WorkerState.FAILED, Stop): _ignore,
        (WorkerState.FAILED, Exit): _exit,
        (WorkerState.FAILED, EpisodeFailed): _failed,
        (WorkerState.FAILED, OutboxFull): _full,
        (WorkerState.FAILED, OutboxWritable): _writable,
        (WorkerState.STREAMING, Start): _start,
        (WorkerState.STREAMING, Continue): _continue_streaming,
        (WorkerState.STREAMING, Stop): _stop,
        (WorkerState.STREAMING, Exit): _exit,
        (WorkerState.STREAMING, EpisodesFinished): _finished,
        (WorkerState.STREAMING, BatchDue): _due,
        (WorkerState.STREAMING, EpisodeFailed): _failed,
        (WorkerState.STREAMING, OutboxFull): _full,
    }
