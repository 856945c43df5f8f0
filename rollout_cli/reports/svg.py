"""Charts as SVG in HTML; the page's style sets their colors. All strings are escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from rollout_cli.dataset.convert import Array
from rollout_cli.dataset.episode_table import runs
from rollout_cli.reports.charts import Bars, Dimension, Ranges

_WIDTH = 480
_HEIGHT = 232
_LEFT = 56
_BOTTOM = 40
_TOP = 26
_WIDEST_BAR = 90
_CHARACTER = 8.5  # The maximum width of a digit: phones show larger text.
_SPARK_WIDTH = 120
_SPARK_HEIGHT = 24


def tag(name: str, /, *content: str, **attributes: Any) -> str:
    """Return an element; `content` is HTML, attributes are strings, and `class_` stands for `class`."""
    words = [
        f'{key.rstrip("_").replace("_", "-")}="{escape(str(value))}"' for key, value in attributes.items()
    ]
    return f"<{' '.join([name, *words])}>{''.join(content)}</{name}>"


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return tag("text", escape(text), x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor)


def _chart(chart: Bars | Ranges, parts: Sequence[str], places: Sequence[float], left: float) -> str:
    """Return a chart with labels at these places, to the right of the vertical axis."""
    return tag(
        "svg",
        tag("title", escape(chart.title)),
        _text(0, 12, chart.y, "start"),
        _text(_WIDTH / 2, _HEIGHT - 5, chart.x),
        *parts,
        *_x_labels(chart.labels, places, left),
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
        class_="chart",
    )


def _axis_x(*labels: str) -> float:
    """Return the position of the vertical axis that leaves room for these labels."""
    return max(_LEFT, 8 + _CHARACTER * max(map(len, labels)))


def _x_labels(labels: Sequence[str], places: Sequence[float], left: float) -> list[str]:
    """Return the labels below the axis: all if there is room, else three of them, or two."""
    widest = _CHARACTER * (1 + max(map(len, labels), default=0))
    y = _HEIGHT - 24
    if widest * len(labels) <= _WIDTH - left:
        return [_text(x, y, label) for x, label in zip(places, labels, strict=True)]
    shown = [_text(left, y, labels[0], "start"), _text(_WIDTH, y, labels[-1], "end")]
    if widest * 3 <= _WIDTH - left:
        middle = (len(labels) - 1) // 2
        shown.insert(1, _text(places[middle], y, labels[middle]))
    return shown


def bars(chart: Bars) -> str:
    """Return a histogram as SVG."""
    if not chart.counts:
        return tag("p", escape(chart.note))
    highest_count = max(*chart.counts, 1)
    room = _HEIGHT - _BOTTOM - _TOP
    left = _axis_x(f"{highest_count:,}")
    width = min((_WIDTH - left) / len(chart.counts), _WIDEST_BAR)
    parts = [
        _text(left - 6, _TOP + 8, f"{highest_count:,}", "end"),
        _text(left - 6, _HEIGHT - _BOTTOM, "0", "end"),
    ]
    places = [left + (at + 0.5) * width for at in range(len(chart.labels))]
    for label, count, place in zip(chart.labels, chart.counts, places, strict=True):
        height = room * count / highest_count
        bar = tag(
            "rect",
            tag("title", escape(f"{label}: {count:,}")),
            x=f"{place - width / 2:.1f}",
            y=f"{_TOP + room - height:.1f}",
            width=f"{max(1.0, width - 1.5):.1f}",
            height=f"{height:.1f}",
        )
        parts.append(bar)
    return _chart(chart, parts, places, left)


def ranges(chart: Ranges) -> str:
    """Return the medians as a line, within a band from the 10th to the 90th percentile."""
    if not chart.labels:
        return tag("p", "no finite value")
    highest = f"{chart.percentiles.max():.5g}"
    lowest = f"{chart.percentiles.min():.5g}"
    left = _axis_x(highest, lowest)
    count = len(chart.labels)
    places = [left + 8 + (_WIDTH - left - 16) * (at + 0.5) / count for at in range(count)]
    heights = _TOP + 4 + (_HEIGHT - _BOTTOM - _TOP - 8) * (1 - chart.heights)
    down, middle, up = (_points(places, column) for column in heights.T)
    parts = [
        _text(left - 6, _TOP + 8, highest, "end"),
        _text(left - 6, _HEIGHT - _BOTTOM, lowest, "end"),
    ]
    if chart.ordered:
        parts.append(tag("polygon", points=" ".join([*down, *reversed(up)]), class_="band"))
        parts.append(tag("polyline", points=" ".join(middle), class_="line"))
    else:
        parts += [
            tag("polyline", points=f"{first} {last}", class_="stick")
            for first, last in zip(down, up, strict=True)
        ]
    for point, label, value in zip(middle, chart.labels, chart.percentiles[:, 1].tolist(), strict=True):
        x, y = point.split(",")
        parts.append(tag("circle", tag("title", escape(f"{label}: median {value:.6g}")), cx=x, cy=y, r=3))
    return _chart(chart, parts, places, left)


def _points(places: Sequence[float], heights: Array) -> list[str]:
    return [f"{x:.1f},{y:.1f}" for x, y in zip(places, heights.tolist(), strict=True)]


def spark(row: Dimension) -> str:
    """Return a small histogram of one number, in which every nonempty bin is visible."""
    if not any(row.counts):
        return ""
    highest_count = max(row.counts)
    width = _SPARK_WIDTH / len(row.counts)
    steps = []
    for count in row.counts:
        height = max(_SPARK_HEIGHT * count / highest_count, min(count, 1.5))
        steps.append(f"V{_SPARK_HEIGHT - height:.1f}h{width:.2f}")
    path = tag("path", d=f"M0 {_SPARK_HEIGHT}{''.join(steps)}V{_SPARK_HEIGHT}z")
    return tag("svg", path, viewBox=f"0 0 {_SPARK_WIDTH} {_SPARK_HEIGHT}", class_="spark", aria_hidden="true")


def lines(steps: Array, series: Mapping[str, Array]) -> str:
    """Return numbers over the steps of an episode, one line per number, with gaps for nan and inf."""
    places = steps / max(1, int(steps[-1])) * (_WIDTH - 6) + 3
    return "".join(_line(name, places, values) for name, values in series.items())


def _line(name: str, places: Array, values: Array) -> str:
    is_finite = np.isfinite(values)
    parts = []
    extent = "not finite"
    if is_finite.any():
        low = float(values[is_finite].min())
        high = float(values[is_finite].max())
        extent = f"{low:.4g}"
        if low < high:
            extent += f" to {high:.4g}"
        if not is_finite.all():
            extent += f", {(~is_finite).sum():,} not finite"
        # Halves, because the difference may exceed the largest float.
        heights = 34 - 28 * ((values / 2 - low / 2) / ((high / 2 - low / 2) or 1))
        for start, stop in runs(np.diff(is_finite)):
            if is_finite[start]:
                x = places[start:stop]
                y = heights[start:stop]
                if len(x) == 1:  # Draw a single number as a dash.
                    x = np.append(x - 2, x + 2)
                    y = np.append(y, y)
                parts.append(tag("polyline", points=" ".join(_points(x.tolist(), y)), class_="line"))
    picture = tag("svg", *parts, viewBox=f"0 0 {_WIDTH} 40", class_="trace", preserveAspectRatio="none")
    return tag("div", tag("span", escape(name)), picture, tag("span", escape(extent)), class_="series")
