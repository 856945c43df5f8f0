"""Plans: which episodes a run consists of, who runs which, and when it is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy.typing as npt

from rollout_cli.errors import UsageError
from rollout_cli.samplers.numbers import FreeNumbers
from rollout_cli.samplers.prefix import PrefixSum

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class MinTimesteps:
    """The shortest run of episodes `first`, `first + 1`, … whose lengths sum to at least `timesteps`.

    Raises:
        ValueError: If a number is out of range.
    """

    timesteps: int
    first: int = 0

    def __post_init__(self) -> None:
        _check_least("timesteps", self.timesteps, 1)
        _check_least("first", self.first, 0)


@dataclass(frozen=True, slots=True)
class Episodes:
    """Episodes `first` to `stop - 1`.

    Raises:
        ValueError: If there is no such episode.
    """

    first: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.first < self.stop:
            raise ValueError(f"episodes {self.first}:{self.stop}: must be 0 <= first < stop")


@dataclass(frozen=True, slots=True)
class EpisodesPerWorker:
    """Exactly `episodes` of each worker, a partition: worker w runs `episodes` numbers from `first + w * episodes` on.

    `done` is by worker how many of them, the lowest ones, an earlier run has covered; empty where there was none.

    Raises:
        ValueError: If a number is out of range.
    """

    episodes: int
    first: int = 0
    done: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _check_least("episodes", self.episodes, 1)
        _check_least("first", self.first, 0)
        if any(not 0 <= done <= self.episodes for done in self.done):
            raise ValueError(f"done is {self.done}, each must be 0 to {self.episodes}")


Plan = MinTimesteps | Episodes | EpisodesPerWorker


def _check_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{name} is {value}, must be at least {least}")


class Covered(NamedTuple):
    """How far an earlier run has covered a partition."""

    next_number: int  # One past the last episode; the partition's first number where there is none.
    steps: int = 0
    last_length: int | None = None  # Steps of the last episode; None where nobody knows.


def remaining(plan: Plan, partitions: Sequence[tuple[int, int] | tuple[int, int, int | None]]) -> Plan | None:
    """Return the plan of what an earlier run has left; None where nothing is.

    Args:
        plan: The whole plan.
        partitions: Of each partition a `Covered`, or its first fields.

    Raises:
        UsageError: If the earlier run has more than the plan.
    """
    covered = [Covered(*row) for row in partitions]
    match plan:
        case MinTimesteps(timesteps):
            next_number, steps, last_length = covered[0]
            if steps < timesteps:
                return MinTimesteps(timesteps - steps, next_number)
            if last_length is not None and steps - last_length >= timesteps:
                raise _too_much(f"there are {steps:,} steps, more than a run of {timesteps:,} steps has")
            return None
        case Episodes(first, stop):
            ended = covered[0].next_number
            if ended > stop:
                raise _too_much(f"there are {ended - first:,} episodes, more than the {stop - first:,} of this run")
            return Episodes(ended, stop) if ended < stop else None
        case EpisodesPerWorker(episodes, first):
            done = tuple(row.next_number - first - worker * episodes for worker, row in enumerate(covered))
            return EpisodesPerWorker(episodes, first, done) if min(done) < episodes else None


def _too_much(message: str) -> UsageError:
    return UsageError(message, hint="a dataset can be extended, but not cut short: ask for more")


class PlanState:
    """A plan under way.

    The order of calls: `free(worker).lease` gives numbers to a worker; each of them is later completed once, released
    to `free(worker)`, or forgotten because it lies above the last one needed. `done` says when nothing more is needed.

    Args:
        plan: What to run; None for nothing, which is done from the beginning.
        n_workers: How many workers there are.
        by_worker: Whether policies or environments differ by worker: then number i belongs to worker i % n_workers.
        block: Leases are whole blocks of so many numbers (a worker's number of environments).

    Attributes:
        firsts: By partition, its first number.
        is_shared: Whether any worker may run any number.
    """

    def __init__(self, plan: Plan | None, *, n_workers: int, by_worker: bool = False, block: int = 1) -> None:
        self._prefix: PrefixSum | None = None
        self._first = self._size = 0  # Of the first partition and of each, where there are several.
        self._stops: list[int | None] = []
        owners = n_workers if by_worker else 1
        match plan:
            case None:
                self.firsts, self._stops = [0], [0]
            case MinTimesteps(timesteps, first):
                self._prefix = PrefixSum(timesteps, first)
                self.firsts, self._stops = [first], [None]
            case Episodes(first, stop):
                self.firsts, self._stops = [first], [stop]
            case EpisodesPerWorker(episodes, first, done):
                self._first, self._size, owners = first, episodes, 1
                starts = range(first, first + n_workers * episodes, episodes)
                self.firsts = [start + begun for start, begun in zip(starts, done or [0] * n_workers, strict=True)]
                self._stops = [start + episodes for start in starts]
        bounds = list(zip(self.firsts, self._stops, strict=True))
        self._free = [FreeNumbers(first, stop, owners=owners, block=block) for first, stop in bounds]
        self._missing = sum(stop - first for first, stop in bounds if stop is not None)
        self.is_shared = len(bounds) == 1 and owners == 1

    @property
    def n_partitions(self) -> int:
        """Return in how many partitions the episodes are handed on."""
        return len(self.firsts)

    @property
    def done(self) -> bool:
        """Return whether every episode of the plan is complete."""
        return self._missing == 0 if self._prefix is None else self._prefix.complete

    def partition(self, number: int) -> int:
        """Return the partition that a number belongs to."""
        return (number - self._first) // self._size if self._size else 0

    def last_needed(self, partition: int = -1) -> int | None:
        """Return the highest number that can still belong to a partition; None where it is not known yet."""
        stop = self._stops[partition]
        return None if stop is None else stop - 1

    def free(self, worker: int) -> FreeNumbers:
        """Return the numbers that the worker can be leased; those of other workers may be among them."""
        return self._free[worker if self.n_partitions > 1 else 0]

    def complete(self, numbers: range, lengths: Array) -> None:
        """Count episodes without a gap between them as run.

        Args:
            numbers: At least one.
            lengths: Their steps, int64 (N,); 0 for a skipped one.
        """
        self._missing -= len(numbers)
        if self._prefix is not None:
            self._prefix.add(numbers, lengths)
            if (last := self._prefix.last_needed) is not None and last != self.last_needed():
                self._stops[0] = last + 1
                self._free[0].cut(last + 1)

    def still_needed(self, in_flight: int) -> int | None:
        """Return about how many more numbers are worth leasing while `in_flight` run; None for all that are left."""
        if not self.is_shared:
            return None  # The numbers of one worker say nothing of how many another one must run.
        if self._prefix is None:
            return self._free[0].n_free
        episodes = self._prefix.expected_episodes()
        return None if episodes is None else max(0, episodes - in_flight)
