"""Plans under way: one class of state for each way in which a run's episodes are determined."""

from __future__ import annotations

import abc
from collections.abc import Iterable
from typing import Any

import numpy.typing as npt

from rollout_cli.samplers.offsets import OffsetPool
from rollout_cli.samplers.plan import Episodes, EpisodesPerWorker, MinTimesteps, Order, Plan, PlanState
from rollout_cli.samplers.prefix import PrefixSum

Array = npt.NDArray[Any]


def begin_plan(
    plan: Plan, *, n_workers: int, by_worker: bool = False, block: int = 1, order: Order = "index"
) -> PlanState:
    """Return the state of a plan that begins.

    Args:
        plan: What to run.
        n_workers: How many workers there are.
        by_worker: Whether policies or environments differ by worker: then offset i belongs to worker i % n_workers.
        block: Leases are whole blocks of so many offsets (a worker's number of environments).
        order: Whether `MinTimesteps` is a prefix of the numbers, or whatever ends first.
    """
    owners = n_workers if by_worker else 1
    match plan:
        case MinTimesteps(timesteps, first):
            prefix = _PrefixPlan if order == "index" else _ArrivalPlan
            return prefix(timesteps, first, OffsetPool(first, None, owners=owners, block=block))
        case Episodes(first, stop):
            return _RangePlan(first, stop, OffsetPool(first, stop, owners=owners, block=block))
        case EpisodesPerWorker():
            return _PerWorkerPlan(plan, n_workers, block=block)


class _OneLane(abc.ABC):
    """What plans have in common whose episodes follow one another in one lane."""

    n_lanes = 1

    def __init__(self, first: int, pool: OffsetPool) -> None:
        self._first = first
        self._pool = pool

    @property
    @abc.abstractmethod
    def ceiling(self) -> int | None:
        """As in `PlanState`."""

    def lane(self, offset: int) -> int:
        del offset
        return 0

    def first_of_lane(self, lane: int) -> int:
        del lane
        return self._first

    def last_of_lane(self, lane: int) -> int | None:
        del lane
        return self.ceiling

    def lease(self, worker: int, count: int) -> list[range]:
        return self._pool.lease(worker, count)

    def give_back(self, worker: int, offsets: Iterable[int]) -> None:
        self._pool.give_back(worker, offsets)

    def n_returned(self, worker: int) -> int:
        return self._pool.n_returned(worker)

    def next_offset(self, worker: int) -> int | None:
        return self._pool.next_offset(worker)


class _RangePlan(_OneLane):
    """`Episodes`: a fixed range in one lane."""

    def __init__(self, first: int, stop: int, pool: OffsetPool) -> None:
        super().__init__(first, pool)
        self._stop = stop
        self._left = stop - first

    @property
    def done(self) -> bool:
        return self._left == 0

    @property
    def ceiling(self) -> int | None:
        return self._stop - 1

    def settle(self, offsets: range, lengths: Array) -> None:
        del lengths
        self._left -= len(offsets)

    def still_needed(self, leased: int) -> int | None:
        del leased
        return self._pool.n_free if self._pool.is_shared else None


class _PerWorkerPlan:
    """`EpisodesPerWorker`: one range and one lane a worker."""

    def __init__(self, plan: EpisodesPerWorker, n_workers: int, *, block: int) -> None:
        self.n_lanes = n_workers
        self._episodes = episodes = plan.episodes
        self._firsts = [plan.first_of(worker) for worker in range(n_workers)]
        stops = [(worker + 1) * episodes for worker in range(n_workers)]
        self._pools = [OffsetPool(*ends, owners=1, block=block) for ends in zip(self._firsts, stops, strict=True)]
        self._left = sum(stops) - sum(self._firsts)

    @property
    def done(self) -> bool:
        return self._left == 0

    @property
    def ceiling(self) -> int | None:
        return self._episodes * self.n_lanes - 1

    def lane(self, offset: int) -> int:
        return offset // self._episodes

    def first_of_lane(self, lane: int) -> int:
        return self._firsts[lane]

    def last_of_lane(self, lane: int) -> int | None:
        return (lane + 1) * self._episodes - 1

    def lease(self, worker: int, count: int) -> list[range]:
        return self._pools[worker].lease(0, count)

    def give_back(self, worker: int, offsets: Iterable[int]) -> None:
        self._pools[worker].give_back(0, offsets)

    def settle(self, offsets: range, lengths: Array) -> None:
        del lengths
        self._left -= len(offsets)

    def n_returned(self, worker: int) -> int:
        return self._pools[worker].n_returned(0)

    def next_offset(self, worker: int) -> int | None:
        return self._pools[worker].next_offset(0)

    def still_needed(self, leased: int) -> int | None:
        del leased
        return None


class _PrefixPlan(_OneLane):
    """`MinTimesteps`: a prefix whose end becomes known while it runs."""

    def __init__(self, timesteps: int, first: int, pool: OffsetPool) -> None:
        super().__init__(first, pool)
        self._prefix = PrefixSum(timesteps, first)

    @property
    def done(self) -> bool:
        return self._prefix.complete

    @property
    def ceiling(self) -> int | None:
        return self._prefix.ceiling

    def settle(self, offsets: range, lengths: Array) -> None:
        before = self._prefix.ceiling
        self._prefix.add(offsets, lengths)
        if self._prefix.ceiling is not None and self._prefix.ceiling != before:
            self._pool.cut(self._prefix.ceiling + 1)

    def still_needed(self, leased: int) -> int | None:
        if not self._pool.is_shared:
            return None  # What one worker is leased says nothing of what another one must run.
        episodes = self._prefix.expected_episodes()
        return None if episodes is None else max(0, episodes - leased)


class _ArrivalPlan(_PrefixPlan):
    """`MinTimesteps` in the order of arrival: whatever ends first counts, which favours short episodes."""

    def __init__(self, timesteps: int, first: int, pool: OffsetPool) -> None:
        super().__init__(timesteps, first, pool)
        self._missing = timesteps
        self._episodes = 0
        self._steps = 0

    @property
    def done(self) -> bool:
        return self._missing <= 0

    @property
    def ceiling(self) -> int | None:
        return None

    def settle(self, offsets: range, lengths: Array) -> None:
        self._episodes += len(offsets)
        steps = int(lengths.sum())
        self._steps += steps
        self._missing -= steps

    def still_needed(self, leased: int) -> int | None:
        if not self._pool.is_shared or not self._steps:
            return None
        return max(0, -(-self._missing * self._episodes // self._steps) - leased)
