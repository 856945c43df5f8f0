"""Runs the sides of a comparison in turn, A B A B, each as a short and a long run, and pairs what they cost.

All sides of a comparison run for about the same time, not for the same number of steps: a rate is the difference of two
runs, so it does not depend on how many steps they take, and every side is measured as finely as the others.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.stats import Cost
from benchmarks.usage import CommandError, Usage, run

SHORT_SHARE = 0.2
"""The short run's length as a part of what the long one has beyond it."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """How much to measure.

    Attributes:
        pairs: How many times each side runs.
        seconds: How long the long run lasts beyond the short one.
        scratch: Where runs write; emptied after each.
        say: Told what is being done.
    """

    pairs: int
    seconds: float
    scratch: Path
    say: Say


@dataclass(frozen=True, slots=True)
class Side:
    """One thing that is measured.

    Attributes:
        name: What the table calls it.
        command: Gives the command for a number of steps and a folder, not there yet, that it may write to. It prints a
            JSON document with the `steps` that it took.
        granule: The least number of steps that makes sense; amounts are multiples of it.
    """

    name: str
    command: Callable[[int, Path], list[str]]
    granule: int = 1


@dataclass(frozen=True, slots=True)
class Amounts:
    """Steps of the short and the long run of one side."""

    short: int
    long: int


def run_side(side: Side, steps: int, settings: Settings) -> tuple[Cost, Usage, dict[str, Any]]:
    """Run one side once; what it wrote is removed.

    Raises:
        CommandError: If it fails, or prints no document.
    """
    with tempfile.TemporaryDirectory(dir=settings.scratch) as folder:
        used = run(side.command(steps, Path(folder) / "out"))
    document = read_document(used.output)
    return Cost(int(document["steps"]), used.wall, used.cpu_main, used.cpu_others), used, document


def read_document(output: str) -> dict[str, Any]:
    """Return the JSON object that a command printed: all of its output, or the last line.

    Raises:
        CommandError: If there is none, or it has no `steps`.
    """
    for text in (output, (output.strip().splitlines() or [""])[-1]):
        try:
            document = json.loads(text)
        except json.JSONDecodeError:
            continue
        if isinstance(document, dict) and "steps" in document:
            return document
    raise CommandError(f"the command printed no JSON document with its steps, but: {output[-200:]!r}")


def calibrate(side: Side, settings: Settings) -> Amounts:
    """Find how many steps a side takes in the time that is wanted."""
    start = run_side(side, side.granule, settings)[0]
    # Long beside the start too, which varies by a part of its own length.
    long_enough = max(min(1.0, settings.seconds / 2), start.wall / 3)
    steps = 1000
    while True:
        cost = run_side(side, _whole(steps, side.granule), settings)[0]
        beyond = cost.wall - start.wall
        if beyond >= long_enough and cost.steps > start.steps:
            # A start of many seconds varies by seconds: the long run must be long beside it.
            return amounts(cost.beyond(start).rate, max(settings.seconds, start.wall / 2), side.granule)
        steps *= 8 if beyond < long_enough / 8 else 2


def amounts(rate: float, seconds: float, granule: int) -> Amounts:
    """Return the amounts of a side that takes `rate` steps a second, whole multiples of `granule`."""
    short = _whole(rate * seconds * SHORT_SHARE, granule)
    return Amounts(short, short + _whole(rate * seconds, granule))


def _whole(steps: float, granule: int) -> int:
    return max(1, round(steps / granule)) * granule


def alternate(sides: Sequence[Side], settings: Settings) -> dict[str, list[Cost]]:
    """Return the costs of each side, one a round, the sides taking turns."""
    wanted = {}
    for side in sides:
        settings.say(f"  finding a length for {side.name}")
        wanted[side.name] = calibrate(side, settings)
    costs: dict[str, list[Cost]] = {side.name: [] for side in sides}
    for turn in range(settings.pairs):
        for side in sides:
            short = run_side(side, wanted[side.name].short, settings)[0]
            long = run_side(side, wanted[side.name].long, settings)[0]
            cost = _beyond(long, short)
            costs[side.name].append(cost)
            settings.say(f"  {turn + 1}/{settings.pairs} {side.name}: {cost.rate:,.0f} steps/s")
    return costs


def _beyond(long: Cost, short: Cost) -> Cost:
    try:
        return long.beyond(short)
    except ValueError as error:
        raise CommandError(f"{error}; give more --seconds") from error
