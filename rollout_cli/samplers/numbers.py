"""Episode numbers in bulk: as ranges, so that thousands of short episodes cost what one does."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

NO_END = sys.maxsize
"""One past the last number, where the numbers have no end."""


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

    With n `owners`, number i belongs to worker i % n; with one, anybody may run any number. New numbers are leased in
    whole blocks of `block`, counted from 0 in steps of `owners`.
    """

    def __init__(self, first: int, stop: int, *, owners: int = 1, block: int = 1) -> None:
        self._owners, self._stop, self._block = owners, stop, block
        self._next = [first + (owner - first) % owners for owner in range(owners)]
        # By owner, the numbers that came back: rising ranges.
        self._released: list[list[range]] = [[] for _ in range(owners)]

    def n_released(self, worker: int) -> int:
        """Return how many numbers came back and wait for `worker`."""
        return sum(map(len, self._released[worker % self._owners]))

    def next_number(self, worker: int) -> int:
        """Return the lowest number that `worker` can be leased; NO_END where none is left for it."""
        fresh, released = self._next[worker % self._owners], self._released[worker % self._owners]
        return min(fresh if fresh < self._stop else NO_END, released[0].start if released else NO_END)

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
            fresh = range(start, min(start + size * self._owners, self._stop), self._owners)
            self._next[owner] = start + len(fresh) * self._owners
            leased += [fresh] if fresh else []
        return leased

    def release(self, worker: int, runs: Iterable[range]) -> None:
        """Free numbers again that are leased to `worker`."""
        owner = worker % self._owners
        self._released[owner] = sorted([*self._released[owner], *runs], key=attrgetter("start"))
