"""The plots of a dataset as plain values, which the terminal, matplotlib and the HTML report draw."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rollout_cli.dataset.convert import Array
from rollout_cli.dataset.reader import Dataset
from rollout_cli.errors import UsageError
from rollout_cli.report.columns import Dimension, bins_of, dimensions, some_steps
from rollout_cli.report.identity import spread

PLOTS = ("returns", "lengths", "over-time", "actions", "observations")
"""What `rollout plot` shows."""

_BARS, _GROUPS, _MOST_PROFILES = 16, 16, 64


@dataclass(frozen=True, slots=True)
class Bars:
    """How often each value, or each range of values, occurs."""

    title: str
    note: str
    labels: Sequence[str]
    counts: Sequence[int]


@dataclass(frozen=True, slots=True)
class Ranges:
    """Groups of values: of each the tenth percentile, the median and the ninetieth one."""

    title: str
    note: str
    labels: Sequence[str]
    percentiles: Array  # (n, 3)
    ordered: bool  # Whether a group follows from the one before it.


@dataclass(frozen=True, slots=True)
class Profiles:
    """A small histogram of each of some numbers."""

    title: str
    note: str
    rows: Sequence[Dimension]


Chart = Bars | Ranges | Profiles


def charts_of(dataset: Dataset, what: str) -> list[Chart]:
    """Return the charts of one of `PLOTS`.

    Raises:
        UsageError: If there is no such plot, or no episode.
    """
    if what not in PLOTS:
        raise UsageError(f"there is no plot {what!r}", hint=f"the plots are: {', '.join(PLOTS)}")
    if not len(dataset):
        raise UsageError("there is no episode to plot", hint="choose another dataset")
    if what == "over-time":
        return [over_time(dataset)]
    if what in ("returns", "lengths"):
        return [histogram(f"{what} of {len(dataset):,} episodes", dataset.rows.column(what[:-1]))]
    return [_column_chart(dataset, what[:-1])]


def histogram(title: str, values: Array) -> Bars:
    """Return the histogram of some finite numbers."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return Bars(title, "no finite value", [], [])
    counts, edges = np.histogram(finite, bins_of(finite, min(_BARS, 3 + 2 * math.isqrt(len(finite)))))
    others = len(values) - len(finite)
    note = spread(finite) + (f"; {others:,} are not finite" if others else "")
    return Bars(title, note, bin_labels(edges), counts.tolist())


def bin_labels(edges: Sequence[float] | Array) -> list[str]:
    """Return the names of bins, as `bins_of` makes them."""
    pairs = list(pairwise(edges))
    if all(edge % 1 == 0.5 for edge in edges):  # noqa: PLR2004 - integers: between two of them
        ends = [(f"{low + 0.5:.0f}", f"{high - 0.5:.0f}") for low, high in pairs]
        return [low if low == high else f"{low} to {high}" for low, high in ends]
    return [f"{low:.4g} to {high:.4g}" for low, high in pairs]


def over_time(dataset: Dataset) -> Ranges:
    """Return how the returns go over the run: its episodes in their order, in groups of equal size."""
    groups = np.array_split(np.arange(len(dataset)), min(_GROUPS, len(dataset)))
    named = {
        f"{group[0]:,} to {group[-1]:,}" if len(group) > 1 else f"{group[0]:,}": group for group in groups
    }
    return _ranges(dataset, "returns over the run", named, ordered=True)


def by_worker(dataset: Dataset) -> Ranges:
    """Return the returns of the episodes of each worker, of the first ones where there are many."""
    workers = dataset.rows.column("worker")
    named = {str(number): np.flatnonzero(workers == number) for number in np.unique(workers)[:_GROUPS]}
    return _ranges(dataset, "returns by worker", named, ordered=False)


def _ranges(dataset: Dataset, title: str, groups: Mapping[str, Array], *, ordered: bool) -> Ranges:
    returns = dataset.rows.column("return")
    finite = {name: returns[group][np.isfinite(returns[group])] for name, group in groups.items()}
    percentiles = {
        name: np.percentile(values, [10, 50, 90]) for name, values in finite.items() if len(values)
    }
    note = f"by {'episode' if ordered else 'worker'}: median, and from the 10th to the 90th percentile"
    return Ranges(title, note, [*percentiles], np.array([*percentiles.values()]).reshape(-1, 3), ordered)


def _column_chart(dataset: Dataset, prefix: str) -> Chart:
    """Return the chart of the columns of observations or actions: a few whole numbers have a bar each."""
    table = some_steps(dataset)
    rows = list(dimensions(dataset, table, prefix))
    sample = "" if len(table) == dataset.rows.column("length").sum() else "a sample of "
    title, first = f"{prefix}s of {sample}{len(table):,} steps", rows[0]
    if len(rows) == 1 and first.counts and first.edges[0] % 1 and first.edges[1] - first.edges[0] == 1:
        note = f"mean {first.mean:.6g}, std {first.std:.6g}"
        return Bars(title, note, bin_labels(first.edges), first.counts)
    others = len(rows) - _MOST_PROFILES
    note = "least value, histogram, greatest value" + (
        f"; {others:,} more are not shown" if others > 0 else ""
    )
    return Profiles(title, note, rows[:_MOST_PROFILES])
