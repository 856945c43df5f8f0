"""What is run and timed: the command of one side of a comparison, for a number of steps."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.stats import Cost
from benchmarks.usage import CommandError, Usage, run

SHORT_SHARE = 0.1
"""The short run's length as a part of the long one's."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """How much to measure.

    Attributes:
        pairs: How many times each side runs.
        seconds: How long the long run lasts, its start not counted.
        scratch: Where runs write; emptied after each.
        say: Told what is being done.
    """

    pairs: int
    seconds: float
    scratch: Path
    say: Say


@dataclass(frozen=True, slots=True)
class Guess:
    """Roughly how a side fares on a quiet machine: it tells how long a case will take, and where to begin to look.

    Attributes:
        start: Seconds from the command to the first step.
        rate: Steps a second.
    """

    start: float = 0.8
    rate: float = 100_000


USUAL = Guess()
"""CartPole, one environment a worker."""


@dataclass(frozen=True, slots=True)
class Side:
    """One thing that is measured.

    Attributes:
        name: What the table calls it.
        command: Gives the command for a number of steps and a folder, not there yet, that it may write to. It prints a
            JSON document with the `steps` that it took.
        granule: The least number of steps that makes sense; amounts are multiples of it.
        guess: Roughly how it fares.
        self_timed: Whether the document also has the `seconds` from the first step to the end of the saving. Then one
            run a round will do, and CPU is not told.
    """

    name: str
    command: Callable[[int, Path], list[str]]
    granule: int = 1
    guess: Guess = USUAL
    self_timed: bool = False

    def expected(self, settings: Settings) -> float:
        """Return about how many seconds its rounds take, and the finding of a length."""
        if self.self_timed:
            return settings.pairs * (self.guess.start + settings.seconds) + self.guess.start + 1
        return settings.pairs * (2 * self.guess.start + settings.seconds * (1 + SHORT_SHARE)) + 2 * self.guess.start + 1


def run_side(side: Side, steps: int, settings: Settings) -> tuple[Cost, Usage, dict[str, Any]]:
    """Run one side once; what it wrote is removed.

    Raises:
        CommandError: If it fails, or prints no document.
    """
    with tempfile.TemporaryDirectory(dir=settings.scratch) as folder:
        used = run(side.command(steps, Path(folder) / "out"))
    if side.self_timed:
        document = read_document(used.output, "steps", "seconds")
        return Cost(int(document["steps"]), float(document["seconds"]), 0.0, 0.0), used, document
    document = read_document(used.output)
    return Cost(int(document["steps"]), used.wall, used.cpu_main, used.cpu_others), used, document


def read_document(output: str, *keys: str) -> dict[str, Any]:
    """Return the JSON object that a command printed, all of its output or the last line, with `keys`, or else `steps`.

    Raises:
        CommandError: If there is none, or it lacks a key.
    """
    for text in (output, (output.strip().splitlines() or [""])[-1]):
        try:
            document = json.loads(text)
        except json.JSONDecodeError:
            continue
        if isinstance(document, dict) and all(key in document for key in keys or ("steps",)):
            return document
    wanted = " and ".join(keys or ("steps",))
    raise CommandError(f"the command printed no JSON document with its {wanted}, but: {output[-200:]!r}")
