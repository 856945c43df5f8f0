"""The sampler's state machine: what a sampler does when a worker sends a message, or dies.

It knows no process and no clock: it takes events and times. A worker is starting until it answers `Started` to the
current generation; then it is ready, and gets leases. After `Failed` or a death it is brought up again with its whole
history, and so is starting again. ARCHITECTURE.md has the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from rollout_cli.errors import RolloutError
from rollout_cli.samplers.leases import Leases
from rollout_cli.samplers.messages import Batch, Continue, Failed, Start, Started, Stop, Update
from rollout_cli.samplers.plan import PlanState, contiguous_ranges
from rollout_cli.samplers.pool import Died, Event, Pool
from rollout_cli.samplers.reorder import ReorderBuffer
from rollout_cli.samplers.supervision import Supervisor, Verdict
from rollout_cli.samplers.updates import UpdateLog


@dataclass(slots=True, eq=False)
class SamplerMachine:
    """One call of a sampler."""

    generation: int
    pool: Pool
    plan: PlanState
    buffer: ReorderBuffer
    leases: Leases
    updates: UpdateLog
    supervisor: Supervisor
    warn: Callable[[str], None]  # Called with one line for each fault that does not end the call.
    first_number: int = 0  # Of the call; one that resumes an earlier run has a higher one.
    started: Started | None = None  # What the first worker that was ready knows of its environment and policy.
    skipped: dict[int, str] = field(default_factory=dict)  # By number, why an episode is left out.
    stopping: bool = False  # Whether the call is asked to end early, or has failed: no more numbers are leased.
    failure: RolloutError | None = None  # What ends the call, once the episodes before it were handed on.
    _n_rebuilt: int = 0  # How often a worker was brought up again.
    _ready: set[int] = field(default_factory=set)
    _highest: dict[int, int] = field(default_factory=dict)  # By partition, the highest number that ended.

    def begin(self, n_known: int, changes: Sequence[Update]) -> None:
        """Send every worker its `Start` with its first lease, without waiting for answers.

        The first `n_known` were started by an earlier call, and get its `changes`; new ones get their whole history.
        """
        for worker in range(len(self.leases.in_flight)):
            is_new = worker >= n_known
            if is_new:
                self.pool.start(worker)
            updates = self.updates.history(worker) if is_new else tuple(changes[worker : worker + 1])
            lease, salt = self.leases.lease(worker, buffer_is_full=False), (self.generation, self.first_number)
            self.pool.send(worker, Start(self.generation, updates, lease, self.plan.stride, salt, rebuild=is_new))

    def handle(self, event: Event, now: float) -> None:
        """Take what happened; `now` is in seconds on any one clock.

        After a failure finished episodes are still handed on, but nobody is brought up again.
        """
        match event:
            case Started(worker, generation) if generation == self.generation and self.failure is None:
                self.leases.began(worker, now)
                self.supervisor.false_starts.pop(worker, None)
                self._ready.add(worker)
                self.started = self.started or event
            case Batch(_, generation) if generation == self.generation:
                self._batch(event, now)
            case Failed(worker, generation, error, numbers) if self.failure is None:
                # One of an older call has ignored this call's `Start`, for what that call left may be in any state.
                is_old = generation != self.generation
                in_flight = self.leases.in_flight[worker]
                verdict = Verdict() if is_old else self.supervisor.failed(error, numbers, in_flight)
                self._bring_up(worker, verdict, died=False)
            case Died(worker) if self.failure is None:
                in_flight, starting = self.leases.in_flight[worker], worker not in self._ready
                self._bring_up(worker, self.supervisor.died(event, in_flight, starting=starting), died=True)

    def top_up_idle(self) -> None:
        """Lease numbers to workers that have none: to be called after events, and after the buffer was emptied."""
        for worker, runs in enumerate(self.leases.in_flight):
            if not runs:
                self._top_up(worker)

    def stop(self) -> None:
        """Begin no more numbers, and drop those above the highest of their partition that ended; the others run on.

        So nothing that ended is lost for want of an episode before it, if that ends soon; `stopped` says when.
        """
        self.stopping = True
        for worker, runs in enumerate(self.leases.in_flight):
            last = self._highest.get(self.plan.partition(runs[0].start), -1) if runs else -1
            if self.leases.drop_above(worker, last):
                self.pool.send(worker, Continue((), last))

    @property
    def stopped(self) -> bool:
        """Return whether the call was asked to end and nothing runs any more that could still be handed on."""
        return self.stopping and not any(self.leases.in_flight)

    def end(self) -> None:
        """End the call: every worker that has numbers stops."""
        for worker, runs in enumerate(self.leases.in_flight):
            if runs:
                self.pool.send(worker, Stop())

    def _batch(self, event: Batch, now: float) -> None:
        self.buffer.add(event.chunk)
        chunk = event.chunk
        if not chunk.completes:
            return
        # A copy: the lengths outlive the chunk, and as a view they would hold its memory.
        lengths = np.array(chunk.episode_lengths)
        runs = contiguous_ranges(chunk.numbers)
        self.supervisor.n_skipped = 0
        self.leases.finished(event.worker, runs, now)
        for numbers in runs:
            done, lengths = np.split(lengths, [len(numbers)])
            self.plan.complete(numbers, done)
        last = runs[-1][-1]
        partition = self.plan.partition(last)
        self._highest[partition] = max(last, self._highest.get(partition, -1))
        self._top_up(event.worker)

    def _bring_up(self, worker: int, verdict: Verdict, *, died: bool) -> None:
        """Free a worker's numbers and bring it up again, or let the call fail."""
        self.leases.isolate(worker, verdict.isolated)
        if verdict.notice:
            self.warn(verdict.notice)
        if verdict.skipped is not None:
            number, reason = verdict.skipped
            self.leases.remove(worker, [range(number, number + 1)])
            self.plan.complete(range(number, number + 1), np.zeros(1, np.int64))
            self.buffer.skip(number)
            self.skipped[number] = reason
        self.leases.release(worker)
        self._ready.discard(worker)
        if verdict.error is not None:
            self.stopping, self.failure = True, verdict.error
            return
        if died:
            self.pool.start(worker)
        self._n_rebuilt += 1
        history, salt = self.updates.history(worker), (self.generation, self.first_number, self._n_rebuilt)
        self.pool.send(worker, Start(self.generation, history, (), self.plan.stride, salt, rebuild=True))

    def _top_up(self, worker: int) -> None:
        """Lease a worker more numbers, if it is ready for them."""
        if self.stopping or worker not in self._ready:
            return
        if lease := self.leases.lease(worker, buffer_is_full=self.buffer.is_full):
            self.pool.send(worker, Continue(lease))
