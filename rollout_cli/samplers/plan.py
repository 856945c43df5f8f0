"""Plans: which episodes a run consists of, who runs which, and when it is done.

Numbers are handled as ranges, so that thousands of short episodes cost what one does.
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
"""One past the last number, where the numbers have no end."""

MOST_REMEMBERED = 16
"""How many episodes the lengths of earlier calls count for."""

ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class MinTimesteps:
    """The shortest run of episodes `first`, `first + 1`, … whose lengths sum to at least `timesteps`.

    Where those up to `stop - 1` have fewer steps, it is all of these. Where workers reject some, these count
    no steps, and `kept` may end it before that, as in `Episodes`.

    Raises:
        ArgumentError: If there is no such run.
    """

    timesteps: int
    first: int = 0
    stop: int = NO_END
    kept: int | None = None

    def __post_init__(self) -> None:
        _check(self, is_possible=self.timesteps >= 1 and 0 <= self.first < self.stop and self.kept != 0)


@dataclass(frozen=True, slots=True)
class Episodes:
    """Episodes `first` to `stop - 1`; with `NO_END` the plan is never done, and a stop ends the call.

    Where workers reject some, it is the shortest run of them in which so many are `kept`; None: all of these.

    Raises:
        ArgumentError: If there is no such episode.
    """

    first: int
    stop: int
    kept: int | None = None
    timesteps: ClassVar[None] = None  # No number of steps ends it.

    def __post_init__(self) -> None:
        _check(self, is_possible=0 <= self.first < self.stop and self.kept != 0)


@dataclass(frozen=True, slots=True)
class EpisodesPerWorker:
    """Exactly `episodes` of each worker, a partition: worker w runs those from `first + w * episodes` on.

    `done` is by worker how many of them, the lowest ones, an earlier run has covered; empty where there was
    none.

    Raises:
        ArgumentError: If a number is out of range.
    """

    episodes: int
    first: int = 0
    done: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        are_some = all(0 <= done <= self.episodes for done in self.done)
        _check(self, is_possible=self.episodes >= 1 and self.first >= 0 and are_some)


Plan = MinTimesteps | Episodes | EpisodesPerWorker


def _check(plan: Plan, *, is_possible: bool) -> None:
    if not is_possible:
        raise ArgumentError(
            f"there is no run of {plan}",
            code="plan-empty",
            hint="give 1 timestep or episode, or more, and a range that has an episode",
        )


Covered = tuple[int, int, int | None]
"""How far an earlier run has covered a partition: one past its last episode (its first number where there is
none), its steps, and those of the last episode (None where nobody knows)."""


def remaining(plan: Plan, covered: Sequence[Covered], *, n_episodes: int = 0) -> Plan | None:
    """Return what is left of a plan if an earlier run `covered` so much of each partition; None for nothing.

    `n_episodes` is how many episodes it has, which the numbers do not tell where it rejected some.

    Raises:
        UsageError: If the earlier run has more than the plan.
    """
    if isinstance(plan, EpisodesPerWorker):
        firsts = itertools.count(plan.first, plan.episodes)
        done = tuple(stop - first for first, (stop, _, _) in zip(firsts, covered, strict=False))
        return replace(plan, done=done) if min(done) < plan.episodes else None
    next_number, steps, last_length = covered[0]
    n_run = next_number - plan.first
    # What there is of each, how much of that was needed at least, and how much there may be.
    amounts = {
        "episodes that were run": (n_run, n_run, plan.stop - plan.first),
        "episodes": (n_episodes, n_episodes, plan.kept),
        "steps": (steps, steps - (last_length or steps) + 1, plan.timesteps),
    }
    for what, (count, needed, most) in amounts.items():
        if most is not None and needed > most:
            raise UsageError(
                f"there are {count:,} {what}, more than the {most:,} of this run",
                code="too-many-episodes",
                hint="a dataset can be extended, but not cut short: ask for more",
            )
    if next_number == plan.stop or n_episodes == plan.kept or steps >= (plan.timesteps or NO_END):
        return None
    kept = None if plan.kept is None else plan.kept - n_episodes
    if isinstance(plan, Episodes):
        return Episodes(next_number, plan.stop, kept)
    return MinTimesteps(plan.timesteps - steps, next_number, plan.stop, kept)


@dataclass(slots=True)
class LengthEstimate:
    """Mean and spread of the lengths of ended episodes, which estimate those to come."""

    episodes: float = 0.0
    steps: float = 0.0
    squares: float = 0.0  # The sum of the squared lengths.

    def add(self, lengths: Array) -> None:
        """Count ended episodes, int64 (N,)."""
        floats = lengths.astype(np.float64)
        self.episodes += len(floats)
        self.steps += float(floats.sum())
        self.squares += float(floats @ floats)

    def fade(self) -> None:
        """Let what is known weigh `MOST_REMEMBERED` episodes at most: a new policy has other lengths."""
        weight = min(1.0, MOST_REMEMBERED / max(1.0, self.episodes))
        self.episodes *= weight
        self.steps *= weight
        self.squares *= weight

    def episodes_for(self, steps: int) -> int | None:
        """Return how many episodes reach `steps` in five of six cases; None before any episode ended."""
        if not self.steps:
            return None
        mean = self.steps / self.episodes
        variance = max(0.0, self.squares / self.episodes - mean * mean)
        count = max(0, steps) / mean
        # Rounding must not add an episode if all have one length.
        return math.ceil(count + math.sqrt(count * variance) / mean - ROUNDING)


class PlanState:
    """A plan under way. Each number that `free(worker)` leases is later completed once, or released again.

    None is the plan of nothing, which is done from the beginning. Where policies or environments differ
    `by_worker`, number i belongs to worker i % n_workers. Leases are whole blocks of `block` (a worker's
    number of environments). `lengths` are those of earlier calls; this plan's are added.

    Attributes:
        firsts: By partition, its first number.
        stops: By partition, one past its last number; where a number of steps may end it before that, its
            bound until the end is known.
        stride: The step from one of a worker's numbers to the next.
        is_shared: Whether any worker may run any number.
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
        # Of the first partition and of each, where there are several.
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
        # One for each worker where each has numbers of its own, else one for all.
        self._free = [
            FreeNumbers(first + (owner - first) % self.stride, stop, stride=self.stride, block=block)
            for first, stop in bounds
            for owner in range(self.stride)
        ]
        self.is_shared = len(self._free) == 1

    @property
    def done(self) -> bool:
        """Return whether every episode of the plan is complete."""
        return self._missing <= 0  # Numbers above the last one may end after it.

    def partition(self, number: int) -> int:
        """Return the partition that a number belongs to."""
        return (number - self._first_number) // self._partition_size if self._partition_size else 0

    def free(self, worker: int) -> FreeNumbers:
        """Return the numbers that the worker can be leased."""
        return self._free[worker % len(self._free)]

    def complete(self, numbers: range, lengths: Array) -> None:
        """Count episodes without gaps between them as run.

        Their `lengths` are int64 (N,), 0 of those that were skipped or rejected.
        """
        self._missing -= len(numbers)
        ends = [stop for prefix in self._prefixes if (stop := prefix.add(numbers, lengths)) is not None]
        if ends:
            self.stops[0] = min(ends)
            self._missing = 0
            self._prefixes = []

    @property
    def missing_steps(self) -> int | None:
        """Return how many steps the plan lacks by what has ended; None if no number of steps ends it."""
        return next((prefix.missing_steps for prefix in self._prefixes if not prefix.counts_episodes), None)

    def still_needed(self, in_flight: int) -> int | None:
        """Return about how many more numbers to lease while `in_flight` run; None if unknown."""
        if not self.is_shared:
            return None  # The numbers of one worker say nothing of how many another one must run.
        missing = self._missing
        for prefix in self._prefixes:
            if (estimate := prefix.n_missing()) is None:
                return None
            missing = min(missing, estimate)
        return max(0, missing - in_flight)


class _Prefix:
    """Finds the shortest prefix of first, first + 1, … whose lengths sum to `target` or more.

    The lengths become known in any order. Where it `counts_episodes`, each that has a length counts 1.
    """

    def __init__(
        self, target: int, first: int, estimate: LengthEstimate, *, counts_episodes: bool = False
    ) -> None:
        self.counts_episodes = counts_episodes
        self._estimate = estimate
        self.missing_steps = self._missing = target  # Of all known lengths, and of those without a gap.
        self._next = first  # The lowest number of unknown length; `_missing` steps come from there on.
        self._lengths_ahead: dict[int, Array] = {}  # By first number, lengths that are known above it.

    def add(self, numbers: range, lengths: Array) -> int | None:
        """Take lengths, int64 (N,), which nobody may change later; return one past the last, if known."""
        if self.counts_episodes:
            lengths = (lengths > 0).astype(np.int64)
        self._lengths_ahead[numbers.start] = lengths
        self._estimate.add(lengths)
        self.missing_steps -= int(lengths.sum())
        while (run := self._lengths_ahead.pop(self._next, None)) is not None:
            sums = np.cumsum(run)
            if sums[-1] >= self._missing:
                # The first place that reaches it: what follows without steps (a skip) is left out.
                return self._next + int(np.searchsorted(sums, self._missing)) + 1
            self._missing -= int(sums[-1])
            self._next += len(run)
        return None

    def n_missing(self) -> int | None:
        """Return about how many more episodes reach the target, with a margin; None if unknown."""
        return self._estimate.episodes_for(self.missing_steps)


class FreeNumbers:
    """Gives out every `stride`-th number from `first` to `stop - 1`, lowest first, and takes them back.

    New numbers are leased in whole blocks of `block`, counted from 0 in steps of `stride`.
    """

    def __init__(self, first: int, stop: int, *, stride: int = 1, block: int = 1) -> None:
        self._next = first
        self._stop = stop
        self._stride = stride
        self._block = block
        self._released: list[range] = []  # The numbers that came back: rising ranges.

    @property
    def n_released(self) -> int:
        """Return how many numbers came back."""
        return sum(map(len, self._released))

    @property
    def next_number(self) -> int:
        """Return the lowest number that can be leased; NO_END where none is left."""
        if self._released:  # They lie below all that were not leased yet.
            return self._released[0].start
        return self._next if self._next < self._stop else NO_END

    def lease(self, count: int, most: int = NO_END) -> list[range]:
        """Lease up to `count` numbers, released ones first; in whole blocks, if these are at most `most`."""
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
        """Free numbers again that are leased."""
        self._released = sorted([*self._released, *runs], key=attrgetter("start"))


def contiguous_ranges(numbers: Array) -> list[range]:
    """Return rising numbers, int64 (N,), as ranges without gaps, lowest first; usually that is one."""
    if len(numbers) and numbers[-1] - numbers[0] == len(numbers) - 1:
        return [range(int(numbers[0]), int(numbers[-1]) + 1)]
    # No number is next to -2.
    firsts = numbers[np.diff(numbers, prepend=-2) != 1]
    lasts = numbers[np.diff(numbers, append=-2) != 1]
    return list(map(range, firsts.tolist(), (lasts + 1).tolist()))


def without(runs: Sequence[range], removed: Sequence[range]) -> list[range]:
    """Return the numbers of `runs` that are not in `removed`, in one pass.

    Args:
        runs: Ranges of any step, in order of their first numbers; they may interleave.
        removed: Ranges without gaps, the lowest first; they may hold other numbers too.
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
