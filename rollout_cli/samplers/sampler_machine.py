"""The sampler's state machine: which worker gets which numbers, and what becomes of what they send.

One machine serves one call (`stream`, `obtain_samples`, …). It knows no process, pipe or clock: it is told what
happened and when, and answers with instructions, which `multiprocessing_sampler.py` carries out. The table at the
end is the machine; a worker's state is what the sampler knows of it.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from rollout_cli.errors import InternalError
from rollout_cli.samplers.instructions import Fail, Instructions, Keep, Learn, Rebuild, Restart, SendTo, Skip, Tell
from rollout_cli.samplers.leasing import LeaseSizer
from rollout_cli.samplers.messages import Batch, Continue, Failed, Returned, Start, Started, Stop
from rollout_cli.samplers.plan import PlanState
from rollout_cli.samplers.ranges import shifted, with_lengths
from rollout_cli.samplers.supervision import Died, Supervisor, Verdict
from rollout_cli.samplers.worker_leases import WorkerLeases


class Known(enum.Enum):
    """What the sampler knows of a worker.

    STARTING: its `Start` was sent, `Started` did not come. BUSY: it has numbers. IDLE: it has none. GONE: it died, and
    is not started again.
    """

    STARTING = "starting"
    BUSY = "busy"
    IDLE = "idle"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class BufferDrained:
    """The reorder buffer has room again: numbers may be leased."""


SamplerEvent = Started | Batch | Returned | Failed | Died | BufferDrained


class SamplerMachine:
    """One call of a sampler.

    Args:
        plan: What to run; offsets.
        base: The episode number of offset 0.
        version: The call's version; messages of older ones are discarded.
        n_workers: How many workers there are.
        sizer: How far ahead workers are leased numbers.
        supervisor: Decides about deaths and failures.
        stride: The step from one of a worker's numbers to the next, where it owns every m-th number.
    """

    def __init__(
        self,
        plan: PlanState,
        *,
        base: int,
        version: int,
        n_workers: int,
        sizer: LeaseSizer,
        supervisor: Supervisor,
        stride: int = 1,
    ) -> None:
        self._stride, self._supervisor = stride, supervisor
        self.plan = plan
        self.history: deque[str] = deque(maxlen=50)
        self.buffer_is_full = False
        self._base, self._version, self._sizer = base, version, sizer
        self._known = [Known.STARTING] * n_workers
        self._leases = WorkerLeases(plan, base=base, n_workers=n_workers, sizer=sizer)
        self._open = self._leases.open
        self._told_ceiling: int | None = None
        self._highest: dict[int, int] = {}  # By lane, the highest number that ended.
        self.stopping = False

    def begin(self, updates: Sequence[tuple[Any, Any]], now: float) -> Instructions:
        """Return the `Start` of every worker, with its (agent update, env update) and first lease."""
        instructions: Instructions = []
        for worker, (agent_update, env_update) in enumerate(updates):
            lease = self._leases.lease(worker, buffer_is_full=self.buffer_is_full)
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
            ceiling = self._highest.get(self.plan.lane(numbers.lowest - self._base), self._base - 1)
            if self._leases.drop_above(worker, ceiling):
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
            return self._failed_before(event) if isinstance(event, Failed) and event.numbers else []
        known = self._known[event.worker]
        self.history.append(f"worker {event.worker} {known.value}: {event!r:.120}")
        method = self._TABLE.get((known, type(event)))
        if method is None:
            story = "\n".join(self.history)
            raise InternalError(f"{type(event).__name__} came from a worker that is {known.value}", details=story)
        return method(self, event, now)

    # -- the transitions -------------------------------------------------------------------------------------------

    def _started(self, event: Started, now: float) -> Instructions:
        worker = event.worker
        self._sizer.began(worker, now)
        self._supervisor.started(worker)
        self._known[worker] = Known.BUSY
        self._settle_state(worker)
        # One that was brought up again was leased nothing yet: others may have taken what it had.
        return [Learn(event), *(self._top_up(worker) if not self._open[worker] else [])]

    def _batch(self, event: Batch, now: float) -> Instructions:
        worker = event.worker
        if event.part is not None and not event.part.is_last:
            return [Keep(event)]
        self._sizer.finished(worker, len(event.lengths), now)
        self._supervisor.progressed()
        for numbers, lengths in with_lengths(event.numbers, event.lengths):
            self._open[worker].remove(numbers)
            self.plan.settle(shifted(numbers, -self._base), lengths)
        self._note_end(event.numbers[-1][-1])
        return [Keep(event), *self._tell_ceiling(), *self._top_up(worker), *self._top_up_idle()]

    def _returned(self, event: Returned, now: float) -> Instructions:
        del now
        self._leases.give_back(event.worker, event.numbers)
        self._settle_state(event.worker)
        return self._top_up_idle()

    def _failed(self, event: Failed, now: float) -> Instructions:
        del now
        return self._recover(event.worker, self._supervisor.failed(event, self._open[event.worker]), Rebuild)

    def _failed_before(self, event: Failed) -> Instructions:
        """Let a worker be built anew that failed in an earlier call's episode, and so has ignored its `Start`."""
        self._leases.give_back_all(event.worker)
        self._known[event.worker] = Known.STARTING
        start = Start(self._version, ceiling=self._ceiling(), stride=self._stride)
        return [Rebuild(event.worker, start), *self._top_up_idle()]

    def _died(self, event: Died, now: float) -> Instructions:
        del now
        worker = event.worker
        starting = self._known[worker] is Known.STARTING
        self._known[worker] = Known.GONE
        return self._recover(worker, self._supervisor.died(event, self._open[worker], starting=starting), Restart)

    def _recover(self, worker: int, verdict: Verdict, way: type[Restart | Rebuild]) -> Instructions:
        """Free a worker's numbers and bring it up again, or let the call fail."""
        self._leases.set_apart(worker, verdict.alone)
        instructions: Instructions = [Tell(verdict.notice)] if verdict.notice else []
        if verdict.skipped is not None:
            instructions += self._skip(worker, verdict.skipped, verdict.reason)
        self._leases.give_back_all(worker)
        self._settle_state(worker)
        if verdict.error is not None:
            return [Fail(verdict.error)]
        self._known[worker] = Known.STARTING
        start = Start(self._version, ceiling=self._ceiling(), stride=self._stride)
        return [*instructions, way(worker, start), *self._tell_ceiling(), *self._top_up_idle()]

    def _skip(self, worker: int, number: int, reason: str) -> Instructions:
        self._open[worker].remove(range(number, number + 1))
        offset = number - self._base
        self.plan.settle(range(offset, offset + 1), np.zeros(1, np.int64))
        return [Skip(number, reason)]

    def _note_end(self, number: int) -> None:
        lane = self.plan.lane(number - self._base)
        self._highest[lane] = max(number, self._highest.get(lane, number))

    # -- leases ----------------------------------------------------------------------------------------------------

    def _tell_ceiling(self) -> Instructions:
        """Let every worker that has numbers above a new ceiling drop them."""
        ceiling = self._ceiling()
        if ceiling is None or ceiling == self._told_ceiling or self.plan.n_lanes > 1:
            return []
        self._told_ceiling = ceiling
        instructions: Instructions = []
        for worker in range(len(self._open)):
            if self._leases.drop_above(worker, ceiling):
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
        lease = () if self.stopping else self._leases.lease(worker, buffer_is_full=self.buffer_is_full)
        self._settle_state(worker)
        return [SendTo(worker, Continue(lease, self._ceiling()))] if lease else []

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
