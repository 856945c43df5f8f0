"""How many episode numbers a worker should have ahead of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol


class LeaseSizer(Protocol):
    """Decides how far ahead of its needs a worker is leased numbers. Times are seconds on any one clock."""

    def began(self, worker: int, now: float) -> None:
        """Note that the worker began to run episodes."""

    def finished(self, worker: int, episodes: int, now: float) -> None:
        """Note that the worker delivered so many episodes."""

    def wanted(self, worker: int, open_numbers: int) -> int:
        """Return how many more numbers to lease to a worker that has `open_numbers` left."""

    def share(self, worker: int, *, left: int, open_numbers: int, open_by_all: int) -> int:
        """Return how many more of the last numbers, which all workers share, one worker may be leased now.

        Args:
            worker: Who.
            left: About how many numbers are not leased yet.
            open_numbers: How many the worker has left of what it was leased.
            open_by_all: How many all workers have.
        """


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

    def share(self, worker: int, *, left: int, open_numbers: int, open_by_all: int) -> int:
        """Return all of them."""
        del worker, open_numbers, open_by_all
        return left


AHEAD_SECONDS = 0.2
"""How much work a lease holds."""

LAST_SECONDS = 0.01
"""How much work the smallest of the last leases holds: many times what it takes to ask for another one."""

MEMORY_SECONDS = 0.5
"""How far back a worker's pace is measured."""

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
        self._paces: dict[int, _Pace] = {}

    def began(self, worker: int, now: float) -> None:
        """Begin to measure the worker's pace."""
        self._paces.setdefault(worker, _Pace(now)).since = now

    def finished(self, worker: int, episodes: int, now: float) -> None:
        """Update the pace."""
        self._paces.setdefault(worker, _Pace(now)).add(episodes, now)

    def wanted(self, worker: int, open_numbers: int) -> int:
        """Return one lease where less than two are left; two numbers while the pace is not known."""
        size = min(MAX_LEASE, max(self._block, self._in(AHEAD_SECONDS, worker)))
        return 2 * size - open_numbers if open_numbers <= size else 0

    def share(self, worker: int, *, left: int, open_numbers: int, open_by_all: int) -> int:
        """Return what gives the worker half of an equal share of all that is still to be run, and not much more.

        So the leases shrink as the end comes near, and all workers reach it together.
        """
        fair = -(-(left + open_by_all) // (2 * self._n_workers))
        return min(left, max(0, max(fair, self._in(LAST_SECONDS, worker), 1) - open_numbers))

    def _in(self, seconds: float, worker: int) -> int:
        """Return how many episodes the worker runs in this time."""
        pace = self._paces.get(worker)
        return int(pace.rate * seconds) if pace else 0


@dataclass(slots=True)
class _Pace:
    """Episodes a second, over the last `MEMORY_SECONDS` or so.

    Episodes and seconds are summed apart, each fading with time: messages that are read in one go, the second of which
    took no time at all, must not look like a burst of speed.
    """

    since: float
    episodes: float = 0.0
    # As if a hundredth of a second had gone by with no episode: one early message is no measure yet.
    seconds: float = 0.01

    def add(self, episodes: int, now: float) -> None:
        elapsed = max(0.0, now - self.since)
        fading = math.exp(-elapsed / MEMORY_SECONDS)
        self.episodes = self.episodes * fading + episodes
        self.seconds = self.seconds * fading + elapsed
        self.since = now

    @property
    def rate(self) -> float:
        return self.episodes / self.seconds
