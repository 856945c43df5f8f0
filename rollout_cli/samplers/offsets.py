"""OffsetPool: the offsets of a plan that are free."""

from __future__ import annotations

import heapq
from collections.abc import Iterable


class OffsetPool:
    """Gives out the offsets of `first` to `stop - 1`, lowest first, and takes them back.

    Who has which offsets is its user's account.

    Args:
        first: The lowest offset.
        stop: One past the highest; None where there is no end.
        owners: 1 where any worker may run any offset; n where offset i belongs to worker i % n.
        block: Fresh offsets are leased in whole blocks of so many, so that offset i stays in row i % block.
    """

    def __init__(self, first: int, stop: int | None, *, owners: int = 1, block: int = 1) -> None:
        self._stop = stop
        self._owners = owners
        self._block = block
        self._next = [first + (owner - first) % owners for owner in range(owners)]
        self._returned: list[list[int]] = [[] for _ in range(owners)]

    @property
    def n_free(self) -> int | None:
        """Return how many offsets are not leased yet; None where there is no end."""
        if self._stop is None:
            return None
        fresh = (max(0, -(-(self._stop - start) // self._owners)) for start in self._next)
        return sum(fresh) + sum(map(len, self._returned))

    def n_returned(self, worker: int) -> int:
        """Return how many offsets came back and wait for `worker`."""
        return len(self._returned[worker if self._owners > 1 else 0])

    def next_offset(self, worker: int) -> int | None:
        """Return the lowest offset that `worker` can be leased; None where none is left for it."""
        owner = worker if self._owners > 1 else 0
        fresh = self._next[owner]
        free = [*self._returned[owner][:1], *([fresh] if self._stop is None or fresh < self._stop else [])]
        return min(free, default=None)

    @property
    def is_shared(self) -> bool:
        """Return whether any worker may run any offset."""
        return self._owners == 1

    def lease(self, worker: int, count: int) -> list[range]:
        """Lease up to `count` offsets (rounded up to whole blocks) to `worker`, returned ones first."""
        owner = worker if self._owners > 1 else 0
        ranges = []
        while count > 0 and self._returned[owner]:
            offset = heapq.heappop(self._returned[owner])
            ranges.append(range(offset, offset + 1))
            count -= 1
        fresh = self._fresh(owner, count)
        if fresh:
            ranges.append(fresh)
        return ranges

    def _fresh(self, owner: int, count: int) -> range:
        start = self._next[owner]
        size = -(-count // self._block) * self._block
        if size and self._block > 1:
            size -= (start // self._owners) % self._block
        stop = start + size * self._owners
        if self._stop is not None:
            stop = min(stop, self._stop)
        taken = range(start, max(start, stop), self._owners)
        self._next[owner] = start + len(taken) * self._owners
        return taken

    def give_back(self, worker: int, offsets: Iterable[int]) -> None:
        """Free offsets again that are leased to `worker`; those above a cut stay dropped."""
        owner = worker if self._owners > 1 else 0
        for offset in offsets:
            if self._stop is None or offset < self._stop:
                heapq.heappush(self._returned[owner], offset)

    def cut(self, stop: int) -> None:
        """End the pool earlier: offsets from `stop` on are no longer given out."""
        self._stop = stop
        for owner, returned in enumerate(self._returned):
            self._returned[owner] = [offset for offset in returned if offset < stop]
            heapq.heapify(self._returned[owner])
