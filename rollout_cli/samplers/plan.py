"""Plans: which episodes a run consists of, who runs which, and when it is done.

Nothing here knows processes, messages or time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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

    Nothing is chosen by who finishes first, so short episodes are not favoured.

    Raises:
        ValueError: If a number is out of range.
    """

    timesteps: int
    first: int = 0

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.timesteps < 1:
            raise ValueError(f"timesteps is {self.timesteps}, must be at least 1")
        _check_first(self.first)


@dataclass(frozen=True, slots=True)
class Episodes:
    """Episodes `first` to `stop - 1`.

    Raises:
        ValueError: If there is no such episode.
    """

    first: int
    stop: int

    def __post_init__(self) -> None:
        """Check the range."""
        if not 0 <= self.first < self.stop:
            raise ValueError(f"episodes {self.first}:{self.stop}: must be 0 <= first < stop")


@dataclass(frozen=True, slots=True)
class EpisodesPerWorker:
    """Exactly `episodes` of each worker: worker w runs `first + w * episodes` to `first + (w + 1) * episodes - 1`.

    Each worker's episodes are a partition. `done` says how many of them, the lowest ones, an earlier run has covered,
    by worker; empty where there was none.

    Raises:
        ValueError: If a number is out of range.
    """

    episodes: int
    first: int = 0
    done: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.episodes < 1:
            raise ValueError(f"episodes is {self.episodes}, must be at least 1")
        _check_first(self.first)
        if any(not 0 <= done <= self.episodes for done in self.done):
            raise ValueError(f"done is {self.done}, each must be 0 to {self.episodes}")


Plan = MinTimesteps | Episodes | EpisodesPerWorker


def _check_first(first: int) -> None:
    if first < 0:
        raise ValueError(f"first is {first}, must be at least 0")


class Covered(NamedTuple):
    """How far an earlier run has covered a partition.

    Attributes:
        next_number: One past the last episode; the partition's first number where there is none.
        steps: Steps of its episodes.
        last_length: Steps of the last of them; None where nobody knows.
    """

    next_number: int
    steps: int = 0
    last_length: int | None = None


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
            return _remaining_steps(timesteps, covered[0])
        case Episodes(first, stop):
            ended = covered[0].next_number
            if ended > stop:
                raise _too_much(f"there are {ended - first:,} episodes, more than the {stop - first:,} of this run")
            return Episodes(ended, stop) if ended < stop else None
        case EpisodesPerWorker(episodes, first):
            done = tuple(row.next_number - first - worker * episodes for worker, row in enumerate(covered))
            return EpisodesPerWorker(episodes, first, done) if min(done) < episodes else None


def _remaining_steps(timesteps: int, covered: Covered) -> Plan | None:
    if covered.steps < timesteps:
        return MinTimesteps(timesteps - covered.steps, covered.next_number)
    if covered.last_length is not None and covered.steps - covered.last_length >= timesteps:
        raise _too_much(f"there are {covered.steps:,} steps, more than a run of {timesteps:,} steps has")
    return None


def _too_much(message: str) -> UsageError:
    return UsageError(message, hint="a dataset can be extended, but not cut short: ask for more")


class PlanState:
    """A plan under way.

    The order of calls: `lease` gives numbers to a worker; each of them is later completed once, released, or forgotten
    because it lies above the last one needed. `done` says when nothing more is needed.

    Args:
        plan: What to run; None for nothing, which is done from the beginning.
        n_workers: How many workers there are.
        by_worker: Whether policies or environments differ by worker: then number i belongs to worker i % n_workers.
        block: Leases are whole blocks of so many numbers (a worker's number of environments).

    Attributes:
        firsts: By partition, its first number.
    """

    def __init__(self, plan: Plan | None, *, n_workers: int, by_worker: bool = False, block: int = 1) -> None:
        self._prefix: PrefixSum | None = None
        self._first = self._size = 0  # Of the first partition and of each, where there are several.
        owners = n_workers if by_worker else 1
        match plan:
            case None:
                self.firsts, self._stops = [0], [0]
            case MinTimesteps(timesteps, first):
                self._prefix = PrefixSum(timesteps, first)
                self.firsts, self._stops = [first], []
            case Episodes(first, stop):
                self.firsts, self._stops = [first], [stop]
            case EpisodesPerWorker(episodes, first, done):
                self._first, self._size, owners = first, episodes, 1
                starts = range(first, first + n_workers * episodes, episodes)
                self.firsts = [start + begun for start, begun in zip(starts, done or [0] * n_workers, strict=True)]
                self._stops = [start + episodes for start in starts]
        ends: Sequence[int | None] = self._stops or [None]
        self._free = [
            FreeNumbers(first, stop, owners=owners, block=block) for first, stop in zip(self.firsts, ends, strict=True)
        ]
        self._missing = sum(self._stops) - sum(self.firsts)

    @property
    def n_partitions(self) -> int:
        """Return in how many partitions the episodes are handed on."""
        return len(self.firsts)

    @property
    def is_shared(self) -> bool:
        """Return whether any worker may run any number."""
        return self.n_partitions == 1 and self._free[0].is_shared

    @property
    def done(self) -> bool:
        """Return whether every episode of the plan is complete."""
        return self._missing == 0 if self._prefix is None else self._prefix.complete

    @property
    def last_needed(self) -> int | None:
        """Return the highest number that can still belong to the run; None where it is not known yet."""
        return self._stops[-1] - 1 if self._prefix is None else self._prefix.last_needed

    def last_of(self, partition: int) -> int | None:
        """Return the last number of a partition; None where it is not known yet."""
        return self._stops[partition] - 1 if self._prefix is None else self._prefix.last_needed

    def partition(self, number: int) -> int:
        """Return the partition that a number belongs to."""
        return (number - self._first) // self._size if self._size else 0

    def lease(self, worker: int, count: int) -> list[range]:
        """Give a worker up to `count` more numbers (whole blocks), lowest first; empty where none is left for it."""
        return self._of(worker).lease(worker, count)

    def release(self, worker: int, runs: Iterable[range]) -> None:
        """Take numbers back that were leased to the worker and not run; those above the last needed are forgotten."""
        self._of(worker).release(worker, runs)

    def complete(self, numbers: range, lengths: Array) -> None:
        """Count episodes without a gap between them as run.

        Args:
            numbers: At least one.
            lengths: Their steps, int64 (N,); 0 for a skipped one.
        """
        self._missing -= len(numbers)
        if self._prefix is not None:
            before = self._prefix.last_needed
            self._prefix.add(numbers, lengths)
            if self._prefix.last_needed is not None and self._prefix.last_needed != before:
                self._free[0].cut(self._prefix.last_needed + 1)

    def n_released(self, worker: int) -> int:
        """Return how many released numbers wait for this worker."""
        return self._of(worker).n_released(worker)

    def next_number(self, worker: int) -> int | None:
        """Return the lowest number that the worker can be leased; None where none is left for it."""
        return self._of(worker).next_number(worker)

    def still_needed(self, in_flight: int) -> int | None:
        """Return about how many more numbers are worth leasing while `in_flight` run; None for all that are left."""
        if not self.is_shared:
            return None  # The numbers of one worker say nothing of how many another one must run.
        if self._prefix is None:
            return self._free[0].n_free
        episodes = self._prefix.expected_episodes()
        return None if episodes is None else max(0, episodes - in_flight)

    def _of(self, worker: int) -> FreeNumbers:
        return self._free[worker] if self.n_partitions > 1 else self._free[0]
