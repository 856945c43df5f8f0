"""Plans: the episodes of a run, the worker that runs each, and the condition that ends the run.

Episode numbers are handled as ranges, so thousands of short episodes cost as little as one.
"""

from __future__ import annotations

import itertools
import math
import sys
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import add, attrgetter
from typing import ClassVar

import numpy as np

from rollout_cli.episodes.spaces import Array
from rollout_cli.errors import ArgumentError, UsageError

NO_END = sys.maxsize
"""The `stop` of a range of numbers without an end."""

MOST_REMEMBERED = 16
"""Weight of the lengths of earlier calls, in episodes."""

ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class MinTimesteps:
    """The shortest run of episodes `first`, `first + 1`, … whose lengths sum to at least `timesteps`.

    If the episodes up to `stop - 1` have fewer steps, the plan is all of them. The steps of episodes that
    workers reject do not count; `kept` may end the plan earlier, as in `Episodes`.

    Raises:
        ArgumentError: If the plan cannot have an episode (also a ValueError).

    Example:
        >>> import gymnasium
        >>> with rollout_cli.LocalSampler("random", gymnasium.make("CartPole-v1"), seed=0) as sampler:
        ...     chunks = [*sampler.stream(rollout_cli.MinTimesteps(40))]
        >>> [length for chunk in chunks for length in chunk.lengths.tolist()]
        [37, 18]
    """

    timesteps: int
    first: int = 0
    stop: int = NO_END
    kept: int | None = None

    def __post_init__(self) -> None:
        _require(self, "timesteps", "at least 1", is_valid=self.timesteps >= 1)
        _check_range(self)


@dataclass(frozen=True, slots=True)
class Episodes:
    """Episodes `first` to `stop - 1`; with `stop=NO_END` the plan is never done and only a stop ends it.

    If workers reject episodes, the plan ends once `kept` episodes are kept; None means no such limit.

    Raises:
        ArgumentError: If the plan cannot have an episode (also a ValueError).

    Example:
        >>> import gymnasium
        >>> with rollout_cli.LocalSampler("random", gymnasium.make("CartPole-v1"), seed=0) as sampler:
        ...     chunks = [*sampler.stream(rollout_cli.Episodes(1, 3))]
        >>> [number for chunk in chunks for number in chunk.numbers.tolist()]
        [1, 2]
    """

    first: int
    stop: int
    kept: int | None = None
    timesteps: ClassVar[None] = None  # It has no target number of steps.

    def __post_init__(self) -> None:
        _check_range(self)


@dataclass(frozen=True, slots=True)
class EpisodesPerWorker:
    """Exactly `episodes` per worker: worker w runs `episodes` numbers from `first + w * episodes` on.

    The numbers of a worker are a partition. `done` has, per worker, the number of its episodes that an
    earlier run has completed, lowest numbers first; it is empty without an earlier run.

    Raises:
        ArgumentError: If a number is out of range (also a ValueError).

    Example:
        >>> import gymnasium
        >>> with rollout_cli.LocalSampler("random", gymnasium.make("CartPole-v1"), n_workers=2) as sampler:
        ...     chunks = [*sampler.stream(rollout_cli.EpisodesPerWorker(3))]
        >>> sum(chunk.n_episodes for chunk in chunks)
        6
    """

    episodes: int
    first: int = 0
    done: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _require(self, "episodes", "at least 1", is_valid=self.episodes >= 1)
        _require(self, "first", "at least 0", is_valid=self.first >= 0)
        are_possible = all(0 <= done <= self.episodes for done in self.done)
        _require(self, "done", f"numbers from 0 to {self.episodes}", is_valid=are_possible)


Plan = MinTimesteps | Episodes | EpisodesPerWorker


def _check_range(plan: MinTimesteps | Episodes) -> None:
    _require(plan, "first", "at least 0", is_valid=plan.first >= 0)
    _require(plan, "stop", f"more than first, which is {plan.first}", is_valid=plan.first < plan.stop)
    _require(plan, "kept", "at least 1, or None", is_valid=plan.kept is None or plan.kept >= 1)


def _require(plan: Plan, argument: str, expected: str, *, is_valid: bool) -> None:
    if not is_valid:
        raise ArgumentError(
            f"{argument} of {type(plan).__name__} is {getattr(plan, argument)}, expected {expected}",
            code="plan-empty",
            hint="pass a plan of at least 1 timestep or episode",
        )


PartitionProgress = tuple[int, int, int | None]
"""Progress of an earlier run in a partition: one past the number of its last episode (or the partition's
first number), its steps, and the steps of its last episode (None if unknown)."""


def remaining(plan: Plan, progress: Sequence[PartitionProgress], *, n_episodes: int = 0) -> Plan | None:
    """Return the rest of a plan after an earlier run with this progress in each partition; None if complete.

    `n_episodes` is the number of episodes the earlier run has kept; numbers alone do not show rejections.

    Raises:
        UsageError: If the earlier run has more episodes or steps than the plan.
    """
    if isinstance(plan, EpisodesPerWorker):
        firsts = itertools.count(plan.first, plan.episodes)
        done = tuple(stop - first for first, (stop, _, _) in zip(firsts, progress, strict=False))
        return replace(plan, done=done) if min(done) < plan.episodes else None
    next_number, steps, last_length = progress[0]
    n_run = next_number - plan.first
    # For each quantity: the amount found, the minimum that was needed to end there, and the plan's maximum.
    run = "episodes" if plan.kept is None else "kept and rejected episodes"
    amounts = {
        run: (n_run, n_run, plan.stop - plan.first),
        "kept episodes": (n_episodes, n_episodes, plan.kept),
        "steps": (steps, steps - (last_length or steps) + 1, plan.timesteps),
    }
    for what, (count, needed, most) in amounts.items():
        if most is not None and needed > most:
            raise UsageError(
                f"the dataset has {count:,} {what}, but this run requests only {most:,}",
                code="too-many-episodes",
                hint=f"request at least {needed:,}: a dataset can be extended, but not shortened",
            )
    if next_number == plan.stop or n_episodes == plan.kept or steps >= (plan.timesteps or NO_END):
        return None
    kept = None if plan.kept is None else plan.kept - n_episodes
    if isinstance(plan, Episodes):
        return Episodes(next_number, plan.stop, kept)
    return MinTimesteps(plan.timesteps - steps, next_number, plan.stop, kept)


@dataclass(slots=True)
class LengthEstimate:
    """Mean and variance of the lengths of ended episodes, used to estimate the lengths of future episodes."""

    episodes: float = 0.0
    steps: float = 0.0
    squares: float = 0.0  # The sum of the squared lengths.

    def add(self, lengths: Array) -> None:
        """Count ended episodes of these lengths, int64 (N,)."""
        floats = lengths.astype(np.float64)
        self.episodes += len(floats)
        self.steps += float(floats.sum())
        self.squares += float(floats @ floats)

    def fade(self) -> None:
        """Limit the weight of known lengths to `MOST_REMEMBERED` episodes: a new policy has other lengths."""
        weight = min(1.0, MOST_REMEMBERED / max(1.0, self.episodes))
        self.episodes *= weight
        self.steps *= weight
        self.squares *= weight

    def episodes_for(self, steps: int) -> int | None:
        """Return the number of episodes that reach `steps` in five of six cases; None before any ended."""
        if not self.steps:
            return None
        mean = self.steps / self.episodes
        variance = max(0.0, self.squares / self.episodes - mean * mean)
        count = max(0, steps) / mean
        # Rounding must not add an episode if all have one length.
        return math.ceil(count + math.sqrt(count * variance) / mean - ROUNDING)


class PlanState:
    """Progress of a plan. Each number that `free_numbers(worker)` leases is later either completed once or released.

    The plan None has no episodes and is done at once. If policies or environments differ `by_worker`, number
    i belongs to worker i % n_workers. Leases consist of complete blocks of `block` numbers (a worker's number
    of environments). `lengths` has the lengths of earlier calls; the lengths of this plan are added to it.

    Attributes:
        firsts: The first number of each partition.
        stops: One past the last number of each partition; an upper bound until the last number is known.
        stride: The difference between consecutive numbers of a worker.
        is_shared: Whether every worker may run every number.
    """

    def __init__(
        self,
        plan: Plan | None,
        *,
        n_workers: int,
        by_worker: bool = False,
        block: int = 1,
        lengths: LengthEstimate | None = None,
    ) -> None:
        self._prefixes: list[_Prefix] = []
        lengths = lengths or LengthEstimate()
        # The first number of partition 0 and the size of each partition; 0 for a single partition.
        self._first_number = self._partition_size = 0
        self.stride = n_workers if by_worker else 1
        match plan:
            case None:
                self.firsts = [0]
                self.stops = [0]
            case EpisodesPerWorker(episodes, first, done):
                self._first_number = first
                self._partition_size = episodes
                self.stride = 1
                starts = range(first, first + n_workers * episodes, episodes)
                self.firsts = list(map(add, starts, done or [0] * n_workers))
                self.stops = [start + episodes for start in starts]
            case _:
                if plan.kept:
                    self._prefixes.append(
                        _Prefix(plan.kept, plan.first, LengthEstimate(), counts_episodes=True)
                    )
                if plan.timesteps:
                    self._prefixes.append(_Prefix(plan.timesteps, plan.first, lengths))
                self.firsts = [plan.first]
                self.stops = [plan.stop]
        bounds = list(zip(self.firsts, self.stops, strict=True))
        self._missing = sum(stop - first for first, stop in bounds)
        # One entry per worker if each worker has its own numbers, otherwise one entry for all workers.
        self._free = [
            FreeNumbers(first + (owner - first) % self.stride, stop, stride=self.stride, block=block)
            for first, stop in bounds
            for owner in range(self.stride)
        ]
        self.is_shared = len(self._free) == 1

    @property
    def done(self) -> bool:
        """Whether every episode of the plan is complete."""
        return self._missing <= 0  # Episodes above the plan's last number may end after it is done.

    def partition(self, number: int) -> int:
        """Return the index of the partition that contains a number."""
        return (number - self._first_number) // self._partition_size if self._partition_size else 0

    def free_numbers(self, worker: int) -> FreeNumbers:
        """Return the numbers that can be leased to the worker."""
        return self._free[worker % len(self._free)]

    def complete(self, numbers: range, lengths: Array) -> None:
        """Count consecutive episodes as complete.

        `lengths` is int64 (N,), 0 for skipped and rejected episodes.
        """
        self._missing -= len(numbers)
        ends = [stop for prefix in self._prefixes if (stop := prefix.add(numbers, lengths)) is not None]
        if ends:
            self.stops[0] = min(ends)
            self._missing = 0
            self._prefixes = []

    @property
    def remaining_steps(self) -> int | None:
        """Steps that the plan lacks after the episodes that have ended; None without a target of steps."""
        return next((prefix.remaining_steps for prefix in self._prefixes if not prefix.counts_episodes), None)

    def still_needed(self, in_flight: int) -> int | None:
        """Return an estimate of the numbers still to lease while `in_flight` are leased; None if unknown."""
        if not self.is_shared:
            return None  # Each worker runs its own numbers, so a count over all workers does not help.
        missing = self._missing
        for prefix in self._prefixes:
            if (estimate := prefix.n_missing()) is None:
                return None
            missing = min(missing, estimate)
        return max(0, missing - in_flight)


class _Prefix:
    """Finds the shortest prefix of first, first + 1, … whose lengths sum to `target` or more.

    Lengths may be added in any order. With `counts_episodes`, every length above 0 counts as 1.
    """

    def __init__(
        self, target: int, first: int, estimate: LengthEstimate, *, counts_episodes: bool = False
    ) -> None:
        self.counts_episodes = counts_episodes
        self._estimate = estimate
        self.remaining_steps = self._missing = target  # After all known lengths; after those below `_next`.
        self._next = first  # The lowest number of unknown length; `_missing` steps are needed from it on.
        self._lengths_ahead: dict[int, Array] = {}  # Known lengths above `_next`, by their first number.

    def add(self, numbers: range, lengths: Array) -> int | None:
        """Add lengths, int64 (N,), that the caller must not change later; return the prefix's stop if known."""
        if self.counts_episodes:
            lengths = (lengths > 0).astype(np.int64)
        self._lengths_ahead[numbers.start] = lengths
        self._estimate.add(lengths)
        self.remaining_steps -= int(lengths.sum())
        while (run := self._lengths_ahead.pop(self._next, None)) is not None:
            sums = np.cumsum(run)
            if sums[-1] >= self._missing:
                # The first episode that reaches the target: skipped episodes behind it are left out.
                return self._next + int(np.searchsorted(sums, self._missing)) + 1
            self._missing -= int(sums[-1])
            self._next += len(run)
        return None

    def n_missing(self) -> int | None:
        """Return an estimate, with a margin, of the episodes that reach the target; None if unknown."""
        return self._estimate.episodes_for(self.remaining_steps)


class FreeNumbers:
    """Leases every `stride`-th number from `first` to `stop - 1`, lowest first; numbers can be released again.

    New numbers are leased in complete blocks of `block`, counted from 0 in steps of `stride`.
    """

    def __init__(self, first: int, stop: int, *, stride: int = 1, block: int = 1) -> None:
        self._next = first
        self._stop = stop
        self._stride = stride
        self._block = block
        self._released: list[range] = []  # Released numbers, as rising ranges.

    @property
    def n_released(self) -> int:
        """Number of released numbers that have not been leased again."""
        return sum(map(len, self._released))

    @property
    def next_number(self) -> int:
        """The lowest number that can be leased; NO_END if none is left."""
        if self._released:  # They are below every number that was never leased.
            return self._released[0].start
        return self._next if self._next < self._stop else NO_END

    def lease(self, count: int, most: int = NO_END) -> list[range]:
        """Lease up to `count` numbers, released ones first; round up to complete blocks of `most` at most."""
        released = self._released
        leased = []
        while count > 0 and released:
            run = released.pop(0)
            if len(run) > count:
                released.insert(0, run[count:])
            leased.append(run[:count])
            count -= len(leased[-1])
        if count > 0:
            offset = (self._next // self._stride) % self._block
            size = -(-(count + offset) // self._block) * self._block - offset
            size = min(size, max(count, most))
            stop = min(self._next + size * self._stride, self._stop)
            fresh = range(self._next, stop, self._stride)
            self._next += len(fresh) * self._stride
            if fresh:
                leased.append(fresh)
        return leased

    def release(self, runs: Iterable[range]) -> None:
        """Return leased numbers, so that they can be leased again."""
        self._released = sorted([*self._released, *runs], key=attrgetter("start"))


def contiguous_ranges(numbers: Array) -> list[range]:
    """Return rising numbers, int64 (N,), as ranges without gaps, lowest first (usually a single range)."""
    if len(numbers) and numbers[-1] - numbers[0] == len(numbers) - 1:
        return [range(int(numbers[0]), int(numbers[-1]) + 1)]
    # -2 is not adjacent to any number.
    firsts = numbers[np.diff(numbers, prepend=-2) != 1]
    lasts = numbers[np.diff(numbers, append=-2) != 1]
    return list(map(range, firsts.tolist(), (lasts + 1).tolist()))


def without(runs: Sequence[range], removed: Sequence[range]) -> list[range]:
    """Return the numbers of `runs` that are not in `removed`, in one pass.

    Args:
        runs: Ranges of any step, sorted by first number; they may interleave.
        removed: Ranges of step 1, lowest first; they may contain numbers that are not in `runs`.
    """
    remaining_runs: list[range] = []
    for run in runs:
        index = bisect_left(removed, run.start, key=lambda numbers: numbers[-1])
        while run and index < len(removed) and removed[index].start <= run[-1]:
            if below := run[: bisect_left(run, removed[index].start)]:
                remaining_runs.append(below)
            run = run[bisect_left(run, removed[index].stop) :]  # noqa: PLW2901  The rest of it.
            index += 1
        if run:
            remaining_runs.append(run)
    return remaining_runs
