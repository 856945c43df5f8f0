"""Charts as SVG inside of HTML; the page's style decides their colours. All texts are escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from rollout_cli.dataset.convert import Array
from rollout_cli.report.charts import Bars, Dimension, Ranges

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 480, 200, 56, 24, 10
_WIDEST_BAR = 90
_SPARK_WIDTH, _SPARK_HEIGHT = 120, 24


def tag(name: str, content: str = "", /, **attributes: Any) -> str:
    """Return an element; `content` is HTML, and attributes are texts. `class_` stands for `class`."""
    words = [
        f'{key.rstrip("_").replace("_", "-")}="{escape(str(value))}"' for key, value in attributes.items()
    ]
    return f"<{' '.join([name, *words])}>{content}</{name}>"


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return tag("text", escape(text), x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor)


def _chart(title: str, parts: Sequence[str]) -> str:
    body = tag("title", escape(title)) + "".join(parts)
    return tag("svg", body, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", role="img", class_="chart")


def _x_labels(labels: Sequence[str], places: Sequence[float]) -> list[str]:
    """Return the labels below the axis: all where there is room, else the first, middle and last ones."""
    wide = max(map(len, labels), default=0) * 7 * len(labels) > _WIDTH - _LEFT
    shown = {0, len(labels) // 2, len(labels) - 1} if wide else range(len(labels))
    ends = {0: "start", len(labels) - 1: "end"} if wide else {}
    return [_text(places[at], _HEIGHT - 6, labels[at], ends.get(at, "middle")) for at in sorted(shown)]


def bars(chart: Bars) -> str:
    """Return a histogram."""
    if not chart.counts:
        return tag("p", escape(chart.note))
    most, room = max(*chart.counts, 1), _HEIGHT - _BOTTOM - _TOP
    width = min((_WIDTH - _LEFT) / len(chart.counts), _WIDEST_BAR)
    parts = [_text(_LEFT - 6, _TOP + 8, f"{most:,}", "end"), _text(_LEFT - 6, _HEIGHT - _BOTTOM, "0", "end")]
    for at, (label, count) in enumerate(zip(chart.labels, chart.counts, strict=True)):
        height = room * count / most
        shape = {"x": f"{_LEFT + at * width:.1f}", "y": f"{_TOP + room - height:.1f}"}
        size = {"width": f"{max(1.0, width - 1.5):.1f}", "height": f"{height:.1f}"}
        parts.append(tag("rect", tag("title", escape(f"{label}: {count:,}")), **shape, **size))
    places = [_LEFT + (at + 0.5) * width for at in range(len(chart.labels))]
    return _chart(chart.title, [*parts, *_x_labels(chart.labels, places)])


def ranges(chart: Ranges) -> str:
    """Return medians as a line, in a band from the tenth to the ninetieth percentile."""
    if not chart.labels:
        return tag("p", "no finite value")
    low, high = float(chart.percentiles.min()), float(chart.percentiles.max())
    room, count = _HEIGHT - _BOTTOM - _TOP - 8, len(chart.labels)
    places = [_LEFT + 8 + (_WIDTH - _LEFT - 16) * (at + 0.5) / count for at in range(count)]
    heights = _TOP + 4 + room * (1 - (chart.percentiles - low) / ((high - low) or 1))
    down, middle, up = (_points(places, heights[:, at]) for at in range(3))
    parts = [
        _text(_LEFT - 6, _TOP + 8, f"{high:.5g}", "end"),
        _text(_LEFT - 6, _HEIGHT - _BOTTOM, f"{low:.5g}", "end"),
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
    return _chart(chart.title, [*parts, *_x_labels(chart.labels, places)])


def _points(places: Sequence[float], heights: Array) -> list[str]:
    return [f"{x:.1f},{y:.1f}" for x, y in zip(places, heights.tolist(), strict=True)]


def spark(row: Dimension) -> str:
    """Return the histogram of one number, small; a bin that holds anything is seen."""
    most = max(row.counts, default=0)
    if not most:
        return ""
    width = _SPARK_WIDTH / len(row.counts)
    steps = []
    for count in row.counts:
        height = max(1.5, _SPARK_HEIGHT * count / most) if count else 0
        steps.append(f"V{_SPARK_HEIGHT - height:.1f}h{width:.2f}")
    path = tag("path", d=f"M0 {_SPARK_HEIGHT}{''.join(steps)}V{_SPARK_HEIGHT}z")
    return tag("svg", path, viewBox=f"0 0 {_SPARK_WIDTH} {_SPARK_HEIGHT}", class_="spark", aria_hidden="true")


def lines(steps: Array, series: Mapping[str, Array]) -> str:
    """Return numbers over the steps of an episode, one line below the other."""
    out, last = [], max(1, int(steps[-1]))
    for name, values in series.items():
        low, high = float(values.min()), float(values.max())
        places = (steps / last * (_WIDTH - 2) + 1).tolist()
        points = _points(places, 34 - 28 * (values - low) / ((high - low) or 1))
        line = tag("polyline", points=" ".join(points), class_="line")
        picture = tag("svg", line, viewBox=f"0 0 {_WIDTH} 40", class_="trace", preserveAspectRatio="none")
        extent = f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
        out.append(
            tag("div", tag("span", escape(name)) + picture + tag("span", escape(extent)), class_="series")
        )
    return "".join(out)
