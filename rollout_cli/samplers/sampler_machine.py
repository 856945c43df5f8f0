"""SamplerMachine: the state machine that handles the messages and deaths of a sampler's workers.

It uses no processes and no clock: its inputs are events and times, its outputs are instructions. A worker is
"starting" until it sends `Started` for the current generation; then it is "ready" and receives leases. After
`Failed` or a death it is rebuilt with its complete history of updates, and is "starting" again. The table is
in ARCHITECTURE.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rollout_cli.episodes.spaces import Array
from rollout_cli.errors import RolloutError
from rollout_cli.samplers.facts import WorkerFacts
from rollout_cli.samplers.leases import Leases, LeaseSize, Pace
from rollout_cli.samplers.messages import (
    FLUSH_ROWS,
    Batch,
    Compiled,
    Continue,
    Failed,
    Judged,
    Reported,
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
    """Start a worker that is not running."""

    worker: int


@dataclass(frozen=True, slots=True)
class Send:
    """Send a command to a worker."""

    worker: int
    command: ToWorker


@dataclass(frozen=True, slots=True)
class Fail:
    """End the call with this error after the episodes before it were yielded."""

    error: RolloutError


Instruction = StartWorker | Send | Warn | Fail

MOST_STORY = 200
"""Number of recent events and instructions that a sampler's internal error shows."""

MOST_UNMET = 1_000
"""Number of episodes without an info that `keep` names after which the call fails: the name must be wrong."""


class SamplerMachine:
    """One call of a sampler.

    Args:
        generation: The number of the call.
        plan: The episodes to run; None if the workers only start.
        updates: Policies, environments and updates of all workers so far.
        supervisor: Decides about deaths and failures.
        facts: What the workers tell about environment and policy is added to it.
        n_workers: Maximum number of workers.
        n_running: Number of workers that earlier calls started, from worker 0 up.
        is_parallel: Whether to start all workers even if one worker could run every episode.
        block: Minimum number of episodes in a lease.
        lease_size: How much work to lease to a worker in advance.
        most_bytes: Maximum bytes of episodes that wait for an earlier episode.
        first_number: The call's first episode number; above 0 if the call resumes an earlier run.
        lengths: Episode lengths of earlier calls; this call's lengths are added.
        paces: Pace of each worker in an earlier call.
        now: The time in seconds; every time passed later must be of the same clock.

    Attributes:
        plan: The episodes to run.
        story: The last events and instructions, oldest first, one line each, without chunks or user objects.
        buffer: The finished chunks that were not yielded yet.
    """

    def __init__(
        self,
        generation: int,
        plan: Plan | None,
        updates: UpdateLog,
        supervisor: Supervisor,
        facts: WorkerFacts,
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
        self._facts = facts
        self._first_number = first_number
        self._plan = PlanState(
            plan, n_workers=n_workers, by_worker=updates.by_worker, block=block, lengths=lengths
        )
        self.buffer = ReorderBuffer(self._plan, most_bytes)
        self._n_running = n_running
        # A worker that an earlier call started takes part in every later call, so that it gets every update.
        if self._plan.is_shared and not is_parallel:
            n_workers = 1
        self.n_workers = max(n_running, n_workers)
        self._leases = Leases(
            self._plan, n_workers=self.n_workers, size=lease_size, block=block, paces=paces, now=now
        )
        self._due_rows = dict.fromkeys(range(self.n_workers), FLUSH_ROWS)  # As sent to each worker.
        self._skipped: dict[int, str] = {}  # The reason for each skipped episode, by number.
        # Whether the call was stopped or has failed: no more numbers are leased.
        self._is_ending = False
        self._has_failed = False
        self._n_rebuilt = 0  # Number of times that a worker was rebuilt.
        self._ready: set[int] = set()
        self._highest_ended: dict[int, int] = {}  # The highest number that ended, by partition.
        self._n_ended = 0
        self.story: deque[str] = deque(maxlen=MOST_STORY)
        # The error for each info that no episode has had, by name; None before the first `Judged`.
        self._unmet: Mapping[str, RolloutError] | None = None

    def begin(self, changes: Sequence[Update] = ()) -> list[Instruction]:
        """Return the instructions that send every worker its `Start` with a first lease.

        Workers of earlier calls receive this call's `changes` (one per worker); new workers receive their
        complete history of updates.
        """
        self._supervisor.begin_call()
        instructions: list[Instruction] = []
        for worker in range(self.n_workers):
            is_new = worker >= self._n_running
            if is_new:
                instructions.append(StartWorker(worker))
                updates = self._updates.history(worker)
            else:
                # Send no empty update: after an update, a worker records the files that are read until an
                # episode ends.
                updates = tuple(change for change in changes[worker : worker + 1] if change != Update())
            lease = self._leases.lease(worker, buffer_is_full=False)
            salt = (self.generation, self._first_number)
            start = Start(
                self.generation, updates, lease, self._plan.stride, salt, self._due(worker), rebuild=is_new
            )
            instructions.append(Send(worker, start))
        return self._noted(instructions)

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Handle an event; return the resulting instructions.

        After a failure finished episodes are still accepted, but no worker is restarted.
        """
        self.story.append(_entry(event))  # First, because handling the event may raise.
        if isinstance(event, Started | Reported) and event.generation == self.generation:
            self._facts.add(event)
        return self._noted(self._handle(event, now))

    def _handle(self, event: Event, now: float) -> list[Instruction]:
        match event:
            case Warn():
                return [event]
            case Batch() | Judged() if event.generation == self.generation:
                return self._batch(event, now) if isinstance(event, Batch) else self._judged(event, now)
            case Started(worker, generation) if generation == self.generation and not self._has_failed:
                self._leases.started(worker, now, compiles=event.report.compiles)
                self._supervisor.started(worker)
                self._ready.add(worker)
            case Compiled(worker, generation) if generation == self.generation:
                self._leases.started(worker, now)
                return self._lease(worker)
            case Failed(worker, generation, error, numbers) if not self._has_failed:
                # After a failure in an older call the worker has ignored this call's `Start`: rebuild it. A
                # complete plan needs no decision either: its remaining episodes are not needed.
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
        """Lease numbers to workers without any; call it after events and after chunks left the buffer."""
        instructions: list[Instruction] = []
        for worker, runs in enumerate(self._leases.in_flight):
            if not runs:
                instructions += self._lease(worker)
        return self._noted(instructions)

    def stop(self) -> list[Instruction]:
        """Lease no more numbers, and drop running episodes above the highest ended one of their partition.

        The other running episodes continue until `is_over`, because finished episodes wait for them. A second
        call does nothing.
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
        """Return the instructions that end the call: every worker with leased numbers stops."""
        return [Send(worker, Stop()) for worker, runs in enumerate(self._leases.in_flight) if runs]

    def _noted(self, instructions: list[Instruction]) -> list[Instruction]:
        self.story.extend(map(_entry, instructions))
        return instructions

    @property
    def paces(self) -> list[Pace]:
        """Pace of each worker, for the next call."""
        return self._leases.paces

    # -- results -----------------------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        """Whether every episode of the plan has ended."""
        return self._plan.done

    @property
    def _has_all(self) -> bool:
        """Whether the call has a plan and every episode of it has ended."""
        return self.plan is not None and self.is_done

    @property
    def is_over(self) -> bool:
        """Whether every episode has ended, or the call is stopping and no needed episode still runs."""
        return self.is_done or (self._is_ending and not any(self._leases.in_flight))

    @property
    def skipped(self) -> dict[int, str]:
        """Reasons for skipped episodes, by number, up to the end of the yielded episodes."""
        return {number: why for number, why in sorted(self._skipped.items()) if self.buffer.is_past(number)}

    # -- transitions -------------------------------------------------------------------------------

    def _batch(self, event: Batch, now: float) -> list[Instruction]:
        self.buffer.add(event.chunk)
        # A copy, since the lengths outlive the chunk and a view would keep the chunk's memory alive.
        return self._ended(event.worker, event.chunk.numbers, np.array(event.chunk.lengths), now)

    def _judged(self, event: Judged, now: float) -> list[Instruction]:
        if self._unmet is None:
            self._unmet = event.unmet
        self._unmet = {name: error for name, error in self._unmet.items() if name in event.unmet}
        for numbers in contiguous_ranges(event.rejected):
            self.buffer.pass_over(numbers)
        return self._ended(event.worker, event.rejected, np.zeros(len(event.rejected), np.int64), now)

    def _ended(self, worker: int, ended: Array, lengths: Array, now: float) -> list[Instruction]:
        """Count ended episodes, in rising order; rejected episodes have length 0."""
        runs = contiguous_ranges(ended)
        if not runs:
            return []
        self._supervisor.episode_ended()
        self._n_ended += len(ended)
        self._leases.finished(worker, runs, now)
        for numbers in runs:
            done, lengths = np.split(lengths, [len(numbers)])
            self._plan.complete(numbers, done)
        last = runs[-1][-1]
        partition = self._plan.partition(last)
        self._highest_ended[partition] = max(last, self._highest_ended.get(partition, -1))
        # A resumed run may be too short for a rare info.
        is_whole = self._plan.done and not self._first_number
        if self._unmet and not self._has_failed and (is_whole or self._n_ended >= MOST_UNMET):
            self._is_ending = self._has_failed = True
            return [Fail(next(iter(self._unmet.values())))]
        return self._lease(worker)

    def _recover(self, worker: int, decision: Decision, *first: Instruction) -> list[Instruction]:
        """Release a worker's numbers; then rebuild the worker, or fail the call if the decision has an error."""
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
        """Lease more numbers to a worker that is ready for them."""
        if self._is_ending or worker not in self._ready:
            return []
        before = self._due_rows[worker]
        lease = self._leases.lease(worker, buffer_is_full=self.buffer.is_full)
        if not lease and self._due(worker) * 2 > before:
            self._due_rows[worker] = before
            return []
        return [Send(worker, Continue(lease, None, self._due(worker)))]

    def _due(self, worker: int) -> int:
        """Return the number of finished rows that a worker sends at once: half of its share of missing steps.

        This improves estimates during short calls, and the end of the plan is noticed early.
        """
        missing = self._plan.remaining_steps
        if missing is not None:
            self._due_rows[worker] = min(FLUSH_ROWS, max(1, missing // (2 * self.n_workers)))
        return self._due_rows[worker]


def _entry(item: Event | Instruction) -> str:
    """Return a line about an event or instruction: its type, worker and episode numbers."""
    what = item.command if isinstance(item, Send) else item
    entry = f"{type(what).__name__} {getattr(item, 'worker', '')}"
    if isinstance(what, Batch):
        entry += f" {what.chunk.numbers[:1]}"  # Empty for an empty chunk.
    return entry + f" {getattr(what, 'lease', '')}"[:100]
