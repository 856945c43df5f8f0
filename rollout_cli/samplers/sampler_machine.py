"""The sampler's state machine: which worker gets which numbers, and what becomes of what they send.

One machine serves one call (`stream`, `obtain_samples`, …). It knows no process, pipe or clock: it is told what
happened and when, and answers with instructions, which `multiprocessing_sampler.py` carries out. The table at the
end is the machine; a worker's state is what the sampler knows of it.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rollout_cli.errors import InternalError
from rollout_cli.samplers.leasing import LeaseSizer
from rollout_cli.samplers.messages import Batch, Continue, Failed, Lease, Returned, Start, Started, Stop
from rollout_cli.samplers.plan import PlanState
from rollout_cli.samplers.ranges import drop_above, shifted, with_lengths


class Known(enum.Enum):
    """What the sampler knows of a worker.

    STARTING: its `Start` was sent, `Started` did not come. BUSY: it has numbers. IDLE: it has none. GONE: it died.
    """

    STARTING = "starting"
    BUSY = "busy"
    IDLE = "idle"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Died:
    """A worker's process ended; all that it had sent was read before.

    Attributes:
        worker: Who.
        reason: How it ended, in words.
    """

    worker: int
    reason: str


@dataclass(frozen=True, slots=True)
class BufferDrained:
    """The reorder buffer has room again: numbers may be leased."""


SamplerEvent = Started | Batch | Returned | Failed | Died | BufferDrained


@dataclass(frozen=True, slots=True)
class SendTo:
    """Send a message to a worker."""

    worker: int
    message: Start | Continue | Stop


@dataclass(frozen=True, slots=True)
class Keep:
    """Put a batch into the reorder buffer."""

    batch: Batch


@dataclass(frozen=True, slots=True)
class Learn:
    """A worker told what it learnt of its environment."""

    started: Started


@dataclass(frozen=True, slots=True)
class Fail:
    """The call cannot go on."""

    event: Failed | Died


SamplerInstruction = SendTo | Keep | Learn | Fail
Instructions = list[SamplerInstruction]


class SamplerMachine:
    """One call of a sampler.

    Args:
        plan: What to run; offsets.
        base: The episode number of offset 0.
        version: The call's version; messages of older ones are discarded.
        n_workers: How many workers there are.
        sizer: How far ahead workers are leased numbers.
        stride: The step from one of a worker's numbers to the next, where it owns every m-th number.
    """

    def __init__(
        self, plan: PlanState, *, base: int, version: int, n_workers: int, sizer: LeaseSizer, stride: int = 1
    ) -> None:
        self._stride = stride
        self.plan = plan
        self.history: deque[str] = deque(maxlen=50)
        self.buffer_is_full = False
        self._base, self._version, self._sizer = base, version, sizer
        self._known = [Known.STARTING] * n_workers
        self._open: list[set[int]] = [set() for _ in range(n_workers)]
        self._told_ceiling: int | None = None
        self._highest: dict[int, int] = {}  # By lane, the highest number that ended.
        self.stopping = False

    def begin(self, updates: Sequence[tuple[Any, Any]], now: float) -> Instructions:
        """Return the `Start` of every worker, with its (agent update, env update) and first lease."""
        instructions: Instructions = []
        for worker, (agent_update, env_update) in enumerate(updates):
            lease = self._lease(worker)
            self._sizer.began(worker, now)
            message = Start(self._version, agent_update, env_update, lease, self._ceiling(), self._stride)
            instructions.append(SendTo(worker, message))
        return instructions

    def stop(self) -> Instructions:
        """Begin no more numbers, and drop those above the highest of their lane that ended; what lies below runs on.

        So nothing that ended is lost for want of an episode before it, if that ends soon; `stopped` tells when.
        """
        self.stopping = True
        instructions: Instructions = []
        for worker, numbers in enumerate(self._open):
            if not numbers:
                continue
            ceiling = self._highest.get(self.plan.lane(min(numbers) - self._base), self._base - 1)
            if drop_above(numbers, ceiling):
                instructions.append(SendTo(worker, Continue((), ceiling)))
                self._settle_state(worker)
        return instructions

    @property
    def stopped(self) -> bool:
        """Return whether the machine was told to stop and nothing runs any more that could still be handed on."""
        return self.stopping and not any(self._open)

    def end(self) -> Instructions:
        """Return what ends the call early: every worker that has numbers stops."""
        return [SendTo(worker, Stop()) for worker, numbers in enumerate(self._open) if numbers]

    def handle(self, event: SamplerEvent, now: float) -> Instructions:
        """Take what happened; return what to do, in order.

        Raises:
            InternalError: If the event cannot come in this state; it shows the last events.
        """
        if isinstance(event, BufferDrained):
            return self._top_up_all()
        if not isinstance(event, Died) and event.version < self._version:
            return []
        known = self._known[event.worker]
        self.history.append(f"worker {event.worker} {known.value}: {event!r:.120}")
        method = self._TABLE.get((known, type(event)))
        if method is None:
            story = "\n".join(self.history)
            raise InternalError(f"{type(event).__name__} came from a worker that is {known.value}", details=story)
        return method(self, event, now)

    # -- the transitions -------------------------------------------------------------------------------------------

    def _started(self, event: Started, now: float) -> Instructions:
        self._sizer.began(event.worker, now)
        self._known[event.worker] = Known.BUSY
        self._settle_state(event.worker)
        return [Learn(event)]

    def _batch(self, event: Batch, now: float) -> Instructions:
        worker = event.worker
        if event.part is not None and not event.part.is_last:
            return [Keep(event)]
        self._sizer.finished(worker, len(event.lengths), now)
        self._open[worker].difference_update(*event.numbers)
        for numbers, lengths in with_lengths(event.numbers, event.lengths):
            self.plan.settle(shifted(numbers, -self._base), lengths)
        self._note_end(event.numbers[-1][-1])
        return [Keep(event), *self._tell_ceiling(), *self._top_up(worker), *self._top_up_idle()]

    def _returned(self, event: Returned, now: float) -> Instructions:
        del now
        self._give_back(event.worker, event.numbers)
        return self._top_up_idle()

    def _failed(self, event: Failed, now: float) -> Instructions:
        del now
        self._give_back(event.worker, self._open[event.worker])
        return [Fail(event)]

    def _died(self, event: Died, now: float) -> Instructions:
        del now
        self._give_back(event.worker, self._open[event.worker])
        self._known[event.worker] = Known.GONE
        return [Fail(event)]

    def _note_end(self, number: int) -> None:
        lane = self.plan.lane(number - self._base)
        self._highest[lane] = max(number, self._highest.get(lane, number))

    # -- leases ----------------------------------------------------------------------------------------------------

    def _give_back(self, worker: int, numbers: Iterable[int]) -> None:
        # A worker may give back what it was told to drop while its answer was on its way.
        numbers = self._open[worker].intersection(numbers)
        self.plan.give_back(worker, [number - self._base for number in numbers])
        self._open[worker] -= numbers
        self._settle_state(worker)

    def _tell_ceiling(self) -> Instructions:
        """Let every worker that has numbers above a new ceiling drop them."""
        ceiling = self._ceiling()
        if ceiling is None or ceiling == self._told_ceiling or self.plan.n_lanes > 1:
            return []
        self._told_ceiling = ceiling
        instructions: Instructions = []
        for worker, numbers in enumerate(self._open):
            if drop_above(numbers, ceiling):
                instructions.append(SendTo(worker, Continue((), ceiling)))
                self._settle_state(worker)
        return instructions

    def _top_up_all(self) -> Instructions:
        workers = [worker for worker, known in enumerate(self._known) if known in (Known.BUSY, Known.IDLE)]
        return [instruction for worker in workers for instruction in self._top_up(worker)]

    def _top_up_idle(self) -> Instructions:
        idle = [worker for worker, known in enumerate(self._known) if known is Known.IDLE]
        return [instruction for worker in idle for instruction in self._top_up(worker)]

    def _top_up(self, worker: int) -> Instructions:
        lease = self._lease(worker)
        self._settle_state(worker)
        return [SendTo(worker, Continue(lease, self._ceiling()))] if lease else []

    def _lease(self, worker: int) -> Lease:
        if self.stopping:
            return ()
        has = len(self._open[worker])
        count = self._sizer.wanted(worker, has)
        open_by_all = sum(map(len, self._open))
        left = self.plan.still_needed(open_by_all) if count else None
        if left is not None:
            count = min(count, self._sizer.share(worker, left=left, open_numbers=has, open_by_all=open_by_all))
        if self.buffer_is_full:
            count = 0
        # What came back lies below what others run: it must run first, or the buffer could never drain.
        count = max(count, self.plan.n_returned(worker))
        if count <= 0 and self._lowest_missing_waits_for(worker):
            count = 1
        if count <= 0:
            return ()
        lease = tuple(shifted(offsets, self._base) for offsets in self.plan.lease(worker, count))
        self._open[worker].update(*lease)
        return lease

    def _lowest_missing_waits_for(self, worker: int) -> bool:
        """Return whether the worker's next number is the lowest missing one: it must run, or nothing would go on."""
        if any(self._open) and not self.buffer_is_full:
            return False  # What is open moves the run on; only a full buffer asks whether it is the lowest.
        own = self.plan.next_offset(worker)
        free = [self.plan.next_offset(other) for other in range(len(self._open))]
        missing = [*(min(numbers) - self._base for numbers in self._open if numbers), *free]
        return own is not None and own == min(offset for offset in missing if offset is not None)

    def _ceiling(self) -> int | None:
        ceiling = self.plan.ceiling
        return None if ceiling is None else ceiling + self._base

    def _settle_state(self, worker: int) -> None:
        if self._known[worker] in (Known.BUSY, Known.IDLE):
            self._known[worker] = Known.BUSY if self._open[worker] else Known.IDLE

    _TABLE: ClassVar[dict[tuple[Known, type], Callable[[Any, Any, float], Instructions]]] = {
        (Known.STARTING, Started): _started,
        (Known.STARTING, Failed): _failed,
        (Known.STARTING, Died): _died,
        (Known.BUSY, Batch): _batch,
        (Known.BUSY, Returned): _returned,
        (Known.BUSY, Failed): _failed,
        (Known.BUSY, Died): _died,
        # A worker that is known to be idle may have finished what it was running before it heard of the ceiling.
        (Known.IDLE, Batch): _batch,
        (Known.IDLE, Returned): _returned,
        (Known.IDLE, Failed): _failed,
        (Known.IDLE, Died): _died,
    }
