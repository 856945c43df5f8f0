"""Charts as lines of text, with plain Unicode blocks and without color."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import numpy as np

from rollout_cli.reports.charts import Bars, Chart, Dimension, Profiles, Ranges

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_HEIGHTS = " ▁▂▃▄▅▆▇█"
_LEAST_BAR = 10


def lines(chart: Chart, width: int) -> Iterator[str]:
    """Yield the lines of a chart, at most `width` columns each unless names and numbers need more."""
    yield chart.title
    yield from textwrap.wrap(chart.note, width)
    yield ""
    if isinstance(chart, Bars):
        yield from _bars(chart, width)
    elif isinstance(chart, Ranges):
        yield from _ranges(chart, width)
    else:
        yield from _profiles(chart, width)


def _bars(chart: Bars, width: int) -> Iterator[str]:
    total = max(1, sum(chart.counts))
    highest_count = max(1, *chart.counts, 0)
    ends = [f"{count:,} {100 * count / total:5.1f} %" for count in chart.counts]
    left = max(map(len, [chart.x, *chart.labels]))
    right = max(map(len, ends), default=0)
    room = max(_LEAST_BAR, width - left - right - 4)
    yield f"{chart.x:>{left}}  {chart.y}"
    for label, count, end in zip(chart.labels, chart.counts, ends, strict=True):
        eighths = max(round(8 * room * count / highest_count), min(count, 1))
        bar = "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
        yield f"{label:>{left}}  {bar:<{room}}  {end:>{right}}"


def _ranges(chart: Ranges, width: int) -> Iterator[str]:
    if not chart.labels:
        yield "no finite value"
        return
    lowest = f"{chart.percentiles.min():.5g}"
    left = max(map(len, [chart.x, *chart.labels]))
    middles = [f"{middle:.5g}" for middle in chart.percentiles[:, 1]]
    right = max(map(len, middles))
    room = max(_LEAST_BAR, width - left - right - 4)
    cells = np.rint(chart.heights * (room - 1)).astype(int)
    yield f"{chart.x:>{left}}  {chart.y}"
    for label, (first, middle, last), value in zip(chart.labels, cells.tolist(), middles, strict=True):
        bar = [" "] * room
        bar[first : last + 1] = "─" * (last + 1 - first)
        bar[middle] = "█"
        yield f"{label:>{left}}  {''.join(bar)}  {value:>{right}}"
    yield f"{'':>{left}}  {lowest}{chart.percentiles.max():>{room - len(lowest)}.5g}"


def _profiles(chart: Profiles, width: int) -> Iterator[str]:
    cells = [(row.name, f"{row.low:.4g}", f"{row.high:.4g}") for row in chart.rows]
    name_width, low_width, high_width = (max(map(len, column)) for column in zip(*cells, strict=True))
    for row, (name, low, high) in zip(chart.rows, cells, strict=True):
        line = row.text
        if not line:
            line = f"{low:>{low_width}} {spark(row)} {high:<{high_width}}  {', '.join(row.remarks)}"
        yield f"{name:<{name_width}}  {line}".rstrip()[: max(width, 40)]


def spark(row: Dimension) -> str:
    """Return the histogram of a number as a row of blocks, in which every nonempty bin is visible."""
    if not any(row.counts):
        return "no finite number"
    highest_count = max(row.counts)
    return "".join(_HEIGHTS[-(-8 * count // highest_count)] for count in row.counts)
