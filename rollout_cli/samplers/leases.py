"""Leases: the episode numbers that each worker is running, and the number to lease in advance."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from rollout_cli.samplers.messages import Lease
from rollout_cli.samplers.plan import NO_END, PlanState, without

LAST_SECONDS = 0.05
"""Minimum work in a lease near the end of a plan: as long as a finished episode may wait to be sent."""

MEMORY_SECONDS = 0.5
"""Time constant of the exponential average of a worker's pace."""

MAX_LEASE = 32768
COMPILED_LEASE = 1 << 18
"""Maximum numbers in a lease of a JAX environment, some blocks of steps: no row should rest while numbers are left."""


class LeaseSize(NamedTuple):
    """The amount of work to lease to a worker in advance."""

    seconds: float = 0.2  # Work per lease, at the worker's own pace.
    ahead: int = 2  # Maximum leases per worker; it gets another when at most `ahead - 1` are left.


@dataclass(slots=True)
class Pace:
    """Episodes per second, averaged over about the last `MEMORY_SECONDS`.

    Episodes and seconds are summed separately, and both sums fade with time. If two messages are read at
    once, no time passes before the second one, which must not look like a sudden increase in speed.
    """

    since: float
    episodes: float = 0.0
    seconds: float = 0.01  # Above 0, since one early message is not a reliable measure.

    def add(self, episodes: int, now: float) -> None:
        elapsed = max(0.0, now - self.since)
        fading = math.exp(-elapsed / MEMORY_SECONDS)
        self.episodes = self.episodes * fading + episodes
        self.seconds = self.seconds * fading + elapsed
        self.since = now

    def episodes_in(self, seconds: float) -> int:
        return int(self.episodes / self.seconds * seconds)


class Leases:
    """The leases of one call; all times are seconds of the same clock.

    `block` is the minimum number of episodes in a lease (a worker's number of environments). `paces` has each
    worker's pace in an earlier call.
    """

    def __init__(
        self,
        plan: PlanState,
        *,
        n_workers: int,
        size: LeaseSize | None = None,
        block: int = 1,
        paces: Sequence[Pace] = (),
        now: float = 0.0,
    ) -> None:
        self._plan = plan
        self._size = size or LeaseSize()
        self._block = block
        self._most = MAX_LEASE
        self.paces = [*paces, *(Pace(now) for _ in range(n_workers - len(paces)))]
        # By worker, the leased numbers that have not ended, as rising ranges.
        self.in_flight: list[list[range]] = [[] for _ in range(n_workers)]
        # Their counts, by worker and in total: with a thousand workers, counting for each lease is too slow.
        self._counts = [0] * n_workers
        self._n_in_flight = 0
        # By worker, suspects of a death or failure: numbers to run first and one at a time.
        self._isolated: list[list[int]] = [[] for _ in range(n_workers)]

    def _set_in_flight(self, worker: int, runs: list[range]) -> None:
        count = sum(map(len, runs))
        self._n_in_flight += count - self._counts[worker]
        self.in_flight[worker] = runs
        self._counts[worker] = count

    def started(self, worker: int, now: float, *, compiles: bool = False) -> None:
        """Record that the worker started to run episodes; a compiled program ends thousands of numbers at once."""
        self.paces[worker].since = now
        if compiles:
            self._most = COMPILED_LEASE

    def finished(self, worker: int, runs: Sequence[range], now: float) -> None:
        """Record that the worker's episodes in these rising ranges (of step 1) ended."""
        self.paces[worker].add(sum(map(len, runs)), now)
        self.remove(worker, runs)

    def lease(self, worker: int, *, buffer_is_full: bool) -> Lease:
        """Lease the numbers that are due to a worker, if any; with a full buffer only the lowest missing one."""
        lease: list[range] = []
        if self._isolated[worker]:
            if not self.in_flight[worker]:
                number = self._isolated[worker].pop(0)
                lease = [range(number, number + 1)]
        elif count := self._n_wanted(worker, buffer_is_full=buffer_is_full):
            n_needed = self._plan.still_needed(self._n_in_flight)
            lease = self._plan.free_numbers(worker).lease(count, NO_END if n_needed is None else n_needed)
        if lease:
            self._set_in_flight(worker, sorted([*self.in_flight[worker], *lease], key=attrgetter("start")))
        return tuple(lease)

    def _n_wanted(self, worker: int, *, buffer_is_full: bool) -> int:
        """Return the number of episode numbers that the worker should get now."""
        n_leased = self._counts[worker]
        size = min(self._most, max(self._block, self.paces[worker].episodes_in(self._size.seconds)))
        if len(self.in_flight) == 1 and self._plan.still_needed(n_leased) is not None:
            size = self._most  # No other worker can run them.
        count = 0
        if n_leased <= (self._size.ahead - 1) * size:
            # Released numbers are below those that run: unless they run first, the buffer may never drain.
            count = self._plan.free_numbers(worker).n_released
            if not buffer_is_full:
                count = max(count, self._share(worker, n_leased))
            count = min(count, self._size.ahead * size - n_leased)
        if count == 0 and self._must_run_next(worker, buffer_is_full=buffer_is_full):
            return 1
        return count

    def _share(self, worker: int, n_leased: int) -> int:
        """Return the worker's share of the remaining episodes; half of a large share, to balance the workers."""
        n_workers = len(self.in_flight)
        in_flight = self._n_in_flight
        n_needed = self._plan.still_needed(in_flight)
        if n_needed is None:
            return self._most * self._size.ahead
        share = -(-(n_needed + in_flight) // n_workers)
        if n_workers > 1:
            share = max(-(-share // 2), min(share, self.paces[worker].episodes_in(LAST_SECONDS)), 1)
        return min(n_needed, max(0, share - n_leased))

    def _must_run_next(self, worker: int, *, buffer_is_full: bool) -> bool:
        """Return whether the worker's next number is the lowest missing one, for which other episodes wait."""
        if self._n_in_flight and not buffer_is_full:
            return False  # Running episodes make progress; only a full buffer requires the lowest number.
        next_numbers = [self._plan.free_numbers(other).next_number for other in range(len(self.in_flight))]
        leased = [runs[0].start for runs in self.in_flight if runs]
        leased += [numbers[0] for numbers in self._isolated if numbers]
        return next_numbers[worker] < NO_END and next_numbers[worker] == min([*leased, *next_numbers])

    def remove(self, worker: int, runs: Sequence[range]) -> None:
        """Remove numbers from the worker's leases: rising ranges of step 1."""
        self._set_in_flight(worker, without(self.in_flight[worker], runs))

    def release(self, worker: int) -> None:
        """Release all numbers of the worker, so that they can be leased again to any worker allowed to run them."""
        self._plan.free_numbers(worker).release(self.in_flight[worker])
        self._set_in_flight(worker, [])

    def isolate(self, worker: int, numbers: Iterable[int]) -> None:
        """Take numbers from the worker's leases; it runs them later, one at a time."""
        self._isolated[worker] = sorted({*self._isolated[worker], *numbers})
        self.remove(worker, [range(number, number + 1) for number in self._isolated[worker]])

    def drop_above(self, worker: int, last: int) -> bool:
        """Remove the worker's numbers above `last`; return whether it was running any of them."""
        self._isolated[worker] = [number for number in self._isolated[worker] if number <= last]
        before = self._counts[worker]
        self.remove(worker, [range(last + 1, NO_END)])
        return self._counts[worker] < before
