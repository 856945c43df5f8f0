"""The sampler's state machine: what a sampler does when a worker sends a message, or dies.

It knows no process and no clock: it takes events and times, and returns instructions, which `sampler.py` carries out.
The table at the end is the machine.

A worker is STARTING until it answers `Started` to the current generation; then it is READY, and gets leases. After
`Failed` or a death it is brought up again by a `Start` with its whole history, and so is STARTING again.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from rollout_cli.episodes.chunk import Chunk
from rollout_cli.errors import InternalError, RolloutError
from rollout_cli.samplers.leases import Leases, LeaseSize
from rollout_cli.samplers.messages import Batch, Continue, Failed, Lease, Start, Started, Stop, ToSampler, Update
from rollout_cli.samplers.numbers import contiguous_ranges, with_lengths
from rollout_cli.samplers.plan import PlanState
from rollout_cli.samplers.pool import Died
from rollout_cli.samplers.supervision import Supervisor, Verdict

Updates = tuple[Update, ...]


@dataclass(frozen=True, slots=True)
class Send:
    """Send a command to a worker."""

    worker: int
    command: Start | Continue | Stop


@dataclass(frozen=True, slots=True)
class BringUp:
    """Send a worker its whole history by `start`, which lacks the updates; one that died must be started first."""

    worker: int
    start: Start
    died: bool


@dataclass(frozen=True, slots=True)
class Keep:
    """Put a chunk into the reorder buffer."""

    chunk: Chunk
    not_reproducible: str | None


@dataclass(frozen=True, slots=True)
class Learn:
    """A worker reported what it knows of its environment and policy."""

    started: Started


@dataclass(frozen=True, slots=True)
class Skip:
    """An episode is left out; the order continues without it."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class Warn:
    """Warn the user of a fault that did not end the call."""

    text: str


@dataclass(frozen=True, slots=True)
class Fail:
    """The call cannot continue."""

    error: RolloutError


Instruction = Send | BringUp | Keep | Learn | Skip | Warn | Fail


class WorkerStatus(enum.Enum):
    """What the sampler knows of a worker."""

    STARTING = "starting"
    READY = "ready"


class SamplerMachine:
    """One call of a sampler.

    Args:
        plan: What to run.
        generation: The call's generation.
        n_workers: How many workers take part.
        supervisor: Decides about deaths and failures.
        size: How far ahead workers are leased numbers.
        block: The least number of episodes worth leasing.
        stride: The step from one of a worker's numbers to the next.
        now: The time, in seconds on the clock of the calls that follow.

    Attributes:
        plan: What is run.
        stopping: Whether the call is asked to end early, or has failed: no more numbers are leased.
        history: The last 50 events, for the error of an impossible one.
    """

    def __init__(
        self,
        plan: PlanState,
        *,
        generation: int,
        n_workers: int,
        supervisor: Supervisor,
        size: LeaseSize,
        block: int = 1,
        stride: int = 1,
        now: float = 0.0,
    ) -> None:
        self.plan, self.stopping, self._has_failed = plan, False, False
        self.history: deque[str] = deque(maxlen=50)
        self._generation, self._stride, self._supervisor = generation, stride, supervisor
        self._leases = Leases(plan, n_workers=n_workers, size=size, block=block, now=now)
        self._status = [WorkerStatus.STARTING] * n_workers
        self._buffer_is_full = False
        self._announced: int | None = None  # The last number needed that all workers know.
        self._highest: dict[int, int] = {}  # By partition, the highest number that ended.

    def begin(self, known: Sequence[Updates], new: Sequence[Updates]) -> list[Instruction]:
        """Return the `Start` of every worker, with its first lease: nobody waits for answers.

        Args:
            known: By worker, what changes; of the lowest ones, which an earlier call has started.
            new: The whole histories of the others.
        """
        instructions: list[Instruction] = []
        for worker, updates in enumerate([*known, *new]):
            lease = self._leases.lease(worker, buffer_is_full=False)
            instructions.append(Send(worker, self._start(updates, lease, rebuild=worker >= len(known))))
        return instructions

    def _start(self, updates: Updates = (), lease: Lease = (), *, rebuild: bool = True) -> Start:
        return Start(self._generation, updates, lease, self.plan.last_needed, self._stride, rebuild)

    def handle(self, event: ToSampler | Died, now: float) -> list[Instruction]:
        """Take what happened; return what to do, in order.

        Raises:
            InternalError: If the event cannot come from such a worker; it shows the last events.
        """
        status = self._status[event.worker]
        if isinstance(event, Started | Batch) and event.generation < self._generation:
            return []  # Of a call that is over.
        if self._has_failed and not isinstance(event, Batch):
            return []  # Finished episodes are still handed on; nobody is brought up again.
        self.history.append(f"worker {event.worker} {status.value}: {event!r:.120}")
        method = self._TABLE.get((status, type(event)))
        if method is None:
            story = "\n".join(self.history)
            raise InternalError(f"{type(event).__name__} came from a worker that is {status.value}", details=story)
        return method(self, event, now)

    def buffer_changed(self, *, is_full: bool) -> list[Instruction]:
        """Take whether the reorder buffer is full; return leases where it was, and is no more."""
        drained = self._buffer_is_full and not is_full
        self._buffer_is_full = is_full
        workers = self._ready() if drained else []
        return [instruction for worker in workers for instruction in self._top_up(worker)]

    def stop(self) -> list[Instruction]:
        """Begin no more numbers, and drop those above the highest of their partition that ended; the others run on.

        So nothing that ended is lost for want of an episode before it, if that ends soon; `stopped` says when.
        """
        self.stopping = True
        instructions: list[Instruction] = []
        for worker, runs in enumerate(self._leases.in_flight):
            partition = self.plan.partition(runs[0].start) if runs else 0
            instructions += self._drop_above(worker, self._highest.get(partition, -1))
        return instructions

    @property
    def stopped(self) -> bool:
        """Return whether the call was asked to end and nothing runs any more that could still be handed on."""
        return self.stopping and not any(self._leases.in_flight)

    def end(self) -> list[Instruction]:
        """Return what ends the call: every worker that has numbers stops."""
        return [Send(worker, Stop()) for worker, runs in enumerate(self._leases.in_flight) if runs]

    # -- the transitions -------------------------------------------------------------------------------------------

    def _started(self, event: Started, now: float) -> list[Instruction]:
        worker = event.worker
        self._leases.began(worker, now)
        self._supervisor.started(worker)
        self._status[worker] = WorkerStatus.READY
        # One that was brought up again was leased nothing yet: others may have taken what it had.
        return [Learn(event), *([] if self._leases.in_flight[worker] else self._top_up(worker))]

    def _batch(self, event: Batch, now: float) -> list[Instruction]:
        chunk, part = event.chunk, event.chunk.part
        keep = Keep(chunk, event.not_reproducible)
        if part is not None and not part.is_last:
            return [keep]
        # A copy: the lengths outlive the chunk, and as a view they would hold its memory.
        lengths = np.array([part.episode_length] if part else chunk.lengths, np.int64)
        runs = contiguous_ranges(chunk.numbers)
        self._supervisor.progressed()
        self._leases.finished(event.worker, runs, now)
        for numbers, of_these in with_lengths(runs, lengths):
            self.plan.complete(numbers, of_these)
        partition = self.plan.partition(runs[-1][-1])
        self._highest[partition] = max(runs[-1][-1], self._highest.get(partition, -1))
        return [keep, *self._announce(), *self._top_up(event.worker), *self._top_up_idle()]

    def _failed(self, event: Failed, now: float) -> list[Instruction]:
        del now
        if event.generation < self._generation:
            # It has ignored this call's `Start`, for what an earlier call left may be in any state.
            return self._bring_up(event.worker, Verdict(), died=False)
        verdict = self._supervisor.failed(event, self._leases.in_flight[event.worker])
        return self._bring_up(event.worker, verdict, died=False)

    def _died(self, event: Died, now: float) -> list[Instruction]:
        del now
        starting = self._status[event.worker] is WorkerStatus.STARTING
        verdict = self._supervisor.died(event, self._leases.in_flight[event.worker], starting=starting)
        return self._bring_up(event.worker, verdict, died=True)

    def _bring_up(self, worker: int, verdict: Verdict, *, died: bool) -> list[Instruction]:
        """Free a worker's numbers and bring it up again, or let the call fail."""
        self._leases.isolate(worker, verdict.isolated)
        instructions: list[Instruction] = [Warn(verdict.notice)] if verdict.notice else []
        if verdict.skipped is not None:
            instructions += self._skip(worker, verdict.skipped, verdict.reason)
        self._leases.release(worker)
        if verdict.error is not None:
            self.stopping = self._has_failed = True
            return [*instructions, Fail(verdict.error)]
        self._status[worker] = WorkerStatus.STARTING
        return [*instructions, BringUp(worker, self._start(), died), *self._announce(), *self._top_up_idle()]

    def _skip(self, worker: int, number: int, reason: str) -> list[Instruction]:
        numbers = range(number, number + 1)
        self._leases.remove(worker, [numbers])
        self.plan.complete(numbers, np.zeros(1, np.int64))
        return [Skip(number, reason)]

    # -- leases ----------------------------------------------------------------------------------------------------

    def _announce(self) -> list[Instruction]:
        """Let every worker that has numbers above a new last one needed drop them."""
        last = self.plan.last_needed
        if last is None or last == self._announced or self.plan.n_partitions > 1:
            return []
        self._announced = last
        workers = range(len(self._status))
        return [instruction for worker in workers for instruction in self._drop_above(worker, last)]

    def _drop_above(self, worker: int, last: int) -> list[Instruction]:
        return [Send(worker, Continue((), last))] if self._leases.drop_above(worker, last) else []

    def _ready(self) -> list[int]:
        return [worker for worker, status in enumerate(self._status) if status is WorkerStatus.READY]

    def _top_up_idle(self) -> list[Instruction]:
        idle = [worker for worker in self._ready() if not self._leases.in_flight[worker]]
        return [instruction for worker in idle for instruction in self._top_up(worker)]

    def _top_up(self, worker: int) -> list[Instruction]:
        if self.stopping:
            return []
        lease = self._leases.lease(worker, buffer_is_full=self._buffer_is_full)
        return [Send(worker, Continue(lease, self.plan.last_needed))] if lease else []

    _TABLE: ClassVar[dict[tuple[WorkerStatus, type], Callable[[Any, Any, float], list[Instruction]]]] = {
        (WorkerStatus.STARTING, Started): _started,
        (WorkerStatus.STARTING, Failed): _failed,
        (WorkerStatus.STARTING, Died): _died,
        (WorkerStatus.READY, Batch): _batch,
        (WorkerStatus.READY, Failed): _failed,
        (WorkerStatus.READY, Died): _died,
    }
