"""The sampler's state machine: what a sampler does when a worker sends a message, or dies.

It knows no process and no clock: it takes events and times, and answers with instructions. A worker is
starting until it answers `Started` to the current generation; then it is ready, and gets leases. After
`Failed` or a death it is brought up again with its whole history, and so is starting again. ARCHITECTURE.md
has the table.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rollout_cli.episodes.spaces import Array
from rollout_cli.errors import RolloutError
from rollout_cli.samplers.leases import Leases, LeaseSize, Pace
from rollout_cli.samplers.messages import (
    FLUSH_ROWS,
    Batch,
    Continue,
    Failed,
    Judged,
    Start,
    Started,
    Stop,
    ToWorker,
    Update,
)
from rollout_cli.samplers.plan import LengthEstimate, Plan, PlanState, contiguous_ranges
from rollout_cli.samplers.pool import Died, Event, Warn
from rollout_cli.samplers.reorder import MOST_BYTES, ReorderBuffer
from rollout_cli.samplers.supervision import Decision, Supervisor
from rollout_cli.samplers.updates import UpdateLog


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Start a worker that does not run."""

    worker: int


@dataclass(frozen=True, slots=True)
class Send:
    """Send a command to a worker."""

    worker: int
    command: ToWorker


@dataclass(frozen=True, slots=True)
class Fail:
    """End the call with this error, once the episodes before it were handed on."""

    error: RolloutError


Instruction = StartWorker | Send | Warn | Fail

MOST_STORY = 200
"""Number of the last events and instructions that an internal error of a sampler shows."""

MOST_UNMET = 1_000
"""After so many episodes without an info that `keep` names, the name is taken to be wrong."""


class SamplerMachine:
    """One call of a sampler.

    Args:
        generation: The number of the call.
        plan: Which episodes it runs; None where its workers only start.
        updates: All that workers were given so far.
        supervisor: Decides about deaths and failures.
        n_workers: How many workers there may be.
        n_running: How many of them, the lowest ones, were started by earlier calls.
        is_parallel: Whether all of them are started, also where one worker could run everything.
        block: The least number of episodes worth leasing.
        lease_size: How far ahead of its need a worker is leased numbers.
        most_bytes: How much the episodes may hold that wait for one before them.
        first_number: Of the call; one that resumes an earlier run has a higher one.
        lengths: Of the episodes of earlier calls; this call's are added.
        paces: Of the workers in an earlier call.
        now: The time, in seconds on any one clock.

    Attributes:
        plan: Which episodes it runs.
        story: The last events and instructions, oldest first, a line each, without chunks or user objects.
        buffer: Has the chunks whose turn it is, and those that wait for one before them.
    """

    def __init__(
        self,
        generation: int,
        plan: Plan | None,
        updates: UpdateLog,
        supervisor: Supervisor,
        *,
        n_workers: int,
        n_running: int = 0,
        is_parallel: bool = True,
        block: int = 1,
        lease_size: LeaseSize | None = None,
        most_bytes: int = MOST_BYTES,
        first_number: int = 0,
        lengths: LengthEstimate | None = None,
        paces: Sequence[Pace] = (),
        now: float = 0.0,
    ) -> None:
        self.generation = generation
        self.plan = plan
        self._updates = updates
        self._supervisor = supervisor
        self._first_number = first_number
        self._plan = PlanState(
            plan, n_workers=n_workers, by_worker=updates.by_worker, block=block, lengths=lengths
        )
        self.buffer = ReorderBuffer(self._plan, most_bytes)
        self._n_running = n_running
        # One that was started for an earlier call takes part in each later one, so that it misses no update.
        if self._plan.is_shared and not is_parallel:
            n_workers = 1
        self.n_workers = max(n_running, n_workers)
        self._leases = Leases(
            self._plan, n_workers=self.n_workers, size=lease_size, block=block, paces=paces, now=now
        )
        self._due_rows = dict.fromkeys(range(self.n_workers), FLUSH_ROWS)  # As each worker was told.
        self._skipped: dict[int, str] = {}  # By number, why an episode is left out.
        # Whether it was asked to end early, or has failed: no more numbers are leased.
        self._is_ending = False
        self._has_failed = False
        self._n_rebuilt = 0  # How often a worker was brought up again.
        self._ready: set[int] = set()
        self._highest_ended: dict[int, int] = {}  # By partition, the highest number that ended.
        self._n_ended = 0
        self.story: deque[str] = deque(maxlen=MOST_STORY)
        # By name, the error of an info that no episode has had; None before the first judgement.
        self._unmet: Mapping[str, RolloutError] | None = None

    def begin(self, changes: Sequence[Update] = ()) -> list[Instruction]:
        """Send every worker its `Start` with its first lease, without waiting for answers.

        Those of earlier calls get the call's `changes`, by worker; new ones get their whole history.
        """
        self._supervisor.begin_call()
        instructions: list[Instruction] = []
        for worker in range(self.n_workers):
            is_new = worker >= self._n_running
            if is_new:
                instructions.append(StartWorker(worker))
                updates = self._updates.history(worker)
            else:
                # No change is no update: after each update, a worker watches what is read until an episode
                # ends.
                updates = tuple(change for change in changes[worker : worker + 1] if change != Update())
            lease = self._leases.lease(worker, buffer_is_full=False)
            salt = (self.generation, self._first_number)
            start = Start(
                self.generation, updates, lease, self._plan.stride, salt, self._due(worker), rebuild=is_new
            )
            instructions.append(Send(worker, start))
        return self._noted(instructions)

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Take what happened.

        After a failure finished episodes are still handed on, but no worker is restarted.
        """
        self.story.append(_entry(event))  # Before: handling it may raise.
        return self._noted(self._handle(event, now))

    def _handle(self, event: Event, now: float) -> list[Instruction]:
        match event:
            case Warn():
                return [event]
            case Batch(_, generation) if generation == self.generation:
                return self._batch(event, now)
            case Judged(_, generation) if generation == self.generation:
                return self._judged(event, now)
            case Started(worker, generation) if generation == self.generation and not self._has_failed:
                self._leases.began(worker, now)
                self._supervisor.false_starts.pop(worker, None)
                self._ready.add(worker)
            case Failed(worker, generation, error, numbers) if not self._has_failed:
                # One of an older call has ignored this call's `Start`: it may be in any state. And nobody
                # needs what lies above a plan's end.
                decision = Decision()
                if generation == self.generation and not self._has_all:
                    in_flight = self._leases.in_flight[worker]
                    decision = self._supervisor.failed(error, numbers, in_flight)
                return self._recover(worker, decision)
            case Died(worker) if not self._has_failed:
                decision = Decision()
                if not self._has_all:
                    in_flight = self._leases.in_flight[worker]
                    decision = self._supervisor.died(event, in_flight, starting=worker not in self._ready)
                return self._recover(worker, decision, StartWorker(worker))
        return []

    def top_up(self) -> list[Instruction]:
        """Lease numbers to workers that have none: to be called after events, and after chunks were taken."""
        instructions: list[Instruction] = []
        for worker, runs in enumerate(self._leases.in_flight):
            if not runs:
                instructions += self._lease(worker)
        return self._noted(instructions)

    def stop(self) -> list[Instruction]:
        """Begin no more numbers; drop those above their partition's highest ended one; the others run on.

        So nothing that ended is lost for want of an episode before it, if that ends soon; `is_over` says
        when. Again it does nothing.
        """
        instructions: list[Instruction] = []
        if self._is_ending:
            return instructions
        for worker, runs in enumerate(self._leases.in_flight):
            last = -1
            if runs:
                last = self._highest_ended.get(self._plan.partition(runs[0].start), -1)
            if self._leases.drop_above(worker, last):
                instructions.append(Send(worker, Continue((), last)))
        self._is_ending = True
        return self._noted(instructions)

    def end(self) -> list[Instruction]:
        """End the call: every worker that has numbers stops."""
        return [Send(worker, Stop()) for worker, runs in enumerate(self._leases.in_flight) if runs]

    def _noted(self, instructions: list[Instruction]) -> list[Instruction]:
        self.story.extend(map(_entry, instructions))
        return instructions

    @property
    def paces(self) -> list[Pace]:
        """How fast each worker runs episodes, for the next call."""
        return self._leases.paces

    # -- results -----------------------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        """Whether every episode of the plan has ended."""
        return self._plan.done

    @property
    def _has_all(self) -> bool:
        """Whether there was a plan, every episode of which has ended."""
        return self.plan is not None and self.is_done

    @property
    def is_over(self) -> bool:
        """Whether every episode has ended, or the call was to stop and none runs that could be handed on."""
        return self.is_done or (self._is_ending and not any(self._leases.in_flight))

    @property
    def skipped(self) -> dict[int, str]:
        """By number, why an episode was left out; without those behind the end of what was handed on."""
        return {number: why for number, why in sorted(self._skipped.items()) if self.buffer.is_past(number)}

    # -- transitions -------------------------------------------------------------------------------

    def _batch(self, event: Batch, now: float) -> list[Instruction]:
        self.buffer.add(event.chunk)
        # A copy: the lengths outlive the chunk, and as a view they would hold its memory.
        return self._ended(event.worker, event.chunk.numbers, np.array(event.chunk.lengths), now)

    def _judged(self, event: Judged, now: float) -> list[Instruction]:
        if self._unmet is None:
            self._unmet = event.unmet
        self._unmet = {name: error for name, error in self._unmet.items() if name in event.unmet}
        for numbers in contiguous_ranges(event.rejected):
            self.buffer.pass_over(numbers)
        return self._ended(event.worker, event.rejected, np.zeros(len(event.rejected), np.int64), now)

    def _ended(self, worker: int, ended: Array, lengths: Array, now: float) -> list[Instruction]:
        """Count episodes that ended, of rising numbers; those that were rejected have no length."""
        runs = contiguous_ranges(ended)
        if not runs:
            return []
        self._supervisor.n_skipped = 0
        self._n_ended += len(ended)
        self._leases.finished(worker, runs, now)
        for numbers in runs:
            done, lengths = np.split(lengths, [len(numbers)])
            self._plan.complete(numbers, done)
        last = runs[-1][-1]
        partition = self._plan.partition(last)
        self._highest_ended[partition] = max(last, self._highest_ended.get(partition, -1))
        # A run that continues another one may be too short for an info that is rare.
        is_whole = self._plan.done and not self._first_number
        if self._unmet and not self._has_failed and (is_whole or self._n_ended >= MOST_UNMET):
            self._is_ending = self._has_failed = True
            return [Fail(next(iter(self._unmet.values())))]
        return self._lease(worker)

    def _recover(self, worker: int, decision: Decision, *first: Instruction) -> list[Instruction]:
        """Free a worker's numbers and bring it up again, or let the call fail."""
        instructions: list[Instruction] = []
        if decision.notice:
            instructions.append(Warn(decision.notice))
        self._leases.isolate(worker, decision.isolated)
        if decision.skipped is not None:
            number, reason = decision.skipped
            numbers = range(number, number + 1)
            self._leases.remove(worker, [numbers])
            self._plan.complete(numbers, np.zeros(1, np.int64))
            self.buffer.pass_over(numbers)
            self._skipped[number] = reason
        self._leases.release(worker)
        self._ready.discard(worker)
        if decision.error is not None:
            self._is_ending = self._has_failed = True
            return [*instructions, Fail(decision.error)]
        self._n_rebuilt += 1
        history = self._updates.history(worker)
        salt = (self.generation, self._first_number, self._n_rebuilt)
        start = Start(self.generation, history, (), self._plan.stride, salt, self._due(worker), rebuild=True)
        return [*instructions, *first, Send(worker, start)]

    def _lease(self, worker: int) -> list[Instruction]:
        """Lease a worker more numbers, if it is ready for them."""
        if self._is_ending or worker not in self._ready:
            return []
        before = self._due_rows[worker]
        lease = self._leases.lease(worker, buffer_is_full=self.buffer.is_full)
        if not lease and self._due(worker) * 2 > before:
            self._due_rows[worker] = before
            return []
        return [Send(worker, Continue(lease, None, self._due(worker)))]

    def _due(self, worker: int) -> int:
        """Return how many finished rows a worker is to send at once: half of its share of the missing ones.

        So estimates improve while a short call runs, and its end is noticed as soon as it is reached.
        """
        missing = self._plan.missing_steps
        if missing is not None:
            self._due_rows[worker] = min(FLUSH_ROWS, max(1, missing // (2 * self.n_workers)))
        return self._due_rows[worker]


def _entry(item: Event | Instruction) -> str:
    """Describe an event or instruction by its kind, worker and episode numbers."""
    what = item.command if isinstance(item, Send) else item
    entry = f"{type(what).__name__} {getattr(item, 'worker', '')}"
    if isinstance(what, Batch):
        entry += f" {what.chunk.numbers[:1]}"  # Empty for an empty chunk.
    return entry + f" {getattr(what, 'lease', '')}"[:100]
