"""Summaries of a dataset as plain values: the dimensions of its columns, and its charts.

The terminal, matplotlib and the HTML report draw them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rollout_cli.dataset.convert import Array, decode
from rollout_cli.dataset.layout import parsed_json, stats_path
from rollout_cli.dataset.parquet import DAMAGED_HINT, reading
from rollout_cli.dataset.reader import Dataset
from rollout_cli.dataset.stats import stats_document, table_stats
from rollout_cli.episodes.plain import from_plain
from rollout_cli.errors import DatasetFormatError, UsageError
from rollout_cli.keywords import Record
from rollout_cli.reports.identity import spread

PLOTS = ("returns", "lengths", "over-time", "actions", "observations")
"""The plots of `rollout plot`."""

_BARS = 16
_GROUPS = 16
_MOST_PROFILES = 64
# Limits of the sample, and of the numbers of a column.
_MOST_STEPS = 200_000
_MOST_BYTES = 64 << 20
_MOST_VALUES = 1 << 20
_BINS = 24
_EXACT_BELOW = 2.0**52  # Above this all floats are integers, and not all integers and halves are floats.
_LEAST_SHARE = 0.0005  # Smaller shares would be shown as 0.0 %.
_STATS = {"low": "min", "high": "max", "mean": "mean", "std": "std"}


@dataclass(frozen=True, eq=False)
class Dimension:
    """One number of a column, or all numbers of an image; unknown values are nan.

    Attributes:
        name: The column, with the number's index if the column has several.
        space: The minimum and maximum of its space.
        low: The minimum of all steps.
        high: The maximum of all steps.
        mean: The mean of all steps.
        std: The standard deviation of all steps.
        at_bound: The share of the sample that equals a bound of the space.
        not_finite: The share of the sample that is nan or infinite.
        missing: The share of steps without a value.
        edges: The edges of the bins, (n + 1,); empty if no number is finite.
        counts: The number of sampled values in each bin, (n,).
        text: A description of values that are not numbers.
    """

    name: str
    space: tuple[float, float] = (math.nan, math.nan)
    low: float = math.nan
    high: float = math.nan
    mean: float = math.nan
    std: float = math.nan
    at_bound: float = 0.0
    not_finite: float = 0.0
    missing: float = 0.0
    edges: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    text: str = ""

    @property
    def remarks(self) -> list[str]:
        """Unusual properties of the values, in words."""
        shares = {"at a bound": self.at_bound, "not finite": self.not_finite, "missing": self.missing}
        remarks = ["constant"] if self.low == self.high else []
        for name, share in shares.items():
            if share >= _LEAST_SHARE:
                remarks.append(f"{share:.1%} {name}")
            elif share:
                remarks.append(f"some {name}")
        return remarks


def some_steps(dataset: Dataset) -> pa.Table:
    """Return the rows of `data`, or a sample of them if there are many."""
    step_bytes = dataset.rows.table.schema.step_bytes
    return dataset.rows.some_steps(max(1, min(_MOST_STEPS, _MOST_BYTES // max(1, step_bytes))))


def stats_of(dataset: Dataset) -> tuple[dict[str, Any], int]:
    """Return meta/stats.json and its number of steps; before the end of a run, those of a sample.

    Raises:
        DatasetFormatError: If the file is damaged.
    """
    path = stats_path(dataset.path)
    with reading(path):
        if dataset.info["status"] != "collecting" and path.is_file():
            return _stats_in(path), int(dataset.rows.column("length").sum())
    table = some_steps(dataset)
    return stats_document(table_stats(table), dataset.rows.table.schema), len(table)


def _stats_in(path: Path) -> dict[str, Any]:
    document = parsed_json(path, path.read_bytes(), DAMAGED_HINT)
    name = "the document"
    try:
        for name in {**document}:
            np.stack([np.asarray(document[name][field], float) for field in ("count", *_STATS.values())])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DatasetFormatError(
            f"{path} is damaged: {name} has no statistics: {error!r:.200}",
            code="info-statistics",
            hint=DAMAGED_HINT,
        ) from error
    return dict(from_plain(document))


def dimensions(dataset: Dataset, table: pa.Table, *prefixes: str) -> Iterator[Dimension]:
    """Yield the numbers of the columns with these name prefixes; an image is one number.

    `table` has a sample of rows of `data`.
    """
    stats, _ = stats_of(dataset)
    features = dataset.info["features"]
    for name in table.column_names:
        if name.startswith(prefixes) and (name == "reward" or features[name]["kind"] != "fact"):
            yield from _of_column(dataset, table, name, stats.get(name, {}))


def _of_column(dataset: Dataset, table: pa.Table, name: str, stats: Record) -> Iterator[Dimension]:
    column = {column.name: column for column in dataset.rows.spaces.columns}.get(name)
    values = decode(table[name]) if column is None else column.decode(table)
    missing = 1 - len(values) / max(1, len(table))
    if values.dtype == object:
        yield Dimension(name, missing=missing, text=_frequent(values.tolist()))
        return
    exact = np.array([stats.get(key, math.nan) for key in _STATS.values()], float)
    shape = values.shape[1:]
    if exact.shape[1:] != shape:
        shape = ()  # Images, and info arrays of varying shape, have no statistics of each number.
    numbers = values.reshape(-1, math.prod(shape))
    if values.size >= 2 * _MOST_VALUES:  # A random sample: every third number of an image has one color.
        size = _MOST_VALUES // numbers.shape[1]
        numbers = numbers[np.random.default_rng(0).integers(len(numbers), size=size)]
    space = np.full((2, *shape), math.nan)
    if column is not None and column.leaf.bounds:
        space[:] = column.leaf.bounds if shape else [*map(np.min, column.leaf.bounds)]
    space += 0.0  # No -0.
    for column_values, index in zip(numbers.T, np.ndindex(shape), strict=True):
        low, high = space[:, *index].tolist()
        facts: dict[str, Any] = _observed(column_values, low, high) | {"missing": missing}
        if exact.shape[1:] == shape:
            facts |= zip(_STATS, exact[:, *index].tolist(), strict=True)
        title = f"{name}{[*index]}" if index else name
        yield Dimension(title, (low, high), **facts)


def _observed(values: Array, low: float, high: float) -> dict[str, Any]:
    """Return the properties of sampled numbers that are not in their statistics."""
    finite = values[np.isfinite(values)].astype(np.float64)
    if not len(finite):
        return {"not_finite": float(len(values) > 0)}
    at_bound = 0.0
    # For a few integers, such as those of Discrete spaces, the bounds are ordinary values.
    if values.dtype.kind == "f" or high - low >= _BINS:
        at_bound = float(((finite == low) | (finite == high)).mean())
    counts, edges = np.histogram(finite, bins_of(finite))
    return {
        "at_bound": at_bound,
        "not_finite": 1 - len(finite) / len(values),
        "edges": tuple(edges.tolist()),
        "counts": tuple(counts.tolist()),
    }


def bins_of(values: Array, limit: int = _BINS) -> Array:
    """Return the edges of bins for finite numbers, float64 (n + 1,): a few integers get one bin each."""
    low = float(values.min())
    high = float(values.max())
    if max(abs(low), abs(high)) < _EXACT_BELOW and np.array_equal(values, np.floor(values)):
        # With a fractional width, some bins would hold one integer more than others.
        width = math.ceil((high - low + 1) / limit)
        return np.arange(low, high + width + 1, width) - 0.5
    # The range may have fewer floats than bins, or exceed the largest float.
    if not np.spacing(max(abs(low), abs(high))) * limit <= high - low < math.inf:
        return np.array([low, max(high, np.nextafter(low, math.inf))])
    edges = np.linspace(low, high, limit + 1)
    if are_halves(edges):  # Not to be mistaken for bins of integers.
        edges[-1] = np.nextafter(high, math.inf)
    return edges


def are_halves(edges: Sequence[float] | Array) -> bool:
    """Return True if bins of `bins_of` are those of integers: their edges lie halfway between two."""
    return all(edge % 1 == 0.5 for edge in edges)  # noqa: PLR2004


def _frequent(values: list[Any]) -> str:
    counts = Counter(map(str, values))
    for value, count in counts.most_common(1):
        return f"{len(counts):,} different, {count:,} times {value[:60]!r}"
    return "no value"


# Charts.


@dataclass(frozen=True, slots=True)
class Titled:
    """The common fields of charts: a title and a note, and the labels of both axes."""

    title: str
    note: str
    x: str = field(default="", kw_only=True)
    y: str = field(default="episodes", kw_only=True)


@dataclass(frozen=True, slots=True)
class Bars(Titled):
    """The number of occurrences of each value, or of each range of values."""

    labels: Sequence[str]
    counts: Sequence[int]
    edges: Sequence[float] = ()  # Edges of the ranges, (n + 1,); empty if the values are names.


@dataclass(frozen=True, slots=True)
class Ranges(Titled):
    """Percentiles of groups of values: the 10th, the median and the 90th."""

    labels: Sequence[str]
    percentiles: Array  # (n, 3)
    ordered: bool  # True if the groups are a sequence.
    places: Sequence[float] = ()  # The mean episode of each group.

    @property
    def heights(self) -> Array:
        """The percentiles, scaled from 0 (minimum) to 1 (maximum)."""
        halves: Array = self.percentiles / 2  # The difference may exceed the largest float.
        low = float(halves.min())
        high = float(halves.max())
        return np.asarray((halves - low) / ((high - low) or 1))


@dataclass(frozen=True, slots=True)
class Profiles(Titled):
    """A small histogram for each of several numbers."""

    rows: Sequence[Dimension]


Chart = Bars | Ranges | Profiles


def chart_of(dataset: Dataset, plot: str) -> Chart:
    """Return the chart of one of `PLOTS`.

    Raises:
        UsageError: If the plot is unknown, or the dataset is empty.
    """
    if plot not in PLOTS:
        raise UsageError(
            f"unknown plot {plot!r}", code="plot-unknown", hint=f"choose from: {', '.join(PLOTS)}"
        )
    if not len(dataset):
        raise UsageError(
            f"{dataset.path} has no episodes to plot", code="no-episode", hint="select another dataset"
        )
    if plot == "over-time":
        return over_time(dataset)
    if plot in ("returns", "lengths"):
        return histogram(plot, dataset.rows.column(plot[:-1]))
    return _column_chart(dataset, plot[:-1])


def histogram(name: str, values: Array) -> Bars:
    """Return the histogram of the finite `returns` or `lengths` of episodes."""
    title = f"{name} of {len(values):,} episodes"
    finite = values[np.isfinite(values)]
    if not len(finite):
        return Bars(title, "no finite value", [], [])
    counts, edges = np.histogram(finite, bins_of(finite, min(_BARS, 3 + 2 * math.isqrt(len(finite)))))
    note = spread(finite)
    if len(finite) < len(values):
        note += f"; {len(values) - len(finite):,} are not finite"
    unit = "length (steps)" if name == "lengths" else "return"
    return Bars(title, note, bin_labels(edges), counts.tolist(), edges.tolist(), x=unit)


def bin_labels(edges: Sequence[float] | Array) -> list[str]:
    """Return the labels of bins of `bins_of`, with as many digits as needed to distinguish them."""
    if are_halves(edges):
        labels = []
        for low, high in pairwise(edges):
            label = f"{low + 0.5:.0f}"
            if high - low > 1:
                label += f" to {high - 0.5:.0f}"
            labels.append(label)
        return labels
    for digits in range(4, 18):
        ends = [f"{edge:.{digits}g}" for edge in edges]
        if len({*ends}) == len(ends):
            break
    return [f"{first} to {last}" for first, last in pairwise(ends)]


def over_time(dataset: Dataset) -> Ranges:
    """Return the returns in the course of the run: its episodes in order, in groups of equal size."""
    groups = {}
    for group in np.array_split(np.arange(len(dataset)), min(_GROUPS, len(dataset))):
        label = f"{group[0]:,}"
        if len(group) > 1:
            label += f" to {group[-1]:,}"
        groups[label] = group
    return _ranges(dataset, "returns over the run", groups, ordered=True)


def by_worker(dataset: Dataset) -> Ranges:
    """Return the returns by worker, for at most the first `_GROUPS` workers."""
    workers = dataset.rows.column("worker")
    groups = {str(number): np.flatnonzero(workers == number) for number in np.unique(workers)[:_GROUPS]}
    return _ranges(dataset, "returns by worker", groups, ordered=False)


def _ranges(dataset: Dataset, title: str, groups: Mapping[str, Array], *, ordered: bool) -> Ranges:
    returns = dataset.rows.column("return")
    percentiles = {}
    places = []
    for label, group in groups.items():
        values = returns[group]
        finite = values[np.isfinite(values)]
        if len(finite):
            percentiles[label] = 2 * np.percentile(finite / 2, [10, 50, 90])
            places.append(float(group.mean()))
    x = "episode" if ordered else "worker"
    note = f"by {x}: median, and from the 10th to the 90th percentile"
    if len(percentiles) < len(groups):
        note += f"; {len(groups) - len(percentiles):,} without a finite return"
    rows = np.array([*percentiles.values()]).reshape(-1, 3)
    return Ranges(title, note, [*percentiles], rows, ordered, places, x=x, y="return")


def _column_chart(dataset: Dataset, prefix: str) -> Chart:
    """Return the chart of the observation or action columns; a single small integer gets a bar per value."""
    table = some_steps(dataset)
    rows = list(dimensions(dataset, table, prefix))
    sample = "" if len(table) == dataset.rows.column("length").sum() else "a sample of "
    title = f"{prefix}s of {sample}{len(table):,} steps"
    if not rows:
        raise UsageError(
            f"the {prefix}s have no numbers to plot",
            code="plot-not-a-number",
            hint="plot returns, or lengths",
        )
    first = rows[0]
    if len(rows) == 1 and first.counts and first.edges[0] % 1 and first.edges[1] - first.edges[0] == 1:
        note = f"mean {first.mean:.6g}, std {first.std:.6g}"
        return Bars(title, note, bin_labels(first.edges), first.counts, first.edges, x=first.name, y="steps")
    note = "minimum, histogram, maximum"
    if len(rows) > _MOST_PROFILES:
        note += f"; {len(rows) - _MOST_PROFILES:,} more are not shown"
    return Profiles(title, note, rows[:_MOST_PROFILES])
