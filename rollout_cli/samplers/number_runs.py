"""NumberRuns: a set of episode numbers as runs without gaps, so that thousands of them cost what one does."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator
from itertools import chain

import numpy as np

from rollout_cli.samplers.ranges import contiguous_ranges


class NumberRuns(Collection[int]):
    """Episode numbers, each once.

    Sampler and worker keep account of what the worker has left in it. Numbers of a lease follow one another; only those
    of a range with a step, or that came back one by one, do not.
    """

    def __init__(self) -> None:
        # Of each run its first number and one past its last; both rise.
        self._starts: list[int] = []
        self._stops: list[int] = []
        # Numbers of ranges with a step: as runs of one they would be too many to put others between them.
        self._apart: set[int] = set()
        self._in_runs = 0

    def __len__(self) -> int:
        return self._in_runs + len(self._apart)

    def __contains__(self, number: object) -> bool:
        if not isinstance(number, int):
            return False
        at = bisect_right(self._starts, number) - 1
        return (at >= 0 and number < self._stops[at]) or number in self._apart

    def __iter__(self) -> Iterator[int]:
        return chain(chain.from_iterable(map(range, self._starts, self._stops)), self._apart)

    @property
    def lowest(self) -> int:
        """Return the lowest number, of at least one."""
        return min(chain(self._starts[:1], self._apart))

    def add(self, numbers: range) -> None:
        """Add numbers; some may be there."""
        if numbers.step != 1:
            self._apart.update(number for number in numbers if number not in self)
        elif numbers:
            self.remove(numbers)
            start, stop = numbers.start, numbers.stop
            at = bisect_left(self._starts, start)
            below, above = at, at
            if at and self._stops[at - 1] == start:
                below, start = at - 1, self._starts[at - 1]
            if at < len(self._starts) and self._starts[at] == stop:
                above, stop = at + 1, self._stops[at]
            self._starts[below:above], self._stops[below:above] = [start], [stop]
            self._in_runs += len(numbers)

    def remove(self, numbers: range) -> None:
        """Remove those of `numbers`, rising by 1, that are there."""
        if self._apart:
            self._apart.difference_update(numbers)
        first, last = bisect_right(self._stops, numbers.start), bisect_left(self._starts, numbers.stop)
        if first >= last:
            return
        start, stop = self._starts[first], self._stops[last - 1]
        self._in_runs -= sum(self._stops[first:last]) - sum(self._starts[first:last])
        left = [run for run in (range(start, numbers.start), range(numbers.stop, stop)) if run]
        self._in_runs += sum(map(len, left))
        self._starts[first:last], self._stops[first:last] = [run.start for run in left], [run.stop for run in left]

    def take(self, numbers: Iterable[int]) -> list[int]:
        """Remove those of `numbers` that are there; return them, rising."""
        found = [number for number in sorted(set(numbers)) if number in self]
        for run in contiguous_ranges(np.array(found, np.int64)):
            self.remove(run)
        return found

    def take_all(self) -> list[int]:
        """Remove all numbers; return them, rising."""
        found = sorted(self)
        self._starts, self._stops, self._apart, self._in_runs = [], [], set(), 0
        return found

    def drop_above(self, ceiling: int) -> bool:
        """Remove all numbers above a ceiling; return whether there were any."""
        highest = max(chain(self._stops[-1:], self._apart), default=ceiling)
        before = len(self)
        self.remove(range(ceiling + 1, max(highest, ceiling) + 1))
        return len(self) < before
