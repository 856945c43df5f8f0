"""RowQueues, the episode numbers that wait for each row."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Self

from rollout_cli.workers.values import NO_NUMBER


class RowQueues:
    """Queues of episode numbers; row j takes the lowest number of queue j % n_queues.

    With one queue per row, number i runs in row i % n_rows: the last bits of a network's output may depend on
    the row. With one queue, the next free row takes the lowest number, and no row waits for others. It serves
    policies that act the same in every row, and environments that reset their rows themselves.
    """

    def __init__(self, n_queues: int) -> None:
        # In descending order: `take` pops from the end.
        self._queues: list[list[int]] = [[] for _ in range(n_queues)]

    def resized(self, n_queues: int, stride: int) -> Self:
        """Return these queues if there are `n_queues`, else `n_queues` new queues with the same numbers."""
        if n_queues == len(self._queues):
            return self
        queues = type(self)(n_queues)
        queues.add(chain(*self._queues), stride)
        return queues

    def __bool__(self) -> bool:
        return any(self._queues)

    def add(self, numbers: Iterable[int], stride: int) -> None:
        """Add numbers of a worker to which every `stride`-th number belongs."""
        queues = self._queues
        count = len(queues)
        if count == 1:
            queues[0].extend(numbers)
        else:
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

    def next_numbers(self, count: int) -> list[int]:
        """Return the next `count` numbers, or fewer, that rows with one queue would take, in order."""
        return self._queues[0][: -count - 1 : -1]

    def remove_next(self, count: int) -> None:
        """Remove the first `count` of `next_numbers`."""
        queue = self._queues[0]
        del queue[len(queue) - count :]

    def has(self, row: int) -> bool:
        """Return True if a number waits for this row."""
        return bool(self._queues[row % len(self._queues)])

    def take(self, rows: Iterable[int]) -> list[int]:
        """Remove and return the lowest number of each row in `rows`, NO_NUMBER if none waits for it."""
        numbers = []
        for row in rows:
            queue = self._queues[row % len(self._queues)]
            numbers.append(queue.pop() if queue else NO_NUMBER)
        return numbers

    def take_lowest(self) -> tuple[int, int]:
        """Remove the lowest number of all queues; return the index of its queue and the number."""
        _, index = min((queue[-1], index) for index, queue in enumerate(self._queues) if queue)
        return index, self._queues[index].pop()
