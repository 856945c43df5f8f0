"""The report: one HTML page about a dataset, without JavaScript or external resources."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator, Mapping
from html import escape
from itertools import islice
from pathlib import Path

import numpy as np

from rollout_cli.dataset.card import dataset_name
from rollout_cli.dataset.convert import Array
from rollout_cli.dataset.folder import staged
from rollout_cli.dataset.reader import Dataset
from rollout_cli.dataset.stats import MAX_ELEMENTS, Anomaly
from rollout_cli.errors import UsageError
from rollout_cli.keywords import Record
from rollout_cli.reports import svg
from rollout_cli.reports.charts import (
    Bars,
    Dimension,
    Ranges,
    by_worker,
    dimensions,
    histogram,
    over_time,
    some_steps,
)
from rollout_cli.reports.frames import as_frame, image_column, png
from rollout_cli.reports.identity import end_of, ends, estimates, facts_of, figures, identity, sized
from rollout_cli.reports.svg import tag
from rollout_cli.sources.untrusted import printable, shell_word

_MOST_ROWS = 300
_FRAMES = 8
_FRAME_SIDE = 96
_POINTS = 240
_SERIES = 8


def write_report(dataset: Dataset, path: Path | str) -> int:
    """Write the report of a dataset, an HTML page, and return its size in bytes.

    Args:
        dataset: The dataset, or a selection of its episodes.
        path: The file to write; it must not exist.

    Raises:
        DatasetExistsError: If `path` exists.
        UsageError: If its name does not end in .html, or the dataset has no episodes.

    Example:
        >>> rollout_cli.report(rollout_cli.load("data"), "report.html") > 10_000
        True
    """
    path = Path(path)
    if path.suffix not in (".html", ".htm"):
        raise UsageError(
            f"{path} does not end in .html",
            code="output-suffix",
            hint="pass a page's name: {output=" + str(path.with_suffix(".html")) + "}",
        )
    if not len(dataset):
        raise UsageError(
            f"{dataset.path} has no episodes to report", code="no-episode", hint="select another dataset"
        )
    with staged(path) as place:
        return place.write_bytes(page(dataset).encode("utf-8", "backslashreplace"))


def page(dataset: Dataset) -> str:
    """Return the report as HTML."""
    facts = facts_of(dataset)
    title = f"Episodes of {dataset_name(facts)}"
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"{tag('title', _safe(title))}{tag('style', _STYLE)}"
    )
    main = tag(
        "main",
        tag("h1", _safe(title)),
        _totals(dataset, facts),
        *_episode_charts(dataset),
        *_column_tables(dataset),
        *_episodes(dataset),
        *_anomalies(facts),
        tag("h2", "How it was made"),
        _pairs(identity(dataset, facts)),
        *_instructions(dataset),
    )
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{main}</body></html>\n'


def _safe(text: object) -> str:
    return escape(printable(str(text)))


def _totals(dataset: Dataset, facts: Record) -> str:
    lengths = dataset.rows.column("length")
    tiles = {
        "episodes": f"{len(dataset):,}",
        "steps": f"{int(lengths.sum()):,}",
        "mean return": f"{figures(dataset.rows.column('return'))['mean']:.5g}",
        "mean length": f"{figures(lengths)['mean']:.5g}",
        "size": sized(facts["bytes"]),
        "status": str(facts["status"]),
    }
    shown = (tag("div", tag("dt", _safe(name)), tag("dd", _safe(value))) for name, value in tiles.items())
    intervals = "; ".join(f"{name} {interval}" for name, interval in estimates(dataset).items())
    return tag("dl", *shown, class_="tiles") + tag("p", _safe(f"95 % intervals: {intervals}"))


def _pairs(rows: Mapping[str, object]) -> str:
    body = (
        tag("tr", tag("th", _safe(name), scope="row"), tag("td", _safe(value)))
        for name, value in rows.items()
    )
    return tag("table", *body, class_="pairs")


def _episode_charts(dataset: Dataset) -> Iterator[str]:
    counts = {end: count for end, count in ends(dataset).items() if count}
    charts: tuple[Bars | Ranges, ...] = (
        histogram("returns", dataset.rows.column("return")),
        histogram("lengths", dataset.rows.column("length")),
        Bars("how episodes end", "", [*counts], [*counts.values()]),
        over_time(dataset),
        by_worker(dataset),
    )
    yield tag("h2", "Episodes") + tag("div", *map(_figure, charts), class_="figures")


def _figure(chart: Bars | Ranges) -> str:
    caption = tag("figcaption", tag("b", _safe(chart.title)), " ", _safe(chart.note))
    return tag("figure", caption, svg.bars(chart) if isinstance(chart, Bars) else svg.ranges(chart))


def _column_tables(dataset: Dataset) -> Iterator[str]:
    kinds = {
        "Observations": ("observation",),
        "Actions": ("action",),
        "Rewards and infos": ("reward", "env_info.", "agent_info."),
    }
    table = some_steps(dataset)
    sampled = "all" if len(table) == dataset.rows.column("length").sum() else "a sample of"
    parts = "Figures, histograms" if dataset.info["status"] == "collecting" else "Histograms"
    note = f"{parts} and shares are from {sampled} {len(table):,} steps."
    yield tag("h2", "Columns") + tag("p", _safe(note))
    numbers = ("min", "max", "mean", "std", "space")
    names = {"column": "", "histogram": "", **dict.fromkeys(numbers, "number"), "remarks": ""}
    head = tag("tr", *(tag("th", name, scope="col", class_=kind) for name, kind in names.items()))
    for title, prefixes in kinds.items():
        rows = list(islice(dimensions(dataset, table, *prefixes), _MOST_ROWS + 1))
        body = (tag("tr", *_cells(row)) for row in rows[:_MOST_ROWS])
        shown = tag("table", tag("thead", head), tag("tbody", *body), class_="columns")
        yield tag("h3", title) + tag("div", shown, class_="wide", tabindex="0")
        if len(rows) > _MOST_ROWS:
            yield tag("p", f"The first {_MOST_ROWS} numbers are shown.")


def _cells(row: Dimension) -> Iterator[str]:
    yield tag("th", _safe(row.name), scope="row")
    yield tag("td", _safe(row.text) if row.text else svg.spark(row))
    for value in (row.low, row.high, row.mean, row.std):
        yield tag("td", "" if math.isnan(value) else f"{value:.4g}", class_="number")
    low, high = row.space
    yield tag("td", f"{low:.4g} to {high:.4g}" if low <= high else "", class_="number")
    yield tag("td", _safe(", ".join(row.remarks)))


def _episodes(dataset: Dataset) -> Iterator[str]:
    # Treat nan as the worst return.
    order = np.argsort(np.nan_to_num(dataset.rows.column("return"), nan=-np.inf), kind="stable")
    chosen = {"Worst": order[0], "Median": order[len(order) // 2], "Best": order[-1]}
    yield tag("h2", "Best, median and worst episode")
    for name, place in reversed(chosen.items()):
        episode = dataset[[int(place)]]
        facts = episode[0].facts
        result = f"{facts['length']:,} steps, return {facts['return']:.6g}, {end_of(facts)}"
        title = _safe(f": episode {facts['episode_id']}, {result}, seed {facts['seed']}")
        caption = tag("figcaption", tag("b", name), title)
        yield tag("figure", caption, _strip(episode) or _lines(episode), class_="episode")


def _strip(episode: Dataset) -> str:
    """Return some frames of an episode side by side; empty if no observation is an image."""
    column = image_column(episode)
    if column is None:
        return ""
    table = episode.rows.some_steps(_FRAMES, ("step", column.name), n_runs=_FRAMES)
    pictures = []
    for step, image in zip(table["step"].to_pylist(), column.decode(table), strict=True):
        frame = as_frame(image)
        skip = -(-max(frame.shape[:2]) // _FRAME_SIDE)
        data = base64.b64encode(png(np.ascontiguousarray(frame[::skip, ::skip]))).decode()
        picture = f'<img alt="step {step}" src="data:image/png;base64,{data}">'
        pictures.append(tag("span", picture, f"{step:,}"))
    return tag("div", *pictures, class_="strip")


def _lines(episode: Dataset) -> str:
    """Return the first numbers of an episode's observations and actions as lines over its steps."""
    small = [
        column
        for column in (*episode.rows.spaces.observation, *episode.rows.spaces.action)
        if column.stored and column.leaf.dtype != object and math.prod(column.leaf.shape) <= MAX_ELEMENTS
    ]
    table = episode.rows.some_steps(_POINTS, ("step", *(column.name for column in small)), n_runs=_POINTS)
    steps = table["step"].to_numpy()
    series: dict[str, Array] = {}
    for column in small:
        values = column.decode(table).astype(np.float64).reshape(len(steps), -1)
        limit = _SERIES if column.name.startswith("observation") else _SERIES // 2
        for at, numbers in enumerate(values.T[:limit]):
            series[f"{column.name}[{at}]" if column.leaf.shape else column.name] = numbers
    return svg.lines(steps, dict(islice(series.items(), 2 * _SERIES)))


def _anomalies(facts: Record) -> Iterator[str]:
    items = [tag("li", _safe(Anomaly(**anomaly))) for anomaly in facts["anomalies"]]
    for name, count in facts["dropped_infos"].items():
        items.append(tag("li", _safe(f"{name} was dropped from {count:,} rows")))
    if items:
        yield tag("h2", "Anomalies") + tag("ul", *items)


_PYTHON = """\
import rollout_cli

dataset = rollout_cli.load({python})
episode = dataset[0]
print(len(dataset), episode.observations, episode.total_reward)"""
_SQL = "select episode_id, sum(reward) from '{sql}/data/**/*.parquet' group by episode_id"
_SHELL = "rollout verify {shell}\nrollout replay {shell} --episode 0"


def _instructions(dataset: Dataset) -> Iterator[str]:
    name = dataset.path.name
    yield tag("h2", "How to read it") + _code(_PYTHON.format(python=json.dumps(name)))
    yield tag("p", "Any Parquet reader can open it:") + _code(_SQL.format(sql=name.replace("'", "''")))
    yield tag("h2", "How to check it") + _code(_SHELL.format(shell=shell_word(name)))


def _code(text: str) -> str:
    return tag("pre", tag("code", escape(printable(text, keep="\n"))))


_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --muted: #5b6675; --line: #d9dee6; --back: #ffffff;
  --card: #f5f7fa; --accent: #2f6fb7; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --muted: #9aa6b5; --line: #38414e;
  --back: #14181e; --card: #1c222b; --accent: #7fb2ec; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 72rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.6rem; margin: 0.5rem 0 1rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2rem 0 0.5rem; border-bottom: 1px solid var(--line); padding-bottom: 0.2rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 0.3rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(8rem, 1fr)); gap: 0.6rem; margin: 0; }
.tiles div { background: var(--card); border-radius: 6px; padding: 0.5rem 0.8rem; }
dt { color: var(--muted); font-size: 0.8rem; } dd { margin: 0; font-size: 1.15rem; font-weight: 600; }
.figures { display: grid; gap: 0.8rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); }
figure { margin: 0; background: var(--card); border-radius: 6px; padding: 0.8rem; min-width: 0; }
figure.episode { margin-bottom: 0.8rem; }
figcaption { font-size: 0.85rem; color: var(--muted); margin-bottom: 0.4rem; overflow-wrap: anywhere; }
figcaption b { color: var(--ink); }
svg { display: block; } svg text { font-size: 12px; fill: var(--muted); }
.chart { width: 100%; height: auto; }
.chart rect, .chart circle, .spark path { fill: var(--accent); }
.stick { stroke: var(--accent); stroke-width: 6; opacity: 0.35; }
.band { fill: var(--accent); opacity: 0.22; }
.line { fill: none; stroke: var(--accent); stroke-width: 1.5; vector-effect: non-scaling-stroke; }
.spark { width: 120px; height: 24px; }
.series { display: grid; grid-template-columns: 9rem 1fr 11rem; gap: 0.6rem; align-items: center;
  font-size: 0.8rem; color: var(--muted); }
.series span { overflow-wrap: anywhere; }
.trace { width: 100%; height: 40px; }
.strip { display: flex; flex-wrap: wrap; gap: 4px; font-size: 0.75rem; color: var(--muted); }
.strip span { text-align: center; } .strip img { display: block; image-rendering: pixelated; width: 96px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.85rem; }
th, td { padding: 0.25rem 0.6rem; text-align: left; vertical-align: middle;
  border-bottom: 1px solid var(--line); }
.columns th, .columns td { white-space: nowrap; } thead th { color: var(--muted); font-weight: 500; }
.columns { width: 100%; }
.number, .columns thead th.number { text-align: right; font-variant-numeric: tabular-nums; }
.pairs td { overflow-wrap: anywhere; } .pairs th { white-space: nowrap; color: var(--muted); font-weight: 500;
  vertical-align: top; }
pre { background: var(--card); border-radius: 6px; padding: 0.8rem; overflow-x: auto; font-size: 0.85rem; }
@media (max-width: 40rem) { svg text { font-size: 15px; }
  .series { grid-template-columns: 1fr 1fr; } .series svg { grid-row: 2; grid-column: 1 / 3; }
  .series span:last-child { text-align: right; } .pairs th { white-space: normal; } }
"""
"""Light or dark by the reader's system setting, and readable on a phone."""
