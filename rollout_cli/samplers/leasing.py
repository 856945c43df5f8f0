"""How many episode numbers a worker should have ahead of it."""

from __future__ import annotations

from typing import Protocol


class LeaseSizer(Protocol):
    """Decides how far ahead of its needs a worker is leased numbers. Times are seconds on any one clock."""

    def began(self, worker: int, now: float) -> None:
        """Note that the worker began to run episodes."""

    def finished(self, worker: int, episodes: int, now: float) -> None:
        """Note that the worker delivered so many episodes."""

    def wanted(self, worker: int, open_numbers: int) -> int:
        """Return how many more numbers to lease to a worker that has `open_numbers` left."""

    def share(self, left: int) -> int:
        """Return how many of the `left` numbers that all workers share one worker may be leased at once."""


class FixedLeases:
    """Leases of one size, two at a time."""

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"a lease has at least 1 number, not {size}")
        self._size = size

    def began(self, worker: int, now: float) -> None:
        """Nothing depends on it."""

    def finished(self, worker: int, episodes: int, now: float) -> None:
        """Nothing depends on it."""

    def wanted(self, worker: int, open_numbers: int) -> int:
        """Return one lease where less than two are left."""
        del worker
        return self._size if open_numbers <= self._size else 0

    def share(self, left: int) -> int:
        """Return all of them."""
        return left


AHEAD_SECONDS = 0.2
MAX_LEASE = 32768


class ThroughputLeases:
    """Leases of `AHEAD_SECONDS` of work at each worker's own pace, two at a time.

    Args:
        n_workers: How many workers share the numbers.
        block: The least number of episodes worth leasing (a worker's number of environments).
    """

    def __init__(self, *, n_workers: int = 1, block: int = 1) -> None:
        self._n_workers = n_workers
        self._block = block
        self._since: dict[int, float] = {}
        self._rate: dict[int, float] = {}

    def began(self, worker: int, now: float) -> None:
        """Begin to measure the worker's pace."""
        self._since[worker] = now

    def finished(self, worker: int, episodes: int, now: float) -> None:
        """Update the pace: a running mean that follows a change within a few messages."""
        elapsed = max(now - self._since.get(worker, now), 1e-6)
        rate = episodes / elapsed
        self._rate[worker] = 0.5 * (self._rate.get(worker, rate) + rate)
        self._since[worker] = now

    def wanted(self, worker: int, open_numbers: int) -> int:
        """Return one lease where less than two are left; two numbers while the pace is not known."""
        size = min(MAX_LEASE, max(self._block, int(self._rate.get(worker, 0.0) * AHEAD_SECONDS)))
        return 2 * size - open_numbers if open_numbers <= size else 0

    def share(self, left: int) -> int:
        """Return a part that leaves as much again for everybody, so that nobody has the last numbers to himself."""
        return -(-left // (2 * self._n_workers))
