"""The machine and the results as Markdown."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.results import Result, Row
from benchmarks.stats import Spread

PACKAGES = ("rollout-cli", "gymnasium", "numpy", "pyarrow", "torch", "mujoco", "ale-py")

_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


def machine() -> dict[str, str]:
    """Return what the figures were measured on."""
    return {
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "governor": _GOVERNOR.read_text(encoding="ascii").strip() if _GOVERNOR.exists() else "not told",
        "load before": f"{os.getloadavg()[0]:.2f}",
        "system": platform.platform(),
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def machine_lines(facts: dict[str, str]) -> list[str]:
    """Return the machine as a Markdown list."""
    return [f"- {name}: {value}" for name, value in facts.items()]


_HEADINGS = ("work", "against", "median", "min - max", "what it is made of", "at least / aim")


def results_table(results: Iterable[Result]) -> list[str]:
    """Return the results as a Markdown table, one row a figure; a case without figures says why."""
    lines = [_line(_HEADINGS), _line(["---"] * len(_HEADINGS))]
    for result in results:
        lines += [_line(_cells(row)) for row in result.rows]
        if result.reason:
            lines.append(_line([result.case, "", "-", "", result.reason, ""]))
    return lines


def _cells(row: Row) -> list[str]:
    if row.figure is None:
        return [row.what, row.against, "-", "", row.detail, row.goal]
    low_high = f"{number(row.figure.low)} - {number(row.figure.high)}"
    return [row.what, row.against, figure_text(row.figure, row.unit), low_high, row.detail, row.goal]


def figure_text(figure: Spread, unit: str) -> str:
    """Return the median with its unit; a ratio stands alone."""
    return number(figure.median) if unit == "x" else f"{number(figure.median)} {unit}"


def number(value: float) -> str:
    """Return a number with three digits that say something."""
    if abs(value) >= 1000:  # noqa: PLR2004
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"  # noqa: PLR2004


def _line(cells: Sequence[str]) -> str:
    # A bar or a line break would end the cell.
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", "; ") for cell in cells) + " |"
