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

    Attributes:
        is_shared: Whether any row takes any number.
    """

    def __init__(self, n_rows: int) -> None:
        self._n_rows = n_rows
        self.is_shared = False
        self.drop_above(None, 1)

    def __len__(self) -> int:
        return int((self._stops - self._heads).sum())

    @property
    def waiting(self) -> Array:
        """Return the numbers that wait, rising, int64 (k,)."""
        pairs = zip(self._heads.tolist(), self._stops.tolist(), strict=True)
        return np.sort(np.concatenate([self._queue[head:stop] for head, stop in pairs]))

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
        waiting = self.waiting if last is not None else np.empty(0, np.int64)
        self._fill(waiting[waiting <= (last or 0)], stride)

    def _fill(self, numbers: Array, stride: int) -> None:
        # The queues lie one behind the other in one array, so that taking the numbers of many rows is one index.
        numbers = np.sort(numbers)
        queues = numbers * 0 if self.is_shared else numbers // stride % self._n_rows
        self._queue = numbers[np.argsort(queues, kind="stable")]
        self._stops = np.cumsum(np.bincount(queues, minlength=1 if self.is_shared else self._n_rows))
        self._heads = np.append(0, self._stops[:-1])

    def has(self, rows: Array) -> npt.NDArray[np.bool_]:
        """Return for which of these rows (k,) a number waits, bool (k,)."""
        queues = rows * 0 if self.is_shared else rows
        return np.asarray(self._heads[queues] < self._stops[queues])

    def take(self, rows: Array) -> Array:
        """Remove the lowest number of each of these rows (k,) and return them, NO_NUMBER where none waits."""
        numbers = np.full(len(rows), NO_NUMBER, np.int64)
        if self.is_shared:
            found = self._queue[self._heads[0] :][: len(rows)]
            numbers[: len(found)] = found
            self._heads[0] += len(found)
            return numbers
        has = self.has(rows)
        numbers[has] = self._queue[self._heads[rows[has]]]
        self._heads[rows] += has
        return numbers
