"""Charts as PNG or SVG files, drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rollout_cli.dataset.store import staged
from rollout_cli.errors import UsageError
from rollout_cli.loading import needing
from rollout_cli.report.charts import Bars, Chart, Profiles, Ranges

SUFFIXES = (".png", ".svg")
_COLOUR, _COLUMNS, _DOTS, _SHORT_LABEL = "#3b6fb6", 3, 144, 3


def write_figure(charts: Sequence[Chart], path: Path) -> None:
    """Write charts to one file; its suffix says of which kind.

    Raises:
        DatasetExistsError: If the file exists.
        UsageError: If the suffix is another one, or matplotlib is not installed.
    """
    if path.suffix not in SUFFIXES:
        raise UsageError(
            f"{path} does not end in {' or '.join(SUFFIXES)}",
            hint="name a picture: {output=" + str(path.with_suffix(".png")) + "}",
        )
    with staged(path) as place:
        draw(charts, place)


def draw(charts: Sequence[Chart], place: Path) -> None:
    """Draw charts into a file that nobody else sees yet."""
    with needing("matplotlib"):
        from matplotlib.figure import Figure  # noqa: PLC0415 - an optional package

    heights = [_height(chart) for chart in charts]
    figure: Any = Figure(figsize=(8, sum(heights)), dpi=_DOTS, layout="constrained")
    parts = np.atleast_1d(figure.subfigures(len(charts), 1, height_ratios=heights))
    for part, chart in zip(parts, charts, strict=True):
        part.suptitle(chart.title)
        if isinstance(chart, Profiles):
            _profiles(part, chart)
        else:
            _panel(part.subplots(), chart)
    # Neither the time nor the version: the same dataset has the same picture.
    metadata = {"Date": None} if place.suffix == ".svg" else {"Software": None}
    figure.savefig(place, metadata=metadata)


def _height(chart: Chart) -> float:
    return 1.0 + 1.3 * -(-len(chart.rows) // _COLUMNS) if isinstance(chart, Profiles) else 4.0


def _panel(axes: Any, chart: Bars | Ranges) -> None:
    axes.set_title(chart.note, fontsize="small")
    axes.spines[["top", "right"]].set_visible(False)
    if isinstance(chart, Ranges):
        places = np.arange(len(chart.labels))
        low, middle, high = chart.percentiles.T
        axes.fill_between(places, low, high, color=_COLOUR, alpha=0.25, linewidth=0)
        axes.plot(places, middle, color=_COLOUR, marker="o", markersize=4)
        axes.set_xticks(places, chart.labels, rotation=90)
        return
    axes.bar(chart.labels, chart.counts, width=0.95, color=_COLOUR)
    is_wide = any(len(label) > _SHORT_LABEL for label in chart.labels)
    axes.tick_params(axis="x", rotation=90 if is_wide else 0)


def _profiles(part: Any, chart: Profiles) -> None:
    grid = part.subplots(-(-len(chart.rows) // _COLUMNS), _COLUMNS, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for axes, row in zip(grid.flat, chart.rows, strict=False):
        axes.set_axis_on()
        axes.set_title(row.name, fontsize="small")
        axes.set_yticks([])
        axes.tick_params(labelsize="x-small")
        axes.spines[["top", "right", "left"]].set_visible(False)
        if row.counts:
            axes.stairs(row.counts, row.edges, fill=True, color=_COLOUR)
        else:
            axes.text(0.5, 0.5, row.text[:40] or "no finite number", ha="center", fontsize="x-small")
