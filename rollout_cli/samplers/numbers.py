"""Episode numbers in bulk: as ranges, so that thousands of short episodes cost what one does."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def contiguous_ranges(numbers: Array) -> list[range]:
    """Return rising numbers, int64 (N,), as ranges without gaps, lowest first; usually that is one."""
    if len(numbers) == 0:
        return []
    first, stop = int(numbers[0]), int(numbers[-1]) + 1
    if stop - first == len(numbers):
        return [range(first, stop)]
    gaps = np.flatnonzero(np.diff(numbers) != 1)
    firsts = [first, *numbers[gaps + 1].tolist()]
    stops = [*(numbers[gaps] + 1).tolist(), stop]
    return list(map(range, firsts, stops))


def up_to(runs: Iterable[range], last: int) -> list[range]:
    """Return the numbers of rising ranges that are at most `last`."""
    return [left for run in runs if (left := run[: bisect_left(run, last + 1)])]


def without(runs: Sequence[range], gone: Sequence[range]) -> list[range]:
    """Return the numbers of `runs` that are not in `gone`, in one pass.

    Args:
        runs: Ranges of any step, in order of their first numbers; they may interleave.
        gone: Ranges without gaps, the lowest first; they may hold other numbers too.
    """
    left: list[range] = []
    for run in runs:
        at = bisect_left(gone, run.start, key=lambda below: below[-1])
        while run and at < len(gone) and gone[at].start <= run[-1]:
            if below := run[: bisect_left(run, gone[at].start)]:
                left.append(below)
            run = run[bisect_left(run, gone[at].stop) :]  # noqa: PLW2901  What is left of it.
            at += 1
        if run:
            left.append(run)
    return left


class FreeNumbers:
    """Gives out the numbers of `first` to `stop - 1`, lowest first, and takes them back.

    Args:
        first: The lowest number.
        stop: One past the highest; None where there is no end.
        owners: 1 where any worker may run any number; n where number i belongs to worker i % n.
        block: New numbers are leased in whole blocks of so many, counted from 0 in steps of `owners`.
    """

    def __init__(self, first: int, stop: int | None, *, owners: int = 1, block: int = 1) -> None:
        self._owners, self._stop, self._block = owners, stop, block
        self._next = [first + (owner - first) % owners for owner in range(owners)]
        # By owner, the numbers that came back: rising ranges.
        self._released: list[list[range]] = [[] for _ in range(owners)]

    @property
    def n_free(self) -> int | None:
        """Return how many numbers are free; None where there is no end."""
        if self._stop is None:
            return None
        fresh = (range(start, self._stop, self._owners) for start in self._next)
        return sum(map(len, chain(fresh, *self._released)))

    def n_released(self, worker: int) -> int:
        """Return how many numbers came back and wait for `worker`."""
        return sum(map(len, self._released[worker % self._owners]))

    def next_number(self, worker: int) -> int | None:
        """Return the lowest number that `worker` can be leased; None where none is left for it."""
        fresh, released = self._next[worker % self._owners], self._released[worker % self._owners]
        free = [released[0].start] if released else []
        if self._stop is None or fresh < self._stop:
            free.append(fresh)
        return min(free, default=None)

    def lease(self, worker: int, count: int) -> list[range]:
        """Lease up to `count` numbers (rounded up to whole blocks) to `worker`, released ones first."""
        owner = worker % self._owners
        released, leased = self._released[owner], []
        while count > 0 and released:
            run = released.pop(0)
            if len(run) > count:
                released.insert(0, run[count:])
            leased.append(run[:count])
            count -= len(leased[-1])
        if count > 0:
            start = self._next[owner]
            size = -(-count // self._block) * self._block - (start // self._owners) % self._block
            stop = start + size * self._owners
            fresh = range(start, stop if self._stop is None else min(stop, self._stop), self._owners)
            self._next[owner] = start + len(fresh) * self._owners
            leased += [fresh] if fresh else []
        return leased

    def release(self, worker: int, runs: Iterable[range]) -> None:
        """Free numbers again that are leased to `worker`; those above a cut stay dropped."""
        owner = worker % self._owners
        kept = runs if self._stop is None else up_to(runs, self._stop - 1)
        self._released[owner] = sorted([*self._released[owner], *kept], key=attrgetter("start"))

    def cut(self, stop: int) -> None:
        """End earlier: numbers from `stop` on are no longer given out."""
        self._stop = stop
        self._released = [up_to(released, stop - 1) for released in self._released]
