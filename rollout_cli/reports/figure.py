"""Charts as PNG or SVG files, drawn by matplotlib."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rollout_cli.dataset.folder import staged
from rollout_cli.dataset.reader import Dataset
from rollout_cli.errors import DatasetExistsError, UsageError
from rollout_cli.reports.charts import Bars, Chart, Profiles, Ranges, are_halves, chart_of
from rollout_cli.sources.loading import needing

SUFFIXES = (".png", ".svg")
_COLOR = "#3b6fb6"
_COLUMNS = 3
_DOTS = 144


def check_figure(path: Path) -> None:
    """Check, before the work for it, that a chart can be written.

    Raises:
        DatasetExistsError: If the file exists.
        UsageError: If the suffix is not supported, or matplotlib is not installed.
    """
    if path.suffix not in SUFFIXES:
        raise UsageError(
            f"{path} does not end in {' or '.join(SUFFIXES)}",
            code="output-suffix",
            hint="pass a picture's name: {output=" + str(path.with_suffix(".png")) + "}",
        )
    with needing("matplotlib"):
        import matplotlib.figure  # noqa: PLC0415, F401 - an optional package
    if path.exists() or path.is_symlink():
        raise DatasetExistsError(
            f"{path} already exists", code="output-exists", hint="remove it, or choose another path"
        )


def write_figure(chart: Chart, path: Path) -> None:
    """Write a chart to a new PNG or SVG file, chosen by its suffix.

    Raises:
        DatasetExistsError: If the file exists.
        UsageError: If the suffix is not supported, or matplotlib is not installed.
    """
    check_figure(path)
    with staged(path) as place:
        place.write_bytes(drawn(chart, path.suffix))


def figure_of(dataset: Dataset, what: str = "returns") -> Any:
    """Plot a dataset, and return the `matplotlib.figure.Figure`, which a notebook shows.

    Args:
        dataset: The dataset, or a selection of its episodes.
        what: `returns`, `lengths` (in steps), `over-time`, `actions` or `observations`, as in `rollout plot`.

    Raises:
        UsageError: If there is no such plot, or matplotlib is not installed.

    Example:
        >>> figure = rollout_cli.plot(rollout_cli.load("data"), "lengths")
        >>> figure.savefig("lengths.png")
    """
    return _figure(chart_of(dataset, what))


@np.errstate(over="ignore", invalid="ignore")  # For matplotlib's margins of numbers near the largest float.
def drawn(chart: Chart, suffix: str) -> bytes:
    """Return a chart as the bytes of a picture, in the file format of this suffix."""
    figure = _figure(chart)
    # Omit the time and the version: the same dataset always gives the same picture.
    metadata = {"Date": None} if suffix == ".svg" else {"Software": None}
    picture = io.BytesIO()
    figure.savefig(picture, format=suffix[1:], metadata=metadata)
    return picture.getvalue()


def _figure(chart: Chart) -> Any:
    with needing("matplotlib"):
        from matplotlib.figure import Figure  # noqa: PLC0415 - an optional package

    figure: Any = Figure(figsize=(8, 4), dpi=_DOTS, layout="constrained")
    figure.suptitle(chart.title)
    if isinstance(chart, Profiles):
        n_rows = -(-len(chart.rows) // _COLUMNS)
        figure.set_figheight(1.0 + 1.3 * n_rows)
        _profiles(figure.subplots(n_rows, _COLUMNS, squeeze=False).flat, chart)
    else:
        _panel(figure.subplots(), chart)
    return figure


def _panel(axes: Any, chart: Bars | Ranges) -> None:
    axes.set_title(chart.note, fontsize="small")
    axes.set_xlabel(chart.x, parse_math=False)
    axes.set_ylabel(chart.y)
    axes.spines[["top", "right"]].set_visible(False)
    if isinstance(chart, Ranges):
        low, middle, high = chart.percentiles.T
        if not chart.ordered:
            places = range(len(chart.labels))
            axes.errorbar(places, middle, [middle - low, high - middle], fmt="o", capsize=4, color=_COLOR)
            axes.set_xticks(places, chart.labels, parse_math=False)
            return
        axes.fill_between(chart.places, low, high, color=_COLOR, alpha=0.25, linewidth=0)
        axes.plot(chart.places, middle, color=_COLOR, marker="o", markersize=4)
        return
    axes.bar(chart.edges[:-1], chart.counts, 0.95 * np.diff(chart.edges), align="edge", color=_COLOR)
    axes.locator_params(integer=are_halves(chart.edges))


def _profiles(panels: Sequence[Any], chart: Profiles) -> None:
    for axes in panels[len(chart.rows) :]:
        axes.set_axis_off()
    for axes, row in zip(panels, chart.rows, strict=False):
        # Names may contain dollar signs, which do not mark formulas.
        axes.set_title(row.name, fontsize="small", parse_math=False)
        axes.set_yticks([])
        axes.tick_params(labelsize="x-small")
        axes.spines[["top", "right", "left"]].set_visible(False)
        if row.counts:
            axes.stairs(row.counts, row.edges, fill=True, color=_COLOR)
        else:
            text = row.text[:40] or "no finite number"
            axes.text(0.5, 0.5, text, ha="center", fontsize="x-small", parse_math=False)
