"""Which row of a native vector environment runs which episode numbers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

NONE = -1
"""The number of a row that runs none."""


class RowNumbers(Protocol):
    """Episode numbers that wait for rows."""

    def add(self, numbers: Iterable[int]) -> None:
        """Add numbers."""

    def drop_above(self, above: int | None) -> None:
        """Drop the numbers that are higher; all of them where it is None."""

    def take(self, rows: Array) -> Array:
        """Remove a number for each of some rows, ascending, and return them, int64 (k,); NONE for a row without."""

    @property
    def lowest(self) -> int | None:
        """Return the lowest number that waits."""

    def __len__(self) -> int:
        """Return how many wait."""


class SharedNumbers:
    """Any row runs any number: the lowest row of those that begin together gets the lowest."""

    def __init__(self) -> None:
        self._numbers: Array = np.empty(0, np.int64)
        self._at = 0

    def add(self, numbers: Iterable[int]) -> None:
        """Add numbers."""
        if isinstance(numbers, range):
            added = np.arange(numbers.start, numbers.stop, numbers.step)
        else:
            added = np.sort(np.fromiter(numbers, np.int64))
        waiting = self._numbers[self._at :]
        in_order = not len(waiting) or not len(added) or waiting[-1] < added[0]
        both = np.concatenate([waiting, added])
        self._numbers, self._at = both if in_order else np.sort(both), 0

    def drop_above(self, above: int | None) -> None:
        """Drop the numbers that are higher; all of them where it is None."""
        rest = self._numbers[self._at :]
        self._numbers, self._at = rest[rest <= above] if above is not None else rest[:0], 0

    def take(self, rows: Array) -> Array:
        """Remove the lowest numbers."""
        taken = self._numbers[self._at : self._at + len(rows)]
        self._at += len(taken)
        if len(taken) == len(rows):
            return taken
        return np.concatenate([taken, np.full(len(rows) - len(taken), NONE)])

    @property
    def lowest(self) -> int | None:
        """Return the lowest number that waits."""
        return int(self._numbers[self._at]) if len(self) else None

    def __len__(self) -> int:
        return len(self._numbers) - self._at


class OwnNumbers:
    """Number i runs in row i % n_rows: what a network gives depends on the row's place in its batch.

    Args:
        n_rows: How many rows there are.

    Attributes:
        stride: The step from one of the worker's numbers to the next, where it owns every m-th number.
    """

    def __init__(self, n_rows: int) -> None:
        self.stride = 1
        self._queues: list[deque[int]] = [deque() for _ in range(n_rows)]
        self._count = 0

    def add(self, numbers: Iterable[int]) -> None:
        """Add numbers."""
        for number in sorted(numbers):
            row = number // self.stride % len(self._queues)
            queue = self._queues[row]
            if queue and number < queue[-1]:  # It was another worker's before.
                self._queues[row] = deque(sorted((*queue, number)))
            else:
                queue.append(number)
            self._count += 1

    def drop_above(self, above: int | None) -> None:
        """Drop the numbers that are higher; all of them where it is None."""
        self._queues = [
            deque(number for number in queue if above is not None and number <= above) for queue in self._queues
        ]
        self._count = sum(map(len, self._queues))

    def take(self, rows: Array) -> Array:
        """Remove each row's lowest number."""
        taken = [queue.popleft() if (queue := self._queues[row]) else NONE for row in rows.tolist()]
        numbers = np.array(taken, np.int64)
        self._count -= int(np.count_nonzero(numbers != NONE))
        return numbers

    @property
    def lowest(self) -> int | None:
        """Return the lowest number that waits."""
        return min((queue[0] for queue in self._queues if queue), default=None)

    def __len__(self) -> int:
        return self._count
