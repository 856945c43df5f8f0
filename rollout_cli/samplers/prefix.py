"""PrefixSum: where a run of at least so many steps ends, from lengths that become known in any order."""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(slots=True)
class _Run:
    """Lengths of the episodes `start` to `stop - 1`, and their sum."""

    start: int
    stop: int
    lengths: Array
    steps: int


_start = attrgetter("start")


class PrefixSum:
    """Finds the shortest prefix of first, first + 1, … whose lengths sum to a target.

    As soon as the known lengths of the episodes up to some j sum to the target, the lowest such j is the last one
    needed so far. What is unknown below it still runs and may lower it; nothing above it can belong to the prefix.

    Lengths come in runs of numbers without a gap, and a run costs the same however many short episodes it holds.

    Args:
        target: The least sum.
        first: The lowest number.

    Attributes:
        last_needed: The highest number that can belong to the prefix; None where it is not known yet.
    """

    def __init__(self, target: int, first: int = 0) -> None:
        self._target = target
        # The lowest number whose length is not known.
        self._next = first
        # What is known from there on, rising: few runs, bounded by what is leased and by what waits in order.
        self._ahead: list[_Run] = []
        # Of how many episodes the lengths are known, and the sum of those up to the last one needed.
        self._episodes = 0
        self._steps = 0
        self.last_needed: int | None = None

    @property
    def complete(self) -> bool:
        """Return whether all lengths up to the last one needed are known."""
        return self.last_needed is not None and self._next > self.last_needed

    def add(self, numbers: range, lengths: Array) -> None:
        """Take the lengths of numbers without a gap; those above the last one needed are ignored.

        Args:
            numbers: At least one, rising by 1.
            lengths: Their lengths, int64 (N,); kept, so nobody may change them.

        Raises:
            ValueError: If one of them was known already; then none of them is taken.
        """
        if self.last_needed is not None and numbers.start > self.last_needed:
            return
        place = bisect.bisect_left(self._ahead, numbers.start, key=_start)
        self._refuse_known(numbers, place)
        # Runs of one episode are common too: where others still run, and in a LocalSampler.
        steps = int(lengths[0] if len(lengths) == 1 else lengths.sum())
        run = _Run(numbers.start, numbers.stop, lengths, steps)
        self._ahead.insert(place, run)
        self._episodes += len(numbers)
        self._steps += steps
        if self._steps >= self._target:
            self._lower_last_needed()
        self._advance()

    def expected_episodes(self) -> int | None:
        """Return about how many episodes are missing, from the mean length so far; None while nothing is known."""
        if self._steps == 0:
            return None
        return max(0, -(-(self._target - self._steps) * self._episodes // self._steps))

    def _refuse_known(self, numbers: range, place: int) -> None:
        """Raise where numbers that would be put at `place` are known."""
        known_below = self._ahead[place - 1].stop if place else self._next
        if numbers.start < known_below:
            raise ValueError(f"the length of episode {numbers.start} was already known")
        if place < len(self._ahead) and self._ahead[place].start < numbers.stop:
            raise ValueError(f"the length of episode {self._ahead[place].start} was already known")

    def _lower_last_needed(self) -> None:
        """Forget what the target is reached without: whole runs from the top, then the end of one."""
        while self._steps - self._ahead[-1].steps >= self._target:
            self._steps -= self._ahead.pop().steps
        self._cut(self._ahead[-1])

    def _cut(self, run: _Run) -> None:
        below = self._steps - run.steps
        sums = np.cumsum(run.lengths)
        # The first place at which it is reached, so that what follows with no steps (a skipped episode) is left out.
        last = int(np.searchsorted(sums, self._target - below))
        self.last_needed = run.start + last
        self._steps = below + int(sums[last])
        run.stop, run.lengths, run.steps = self.last_needed + 1, run.lengths[: last + 1], int(sums[last])

    def _advance(self) -> None:
        taken = 0
        while taken < len(self._ahead) and self._ahead[taken].start == self._next:
            self._next = self._ahead[taken].stop
            taken += 1
        del self._ahead[:taken]
