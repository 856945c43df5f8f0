"""Plans: which episodes a run consists of, who runs which, and when it is done.

A plan speaks of offsets 0, 1, 2, …; the episode number is the call's base plus the offset. Nothing here knows of
processes, queues or time: a plan is told what was leased, given back and settled, and answers what comes next.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class MinTimesteps:
    """The shortest run of episodes `first`, `first + 1`, … whose lengths sum to at least `timesteps`.

    Nothing is chosen by who finishes first, so short episodes are not favoured. `first` is 0, or one past the last
    episode that an earlier run has settled.
    """

    timesteps: int
    first: int = 0

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.timesteps < 1:
            raise ValueError(f"timesteps is {self.timesteps}, must be at least 1")
        if self.first < 0:
            raise ValueError(f"first is {self.first}, must be at least 0")


@dataclass(frozen=True, slots=True)
class Episodes:
    """Episodes `first` to `stop - 1`."""

    first: int
    stop: int

    def __post_init__(self) -> None:
        """Check the range."""
        if not 0 <= self.first < self.stop:
            raise ValueError(f"episodes {self.first}:{self.stop} is no range of episodes: 0 <= first < stop")


@dataclass(frozen=True, slots=True)
class EpisodesPerWorker:
    """Exactly `episodes` from each worker: worker w runs `w * episodes` to `(w + 1) * episodes - 1`.

    `done` says how many of them an earlier run has settled, by worker: the lowest ones; empty where there was none.
    """

    episodes: int
    done: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.episodes < 1:
            raise ValueError(f"episodes is {self.episodes}, must be at least 1")
        if any(not 0 <= done <= self.episodes for done in self.done):
            raise ValueError(f"done is {self.done}, each must be 0 to {self.episodes}")

    def first_of(self, worker: int) -> int:
        """Return the first offset that is left for a worker."""
        return worker * self.episodes + (self.done[worker] if self.done else 0)


Plan = MinTimesteps | Episodes | EpisodesPerWorker


class PlanState(Protocol):
    """One plan under way.

    The order of calls: `lease` gives offsets to a worker; each of them is later settled once, given back, or forgotten
    because it lies above the ceiling. `done` tells when nothing more is needed.
    """

    n_lanes: int

    @property
    def done(self) -> bool:
        """Return whether every episode of the plan is settled."""

    @property
    def ceiling(self) -> int | None:
        """Return the highest offset that can still belong to the run; None where it is not known yet."""

    def lane(self, offset: int) -> int:
        """Return the lane that the offset's episode is handed on in."""

    def last_of_lane(self, lane: int) -> int | None:
        """Return the last offset of a lane; None where it is not known yet."""

    def first_of_lane(self, lane: int) -> int:
        """Return the first offset of a lane."""

    def lease(self, worker: int, count: int) -> list[range]:
        """Give a worker up to `count` more offsets, lowest first; empty where none is left for it."""

    def give_back(self, worker: int, offsets: Iterable[int]) -> None:
        """Take offsets back that were leased to the worker and not run; those above the ceiling are forgotten."""

    def settle(self, offsets: range, lengths: Array) -> None:
        """Learn that episodes without a gap between them ended, and their lengths, int64 (N,); 0 for a skipped one."""

    def n_returned(self, worker: int) -> int:
        """Return how many offsets that were given back wait for this worker."""

    def next_offset(self, worker: int) -> int | None:
        """Return the lowest offset that the worker can be leased; None where none is left for it."""

    def still_needed(self, leased: int) -> int | None:
        """Return about how many more offsets are worth leasing while `leased` run; None where all that are left are."""


Order = Literal["index", "arrival"]
"""In which order episodes are handed on: by number, or as they come (which is not reproducible, and biased)."""
