"""RowQueues: which episode numbers wait for which row."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Self

from rollout_cli.workers.values import NO_NUMBER


class RowQueues:
    """Queues of numbers; row j takes the lowest of queue j % n_queues.

    With a queue for each row, number i runs in row i % n_rows: the last bits of a network's output may depend
    on the row. With one queue, the next free row takes the lowest number, so that no row lags behind: for
    policies that act alike in every row, and for environments that reset their rows themselves.
    """

    def __init__(self, n_queues: int) -> None:
        # In falling order: the last one is taken first.
        self._queues: list[list[int]] = [[] for _ in range(n_queues)]

    def resized(self, n_queues: int, stride: int) -> Self:
        """Return these queues if they are `n_queues`, else as many new ones with the same numbers."""
        if n_queues == len(self._queues):
            return self
        queues = type(self)(n_queues)
        queues.add(chain(*self._queues), stride)
        return queues

    def __bool__(self) -> bool:
        return any(self._queues)

    def add(self, numbers: Iterable[int], stride: int) -> None:
        """Add numbers of a worker that owns every `stride`-th one."""
        queues = self._queues
        count = len(queues)
        for number in numbers:
            queues[number // stride % count].append(number)
        for queue in queues:
            queue.sort(reverse=True)

    def drop_above(self, last: int) -> None:
        """Drop the numbers that are higher than `last`."""
        for queue in self._queues:
            queue[:] = [number for number in queue if number <= last]

    @property
    def lowest(self) -> list[int]:
        """The lowest number of each queue that is not empty."""
        return [queue[-1] for queue in self._queues if queue]

    def has(self, row: int) -> bool:
        """Return whether a number waits for this row."""
        return bool(self._queues[row % len(self._queues)])

    def take(self, rows: Iterable[int]) -> list[int]:
        """Remove the lowest number of each of these rows and return them, NO_NUMBER where none waits."""
        numbers = []
        for row in rows:
            queue = self._queues[row % len(self._queues)]
            numbers.append(queue.pop() if queue else NO_NUMBER)
        return numbers

    def take_lowest(self) -> tuple[int, int]:
        """Remove the lowest number of all, and return its queue and the number."""
        _, index = min((queue[-1], index) for index, queue in enumerate(self._queues) if queue)
        return index, self._queues[index].pop()
