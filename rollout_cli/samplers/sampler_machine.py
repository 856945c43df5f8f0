"""The sampler's state machine: what a sampler does when a worker sends a message, or dies.

It knows no process and no clock: it takes events and times, and calls the verbs of a `Shell`. The table at the end is
the machine. A worker is STARTING until it answers `Started` to the current generation; then it is READY, and gets
leases. After `Failed` or a death it is brought up again with its whole history, and so is STARTING again.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from rollout_cli.errors import InternalError, RolloutError
from rollout_cli.samplers.leases import Leases, LeaseSize
from rollout_cli.samplers.messages import Batch, Continue, Failed, Lease, Start, Started, Stop, ToSampler, Update
from rollout_cli.samplers.numbers import contiguous_ranges
from rollout_cli.samplers.plan import PlanState
from rollout_cli.samplers.pool import Died
from rollout_cli.samplers.supervision import Supervisor, Verdict


class Shell(Protocol):
    """Does what the machine decides."""

    def send(self, worker: int, command: Start | Continue | Stop) -> None:
        """Send a command to a worker."""

    def bring_up(self, worker: int, start: Start, *, died: bool) -> None:
        """Send a worker its whole history by `start`, which lacks the updates; one that died must be started first."""

    def learn(self, started: Started) -> None:
        """Note what a worker knows of its environment and policy."""

    def keep(self, batch: Batch) -> None:
        """Put finished episodes into the reorder buffer."""

    def skip(self, number: int, reason: str) -> None:
        """Leave an episode out; the order continues without it."""

    def warn(self, text: str) -> None:
        """Warn the user of a fault that did not end the call."""

    def fail(self, error: RolloutError) -> None:
        """End the call once everything finished was handed on."""


class WorkerStatus(enum.Enum):
    """What the sampler knows of a worker."""

    STARTING = "starting"
    READY = "ready"


class SamplerMachine:
    """One call of a sampler, in which `n_workers` take part; all times are seconds on any one clock.

    Args:
        size: How far ahead workers are leased numbers.
        block: The least number of episodes worth leasing (a worker's number of environments).
        stride: The step from one of a worker's numbers to the next.

    Attributes:
        stopping: Whether the call is asked to end early, or has failed: no more numbers are leased.
    """

    def __init__(
        self,
        plan: PlanState,
        shell: Shell,
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
        self._shell, self._supervisor = shell, supervisor
        self._generation, self._stride = generation, stride
        self._leases = Leases(plan, n_workers=n_workers, size=size, block=block, now=now)
        self._status = [WorkerStatus.STARTING] * n_workers
        self._story: deque[str] = deque(maxlen=50)  # The last events, for the error of an impossible one.
        self._buffer_is_full = False
        self._announced: int | None = None  # The last number needed that all workers know.
        self._highest: dict[int, int] = {}  # By partition, the highest number that ended.

    def begin(self, updates: Sequence[tuple[Update, ...]], n_known: int) -> None:
        """Send every worker its `Start` with its first lease: nobody waits for answers.

        Args:
            updates: By worker, what changes; of a new one the whole history.
            n_known: How many workers an earlier call has started: the lowest ones.
        """
        for worker, changes in enumerate(updates):
            lease = self._leases.lease(worker, buffer_is_full=False)
            self._shell.send(worker, self._start(changes, lease, rebuild=worker >= n_known))

    def _start(self, updates: tuple[Update, ...] = (), lease: Lease = (), *, rebuild: bool = True) -> Start:
        return Start(self._generation, updates, lease, self.plan.last_needed(), self._stride, rebuild)

    def handle(self, event: ToSampler | Died, now: float) -> None:
        """Take what happened.

        Raises:
            InternalError: If the event cannot come from such a worker; it shows the last events.
        """
        status = self._status[event.worker]
        if isinstance(event, Started | Batch) and event.generation < self._generation:
            return  # Of a call that is over.
        if self._has_failed and not isinstance(event, Batch):
            return  # Finished episodes are still handed on; nobody is brought up again.
        self._story.append(f"worker {event.worker} {status.value}: {event!r:.120}")
        method = self._TABLE.get((status, type(event)))
        if method is None:
            story = "\n".join(self._story)
            raise InternalError(f"{type(event).__name__} came from a worker that is {status.value}", details=story)
        method(self, event, now)

    def buffer_changed(self, *, is_full: bool) -> None:
        """Take whether the reorder buffer is full; where it was, and is no more, the workers get leases."""
        drained = self._buffer_is_full and not is_full
        self._buffer_is_full = is_full
        for worker in range(len(self._status)) if drained else ():
            self._top_up(worker)

    def stop(self) -> None:
        """Begin no more numbers, and drop those above the highest of their partition that ended; the others run on.

        So nothing that ended is lost for want of an episode before it, if that ends soon; `stopped` says when.
        """
        self.stopping = True
        for worker, runs in enumerate(self._leases.in_flight):
            partition = self.plan.partition(runs[0].start) if runs else 0
            self._drop_above(worker, self._highest.get(partition, -1))

    @property
    def stopped(self) -> bool:
        """Return whether the call was asked to end and nothing runs any more that could still be handed on."""
        return self.stopping and not any(self._leases.in_flight)

    def end(self) -> None:
        """End the call: every worker that has numbers stops."""
        for worker, runs in enumerate(self._leases.in_flight):
            if runs:
                self._shell.send(worker, Stop())

    # -- the transitions -------------------------------------------------------------------------------------------

    def _started(self, event: Started, now: float) -> None:
        self._leases.began(event.worker, now)
        self._supervisor.started(event.worker)
        self._status[event.worker] = WorkerStatus.READY
        self._shell.learn(event)
        if not self._leases.in_flight[event.worker]:
            self._top_up(event.worker)  # It was brought up again without a lease: others may have taken its numbers.

    def _batch(self, event: Batch, now: float) -> None:
        self._shell.keep(event)
        chunk, part = event.chunk, event.chunk.part
        if part is not None and not part.is_last:
            return
        # A copy: the lengths outlive the chunk, and as a view they would hold its memory.
        lengths = np.array([part.episode_length] if part else chunk.lengths, np.int64)
        runs = contiguous_ranges(chunk.numbers)
        self._supervisor.progressed()
        self._leases.finished(event.worker, runs, now)
        start = 0
        for numbers in runs:
            self.plan.complete(numbers, lengths[start : start + len(numbers)])
            start += len(numbers)
        last = runs[-1][-1]
        partition = self.plan.partition(last)
        self._highest[partition] = max(last, self._highest.get(partition, -1))
        self._announce()
        self._top_up(event.worker)
        self._top_up_idle()

    def _failed(self, event: Failed, now: float) -> None:
        del now
        verdict = Verdict()
        # One of an older call has ignored this call's `Start`, for what that call left may be in any state.
        if event.generation == self._generation:
            verdict = self._supervisor.failed(event, self._leases.in_flight[event.worker])
        self._bring_up(event.worker, verdict, died=False)

    def _died(self, event: Died, now: float) -> None:
        del now
        starting = self._status[event.worker] is WorkerStatus.STARTING
        verdict = self._supervisor.died(event, self._leases.in_flight[event.worker], starting=starting)
        self._bring_up(event.worker, verdict, died=True)

    def _bring_up(self, worker: int, verdict: Verdict, *, died: bool) -> None:
        """Free a worker's numbers and bring it up again, or let the call fail."""
        self._leases.isolate(worker, verdict.isolated)
        if verdict.notice:
            self._shell.warn(verdict.notice)
        if verdict.skipped is not None:
            number, reason = verdict.skipped
            self._leases.remove(worker, [range(number, number + 1)])
            self.plan.complete(range(number, number + 1), np.zeros(1, np.int64))
            self._shell.skip(number, reason)
        self._leases.release(worker)
        if verdict.error is not None:
            self.stopping = self._has_failed = True
            self._shell.fail(verdict.error)
            return
        self._status[worker] = WorkerStatus.STARTING
        self._shell.bring_up(worker, self._start(), died=died)
        self._announce()
        self._top_up_idle()

    # -- leases ----------------------------------------------------------------------------------------------------

    def _announce(self) -> None:
        """Let every worker that has numbers above a new last one needed drop them."""
        last = self.plan.last_needed()
        if last is None or last == self._announced or self.plan.n_partitions > 1:
            return
        self._announced = last
        for worker in range(len(self._status)):
            self._drop_above(worker, last)

    def _drop_above(self, worker: int, last: int) -> None:
        if self._leases.drop_above(worker, last):
            self._shell.send(worker, Continue((), last))

    def _top_up_idle(self) -> None:
        for worker, runs in enumerate(self._leases.in_flight):
            if not runs:
                self._top_up(worker)

    def _top_up(self, worker: int) -> None:
        """Lease a worker more numbers, if it is ready for them."""
        if self.stopping or self._status[worker] is not WorkerStatus.READY:
            return
        if lease := self._leases.lease(worker, buffer_is_full=self._buffer_is_full):
            self._shell.send(worker, Continue(lease, self.plan.last_needed()))

    _TABLE: ClassVar[dict[tuple[WorkerStatus, type], Callable[[Any, Any, float], None]]] = {
        (WorkerStatus.STARTING, Started): _started,
        (WorkerStatus.STARTING, Failed): _failed,
        (WorkerStatus.STARTING, Died): _died,
        (WorkerStatus.READY, Batch): _batch,
        (WorkerStatus.READY, Failed): _failed,
        (WorkerStatus.READY, Died): _died,
    }
