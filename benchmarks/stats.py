"""Medians with their spread, and what a long run costs beyond a short one."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some figures, with the least and the greatest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, figures: Iterable[float]) -> Spread:
        """Return the spread of `figures`.

        Raises:
            ValueError: If there are none.
        """
        values = list(figures)
        if not values:
            raise ValueError("there are no figures to take the median of")
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Cost:
    """What some steps cost: of one run, or of a long run beyond a short one.

    Attributes:
        steps: Environment steps.
        wall: Seconds.
        cpu_main: CPU seconds of the command's first process.
        cpu_others: CPU seconds of the processes that it started.
    """

    steps: int
    wall: float
    cpu_main: float
    cpu_others: float

    def beyond(self, short: Cost) -> Cost:
        """Return what this run costs beyond a shorter one, which leaves out start and end.

        Raises:
            ValueError: If it took no more steps, or no more time.
        """
        cost = Cost(
            self.steps - short.steps,
            self.wall - short.wall,
            self.cpu_main - short.cpu_main,
            self.cpu_others - short.cpu_others,
        )
        if cost.steps <= 0 or cost.wall <= 0:
            raise ValueError(
                f"{self.steps} steps in {self.wall:.2f} s are not beyond {short.steps} steps in {short.wall:.2f} s: "
                "the runs are too short to tell apart"
            )
        return cost

    @property
    def rate(self) -> float:
        """Return steps a second."""
        return self.steps / self.wall

    @property
    def wall_us(self) -> float:
        """Return microseconds a step."""
        return 1e6 * self.wall / self.steps

    @property
    def main_us(self) -> float:
        """Return CPU microseconds a step of the first process."""
        return 1e6 * self.cpu_main / self.steps

    @property
    def others_us(self) -> float:
        """Return CPU microseconds a step of the processes that it started."""
        return 1e6 * self.cpu_others / self.steps

    @property
    def main_share(self) -> float:
        """Return the part of a core that the first process used."""
        return self.cpu_main / self.wall


def paired_ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return ours / theirs, pair by pair.

    Raises:
        ValueError: If they are not as many.
    """
    return [our / their for our, their in zip(ours, theirs, strict=True)]
