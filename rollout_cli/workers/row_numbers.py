"""RowNumbers: which episode numbers wait for which row."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import numpy as np
import numpy.typing as npt

from rollout_cli.workers.worker import NO_NUMBER

Array = npt.NDArray[np.int64]


class RowNumbers:
    """Queues of numbers; row j takes the lowest of queue j % n_queues.

    With a queue for each row, number i runs in row i % n_rows, under every policy. With one queue, the next row to
    begin takes the lowest number, so that no row lags behind: for environments that reset their rows themselves, whose
    episodes cannot be repeated anyway.
    """

    def __init__(self, n_queues: int) -> None:
        self._queues: list[list[int]] = [[] for _ in range(n_queues)]  # Each falls: its end is taken first.

    def __bool__(self) -> bool:
        return any(self._queues)

    def add(self, numbers: Iterable[int], stride: int) -> None:
        """Add numbers of a worker that owns every `stride`-th one."""
        queues, count = self._queues, len(self._queues)
        for number in numbers:
            queues[number // stride % count].append(number)
        for queue in queues:
            queue.sort(reverse=True)

    @property
    def numbers(self) -> list[int]:
        """Return all that wait."""
        return list(chain(*self._queues))

    def drop_above(self, last: int) -> None:
        """Drop the numbers that are higher than `last`."""
        self._queues = [[number for number in queue if number <= last] for queue in self._queues]

    @property
    def lowest(self) -> list[int]:
        """Return the lowest number of each queue that is not empty."""
        return [queue[-1] for queue in self._queues if queue]

    def has(self, row: int) -> bool:
        """Return whether a number waits for this row."""
        return bool(self._queues[row % len(self._queues)])

    def take(self, rows: Array) -> Array:
        """Remove the lowest number of each of these rows (k,) and return them, NO_NUMBER where none waits."""
        queues, count = self._queues, len(self._queues)
        own = [queues[row % count] for row in rows.tolist()]
        return np.array([queue.pop() if queue else NO_NUMBER for queue in own], np.int64)
