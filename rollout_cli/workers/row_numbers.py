"""RowNumbers: which episode numbers wait for which row.

Number i runs in row i % n, under every policy. Only where an environment resets its rows itself, so that no episode can
be repeated anyway, the next row to begin takes the lowest number: no row then lags behind the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import numpy as np
import numpy.typing as npt

from rollout_cli.workers.worker import NO_NUMBER

Array = npt.NDArray[np.int64]


class RowNumbers:
    """A queue of numbers for each of n rows, each in rising order.

    Args:
        n_rows: n.

    Attributes:
        is_shared: Whether any row takes any number.
    """

    def __init__(self, n_rows: int) -> None:
        self._n_rows = n_rows
        self.is_shared = False
        self._queue = np.empty(0, np.int64)
        """The numbers, row by row."""
        self._heads = np.zeros(n_rows, np.int64)
        self._stops = np.zeros(n_rows, np.int64)
        self._count = 0

    def __len__(self) -> int:
        """Return how many numbers wait."""
        return self._count

    @property
    def waiting(self) -> Array:
        """Return the numbers that wait, rising, int64 (k,)."""
        places = np.arange(len(self._queue))
        counts = np.diff(np.append(0, self._stops))
        return np.sort(self._queue[places >= np.repeat(self._heads, counts)])

    @property
    def lowest(self) -> int | None:
        """Return the lowest number that waits."""
        heads = self._heads[self._heads < self._stops]
        return int(self._queue[heads].min()) if len(heads) else None

    def add(self, runs: Iterable[range], stride: int) -> None:
        """Add numbers.

        Args:
            runs: The numbers.
            stride: The step from one of the worker's numbers to the next, where it owns every m-th number.
        """
        self._fill(np.concatenate([self.waiting, np.fromiter(chain.from_iterable(runs), np.int64)]), stride)

    def drop_above(self, last: int | None, stride: int) -> None:
        """Drop the numbers that are higher than `last`; all where it is None."""
        waiting = self.waiting
        self._fill(waiting[:0] if last is None else waiting[waiting <= last], stride)

    def _fill(self, numbers: Array, stride: int) -> None:
        numbers = np.sort(numbers)
        rows = numbers * 0 if self.is_shared else numbers // stride % self._n_rows
        self._queue = numbers[np.argsort(rows, kind="stable")]
        self._stops = np.cumsum(np.bincount(rows, minlength=self._n_rows))
        self._heads = np.append(0, self._stops[:-1])
        self._count = len(numbers)

    def has(self, rows: Array) -> npt.NDArray[np.bool_]:
        """Return for which of these rows (k,) a number waits, bool (k,)."""
        return np.asarray(self._heads[rows] < self._stops[rows])

    def take(self, rows: Array) -> Array:
        """Remove the lowest number of each of these rows (k,) and return them, NO_NUMBER where none waits."""
        if self.is_shared:
            return self._take_any(len(rows))
        if not self._count:
            return np.full(len(rows), NO_NUMBER, np.int64)
        heads, has = self._heads[rows], self.has(rows)
        numbers = np.where(has, self._queue[np.minimum(heads, len(self._queue) - 1)], NO_NUMBER)
        self._heads[rows] += has
        self._count -= int(np.count_nonzero(has))
        return numbers

    def _take_any(self, count: int) -> Array:
        first = int(self._heads[0])
        found = self._queue[first : first + count]
        self._heads[0] += len(found)
        self._count -= len(found)
        return found if len(found) == count else np.append(found, np.full(count - len(found), NO_NUMBER))
