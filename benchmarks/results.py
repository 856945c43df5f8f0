"""What a case gives: rows of the table, and the raw figures behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from benchmarks.sides import Settings
from benchmarks.stats import Spread


@dataclass(frozen=True, slots=True)
class Row:
    """One figure.

    Attributes:
        what: What is measured.
        against: Beside what; empty for a figure that is no ratio.
        figure: Its median and spread; None where there is none, for a reason that the detail tells.
        unit: `x` for a ratio, else the unit.
        detail: What it is made of.
        goal: What the figure should be: at least, and aimed at.
    """

    what: str
    against: str
    figure: Spread | None
    unit: str = "x"
    detail: str = ""
    goal: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a case.

    Attributes:
        case: Its name.
        rows: Its figures; none where it could not be run.
        reason: Why it could not be run, or failed.
        failed: Whether something of it failed.
        raw: Every single measurement, for the JSON file.
    """

    case: str
    rows: tuple[Row, ...] = ()
    reason: str = ""
    failed: bool = False
    raw: Mapping[str, Any] = field(default_factory=dict)


class Case(Protocol):
    """Something to measure, or several such things in turn with one another."""

    @property
    def name(self) -> str:
        """Return its name on the command line."""

    @property
    def title(self) -> str:
        """Return what it measures, in one line."""

    def missing(self) -> str | None:
        """Return why it cannot be run here; None where it can."""

    def expected(self, settings: Settings) -> float:
        """Return about how many seconds it takes."""

    def measure(self, settings: Settings) -> Result:
        """Measure it.

        Raises:
            CommandError: If a command that it runs fails.
        """
