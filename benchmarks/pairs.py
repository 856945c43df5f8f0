"""Runs the sides of a comparison in turn, A B A B, each as a short and a long run, and pairs what they cost.

A side that tells its own time, without its start, runs once instead.

All sides of a comparison run for about the same time, not for the same number of steps: a rate is the difference of two
runs, so it does not depend on how many steps they take, and every side is measured as finely as the others.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field

from benchmarks.sides import SHORT_SHARE, Settings, Side, run_side
from benchmarks.stats import Cost
from benchmarks.usage import CommandError

ENOUGH = 0.8
"""The part of the time that it was to take, from which on a run that finds a length is long enough."""


@dataclass(frozen=True, slots=True)
class Amounts:
    """Steps of the short and the long run of one side."""

    short: int
    long: int


def calibrate(side: Side, settings: Settings) -> Amounts:
    """Find how many steps a side takes in the time that is wanted: mostly by one run of about a second."""
    start = Cost(0, 0.0, 0.0, 0.0) if side.self_timed else run_side(side, side.granule, settings)[0]
    # Long beside the start too, which varies by a part of its own length.
    wanted = max(min(1.0, settings.seconds / 2), start.wall / 3)
    steps = side.guess.rate * wanted
    while True:
        cost = run_side(side, _whole(steps, side.granule), settings)[0]
        beyond = cost.wall - start.wall
        if beyond >= ENOUGH * wanted and cost.steps > start.steps:
            # A start of many seconds varies by seconds: the long run must be long beside it.
            return amounts(cost.beyond(start).rate, max(settings.seconds, start.wall / 2), side.granule)
        # A run as short as the start varies tells little of the rate: no more than 16 times longer at once.
        steps *= min(16.0, max(2.0, 1.25 * wanted / max(beyond, 0.01 * wanted)))


def amounts(rate: float, seconds: float, granule: int) -> Amounts:
    """Return the amounts of a side that takes `rate` steps a second, whole multiples of `granule`."""
    short = _whole(rate * seconds * SHORT_SHARE, granule)
    return Amounts(short, max(short + granule, _whole(rate * seconds, granule)))


def _whole(steps: float, granule: int) -> int:
    return max(1, round(steps / granule)) * granule


@dataclass(frozen=True, slots=True)
class Rounds:
    """What the rounds of some sides gave.

    Attributes:
        costs: Of each side that ran to the end, one cost a round.
        failed: Why each of the others did not.
        versions: What each side that tells it says that it is.
    """

    costs: dict[str, list[Cost]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


def alternate(sides: Sequence[Side], settings: Settings, *, optional: Container[str] = ()) -> Rounds:
    """Run the sides in turn, round after round. A side whose name is `optional` is left out once it fails.

    Raises:
        CommandError: If another fails.
    """
    rounds = Rounds()
    wanted: dict[str, Amounts] = {}
    for turn in range(settings.pairs + 1):
        for side in sides:
            if side.name in rounds.failed:
                continue
            try:
                if turn == 0:
                    settings.say(f"  finding a length for {side.name}")
                    wanted[side.name] = calibrate(side, settings)
                else:
                    _add_round(rounds, side, wanted[side.name], turn, settings)
            except CommandError as error:
                if side.name not in optional:
                    raise
                settings.say(f"  {side.name} failed: {error}")
                rounds.failed[side.name] = str(error)
                rounds.costs.pop(side.name, None)
    return rounds


def _add_round(rounds: Rounds, side: Side, wanted: Amounts, turn: int, settings: Settings) -> None:
    cost, version = _one_round(side, wanted, settings)
    rounds.costs.setdefault(side.name, []).append(cost)
    if version:
        rounds.versions[side.name] = version
    settings.say(f"  {turn}/{settings.pairs} {side.name}: {cost.rate:,.0f} steps/s")


def _one_round(side: Side, amounts: Amounts, settings: Settings) -> tuple[Cost, str | None]:
    """Return what the steps cost, start-up left out, and the side's version where it tells one."""
    if side.self_timed:
        cost, _, document = run_side(side, amounts.long, settings)
        return cost, document.get("version")
    short = run_side(side, amounts.short, settings)[0]
    long, _, document = run_side(side, amounts.long, settings)
    try:
        return long.beyond(short), document.get("version")
    except ValueError as error:
        raise CommandError(f"{error}; give more --seconds") from error
