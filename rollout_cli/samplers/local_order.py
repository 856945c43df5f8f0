"""Whose turn it is where all workers share a process, and episodes in the order of their numbers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np

from rollout_cli.chunk import Chunk, concatenate
from rollout_cli.samplers.plan import PlanState
from rollout_cli.samplers.ranges import contiguous_ranges, with_lengths


class LocalOrder:
    """Sees to it that episodes are handed on in order: those that came too early are held until their turn.

    Args:
        state: The plan under way.
        base: The episode number of offset 0.
    """

    def __init__(self, state: PlanState, base: int) -> None:
        self._state, self._base = state, base
        self._next = [base + state.first_of_lane(lane) for lane in range(state.n_lanes)]
        self._held: dict[int, Chunk] = {}
        self._skipped: set[int] = set()
        self._lane = 0

    def skip(self, number: int) -> None:
        """Go on without an episode."""
        self._skipped.add(number)
        self._lane = self._state.lane(number - self._base)

    def next_part(self, chunk: Chunk | None) -> Chunk | None:
        """Return the episodes that come next, up to the first gap and the plan's end; None where there are none.

        Args:
            chunk: What ended, of one lane; None where only a skipped episode may let others go on.
        """
        if chunk is not None:
            self._lane = self._state.lane(int(chunk.numbers[0]) - self._base)
            in_order = chunk.numbers[0] == self._next[self._lane] and np.all(np.diff(chunk.numbers) == 1)
            if in_order and not self._held and not self._skipped:
                return self._cut(chunk)
            self._held |= {number: chunk.episodes(at, at + 1) for at, number in enumerate(chunk.numbers.tolist())}
        ready = list(self._released())
        return self._cut(concatenate(ready)) if ready else None

    def _released(self) -> Iterator[Chunk]:
        number = self._next[self._lane]
        while number in self._held or number in self._skipped:
            if number in self._held:
                yield self._held.pop(number)
            self._skipped.discard(number)
            number += 1
        self._next[self._lane] = number

    def _cut(self, chunk: Chunk) -> Chunk | None:
        """Return the episodes up to the plan's end."""
        last = self._state.last_of_lane(self._lane)
        count = chunk.n_episodes
        if last is not None:
            count = int(np.searchsorted(chunk.numbers, self._base + last, side="right"))
        self._next[self._lane] = max(self._next[self._lane], int(chunk.numbers[-1]) + 1)
        return chunk.episodes(0, count) if count else None


class Turns:
    """Whose turn it is, so that episodes come in the order of their numbers.

    Attributes:
        state: The plan under way.
        worker: Whose turn it is.
        open: The numbers that it was leased and that did not end.

    Args:
        state: The plan under way.
        base: The episode number of offset 0.
        n_workers: How many workers there are.
        by_worker: Whether offset i belongs to worker i % n_workers.
        block: How many offsets a worker runs at once.
    """

    def __init__(self, state: PlanState, base: int, n_workers: int, *, by_worker: bool, block: int) -> None:
        self.state = state
        self.open: set[int] = set()
        self._base, self._n_workers = base, n_workers
        self._by_worker = by_worker and state.n_lanes == 1
        self.worker = state.first_of_lane(0) % n_workers if self._by_worker else 0
        self._block = 1 if self._by_worker else block
        self._again: deque[list[int]] = deque()
        self._skipped: list[tuple[int, str]] = []
        self._skip_ended_lanes()

    def lease(self) -> list[int]:
        """Lease the next numbers to the worker whose turn it is: those to be run again, or else the plan's next."""
        if self._again:
            numbers = self._again.popleft()
        else:
            offsets = self.state.lease(self.worker, self._block)
            numbers = [self._base + offset for run in offsets for offset in run]
        self.open = set(numbers)
        return numbers

    def settle(self, finished: Sequence[tuple[int, int]]) -> None:
        """Settle (number, length) pairs, and pass the turn on where nothing is left and the next one is another's."""
        if not finished:
            return
        numbers, lengths = np.array(finished, np.int64).T
        for run, of_run in with_lengths(contiguous_ranges(numbers - self._base), lengths):
            self.state.settle(run, of_run)
        self.open.difference_update(numbers.tolist())
        if self.open or self._again:
            return
        if self.state.n_lanes > 1:
            self._skip_ended_lanes()
        elif self._by_worker:
            self.worker = (self.worker + 1) % self._n_workers

    def _skip_ended_lanes(self) -> None:
        """Where each worker has a lane, let the first one run that has anything left to be leased."""
        last = self.state.n_lanes - 1
        while self.worker < last and self.state.next_offset(self.worker) is None:
            self.worker += 1

    def go_on(self, *, skipped: int | None, reason: str, alone: Sequence[int]) -> None:
        """After a failure, let what is open be run again.

        Args:
            skipped: A number that is not.
            reason: Why.
            alone: Numbers that are run one at a time, before the others.
        """
        rest = sorted(self.open.difference(alone, () if skipped is None else (skipped,)))
        self._again.extendleft([rest] if rest else [])
        self._again.extendleft([number] for number in sorted(alone, reverse=True))
        if skipped is not None:
            self._skipped.append((skipped, reason))
            self.open = {skipped}
            self.settle([(skipped, 0)])

    def skipped(self) -> list[tuple[int, str]]:
        """Return the numbers that were skipped since this was asked last, and why."""
        skipped, self._skipped = self._skipped, []
        return skipped
