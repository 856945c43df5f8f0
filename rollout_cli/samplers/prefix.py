"""PrefixSum: where a run of at least so many steps ends, from lengths that become known in any order."""

from __future__ import annotations

import bisect
import math
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


class PrefixSum:
    """Finds the shortest prefix of first, first + 1, … whose lengths sum to `target` at least.

    As soon as the known lengths of the episodes up to some j sum to the target, the lowest such j is the last one
    needed so far. Unknown lengths below it may lower it; nothing above it can belong to the prefix.

    Attributes:
        last_needed: The highest number that can belong to the prefix; None where it is not known yet.
    """

    def __init__(self, target: int, first: int = 0) -> None:
        self._target = target
        self._next = first  # The lowest number whose length is not known.
        # What is known from there on, rising: few runs, bounded by what is leased and by what waits in order.
        self._ahead: list[_Run] = []
        # Of how many episodes the lengths are known, and the sum of those up to the last one needed.
        self._episodes = self._steps = 0
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
        place = bisect.bisect_left(self._ahead, numbers.start, key=attrgetter("start"))
        known_below = self._ahead[place - 1].stop if place else self._next
        known_above = self._ahead[place].start if place < len(self._ahead) else math.inf
        if numbers.start < known_below or numbers.stop > known_above:
            raise ValueError(f"a length of episodes {numbers.start} to {numbers.stop - 1} was already known")
        # Runs of one episode are common: where others still run, and in a LocalSampler.
        steps = int(lengths[0] if len(lengths) == 1 else lengths.sum())
        self._ahead.insert(place, _Run(numbers.start, numbers.stop, lengths, steps))
        self._episodes += len(numbers)
        self._steps += steps
        if self._steps >= self._target:
            self._lower_last_needed()
        while self._ahead and self._ahead[0].start == self._next:
            self._next = self._ahead.pop(0).stop

    def expected_episodes(self) -> int | None:
        """Return about how many episodes are missing, from the mean length so far; None while nothing is known."""
        if self._steps == 0:
            return None
        return max(0, -(-(self._target - self._steps) * self._episodes // self._steps))

    def _lower_last_needed(self) -> None:
        """Forget what the target is reached without: whole runs from the top, then the end of one."""
        while self._steps - self._ahead[-1].steps >= self._target:
            self._steps -= self._ahead.pop().steps
        run = self._ahead[-1]
        below = self._steps - run.steps
        sums = np.cumsum(run.lengths)
        # The first place at which it is reached, so that what follows with no steps (a skipped episode) is left out.
        last = int(np.searchsorted(sums, self._target - below))
        run.stop, run.lengths, run.steps = run.start + last + 1, run.lengths[: last + 1], int(sums[last])
        self.last_needed, self._steps = run.start + last, below + run.steps
