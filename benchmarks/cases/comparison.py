"""Sides of the product beside other sides: the ratios of their steps a second."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.pairs import Rounds, alternate
from benchmarks.product import missing
from benchmarks.report import number
from benchmarks.results import Result, Row
from benchmarks.sides import Settings, Side
from benchmarks.stats import Cost, Spread, paired_ratios


@dataclass(frozen=True, slots=True)
class Comparison:
    """The product's rate over that of one or more other sides.

    Attributes:
        name: Its name.
        title: What the table calls the work.
        ours: The product's side.
        others: The sides that it is compared with.
        goals: What each ratio should be.
        options: Options of the product that it needs.
        modules: Importable modules that it needs.
        also: Further sides of the product, each beside each of the others.
        obstacle: Gives a further reason why it cannot be run, if there is one.
        batch: Comparisons of one batch are measured in the same rounds, so that what they share runs once a round; what
            they do not share may fail without the rest. Empty for one that is measured alone.
    """

    name: str
    title: str
    ours: Side
    others: tuple[Side, ...]
    goals: tuple[str, ...]
    options: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    also: tuple[Side, ...] = ()
    obstacle: Callable[[], str | None] = field(default=lambda: None)
    batch: str = ""

    @property
    def sides(self) -> tuple[Side, ...]:
        """Return all that is run in a round."""
        return (self.ours, *self.also, *self.others)

    def missing(self) -> str | None:
        """Return why it cannot be run here."""
        return self.obstacle() or missing(self.options, self.modules)

    def expected(self, settings: Settings) -> float:
        """Return about how many seconds it takes."""
        return sum(side.expected(settings) for side in self.sides)

    def measure(self, settings: Settings) -> Result:
        """Run all sides in turn."""
        return self.result(alternate(self.sides, settings))

    def result(self, rounds: Rounds) -> Result:
        """Return the ratios of rounds that this and perhaps others ran in."""
        rows = tuple(
            self._row(ours, other, goal, rounds)
            for other, goal in zip(self.others, self.goals, strict=True)
            for ours in (self.ours, *self.also)
        )
        raw = raw_costs([side for side in self.sides if side.name in rounds.costs], rounds)
        return Result(self.name, rows, failed=any(side.name in rounds.failed for side in self.sides), raw=raw)

    def _row(self, ours: Side, other: Side, goal: str, rounds: Rounds) -> Row:
        what = f"{self.title}: {ours.name}" if self.also else self.title
        version = rounds.versions.get(other.name)
        against = f"{other.name} ({version})" if version else other.name
        for side in (ours, other):
            if side.name in rounds.failed:
                return Row(what, against, None, detail=f"failed: {rounds.failed[side.name]}", goal=goal)
        ratios = paired_ratios(*([cost.rate for cost in rounds.costs[side.name]] for side in (ours, other)))
        told = " against ".join(describe(rounds.costs[side.name], cpu=not side.self_timed) for side in (ours, other))
        return Row(what, against, Spread.of(ratios), detail=told, goal=goal)


def unique_sides(comparisons: Sequence[Comparison]) -> list[Side]:
    """Return the sides of all comparisons, those that are shared once."""
    return list({side.name: side for comparison in comparisons for side in comparison.sides}.values())


def measure_together(comparisons: Sequence[Comparison], settings: Settings) -> list[Result]:
    """Run the sides of several comparisons in the same rounds. A side that fails costs the rest nothing.

    Raises:
        CommandError: If the side of the product that all share fails.
    """
    needed = {comparison.ours.name for comparison in comparisons}
    sides = unique_sides(comparisons)
    optional = {side.name for side in sides} - needed
    rounds = alternate(sides, settings, optional=optional)
    return [comparison.result(rounds) for comparison in comparisons]


def raw_costs(sides: Sequence[Side], rounds: Rounds) -> Mapping[str, Any]:
    """Return every single cost, for the JSON file; of a side that times itself, no CPU."""
    told = ("steps", "wall")
    return {
        side.name: [
            {name: value for name, value in asdict(cost).items() if name in told or not side.self_timed}
            for cost in rounds.costs[side.name]
        ]
        for side in sides
    }


def describe(costs: Sequence[Cost], *, cpu: bool = True) -> str:
    """Return the medians of a side: rate, wall time and CPU a step."""
    rate, wall, main, others = (
        number(Spread.of(getattr(cost, name) for cost in costs).median)
        for name in ("rate", "wall_us", "main_us", "others_us")
    )
    return f"{rate} steps/s ({wall} µs wall" + (f", {main} + {others} µs CPU a step)" if cpu else " a step)")
