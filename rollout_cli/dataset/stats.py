"""Statistics of the columns of `data`, and values that a reader should know of.

Each segment has its own statistics, in the footer of its episodes file; those of the dataset are their merge,
by the method of Chan, Golub and LeVeque. Values that are not finite are not counted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from gymnasium import spaces

from rollout_cli.dataset.convert import Array, decode
from rollout_cli.dataset.schema import DatasetSchema
from rollout_cli.episodes.plain import Document, Fields
from rollout_cli.episodes.spaces import Leaf

SAMPLE = 100
"""Of images, and other rows of more than `MAX_ELEMENTS` numbers, one row in this many is counted."""

MAX_ELEMENTS = 1_024
"""Rows of up to so many numbers have statistics for each number; larger ones for all together."""

_BLOCK = 1 << 16  # Numbers taken at a time: as float64 half a megabyte, which stays in the processor's cache.

_NO_STATS = ("episode_id", "step", "step_type")
_FIELDS = ("count", "min", "max", "mean", "m2")

ColumnStats = Array
"""`_FIELDS` of a column, float64 (5, *shape of a row); `m2` sums squared distances from the mean."""

TableStats = Mapping[str, ColumnStats]  # By column.


def column_stats(values: Array) -> ColumnStats:
    """Return the statistics of `values`, (n, *shape) with n of at least 1, for each number of a row."""
    rows = values.reshape(len(values), -1)
    size = max(1, _BLOCK // rows.shape[1])
    whole = merged([_block_stats(rows[start : start + size]) for start in range(0, len(rows), size)])
    return whole.reshape(-1, *values.shape[1:])


def merged(parts: Sequence[ColumnStats]) -> ColumnStats:
    """Return the statistics of everything that `parts`, at least one, counted."""
    if len(parts) == 1:
        return parts[0]
    counts, lows, highs, means, squares = np.stack(parts, axis=1)
    count = counts.sum(axis=0)
    with np.errstate(all="ignore"):
        # As a distance from one of them, for all may be far from zero and near one another.
        mean = means[0] + ((means - means[0]) * (counts / np.maximum(count, 1))).sum(axis=0)
        m2 = squares.sum(axis=0) + ((means - mean) ** 2 * counts).sum(axis=0)
    return np.stack([count, np.fmin.reduce(lows), np.fmax.reduce(highs), mean, m2])


def _block_stats(rows: Array) -> ColumnStats:
    # A copy, columns first: adding along contiguous memory is several times as fast.
    numbers = np.array(rows.T, np.float64, order="C")
    low = numbers.min(axis=1)
    high = numbers.max(axis=1)
    count = np.full(len(numbers), len(rows))
    with np.errstate(all="ignore"):
        if np.isfinite(low).all() and np.isfinite(high).all():
            mean = numbers.mean(axis=1)
        else:
            numbers[~np.isfinite(numbers)] = math.nan
            low = np.fmin.reduce(numbers, axis=1)
            high = np.fmax.reduce(numbers, axis=1)
            count = len(rows) - np.isnan(numbers).sum(axis=1)
            mean = np.nansum(numbers, axis=1) / np.maximum(count, 1)
        numbers -= mean[:, None]
        if count.min() < len(rows):
            numbers[np.isnan(numbers) & ~np.isnan(mean)[:, None]] = 0.0
        return np.stack([count, low, high, mean, np.einsum("ij,ij->i", numbers, numbers)])


def stats_to_json(stats: TableStats) -> Fields:
    """Return the statistics as a document, exactly."""
    return {column: _named(_FIELDS, fields) for column, fields in stats.items()}


def stats_from_json(document: Document) -> TableStats:
    """Return the statistics that `stats_to_json` described."""
    return {
        column: np.array([fields[name] for name in _FIELDS], np.float64)
        for column, fields in document.items()
    }


def _named(names: Sequence[str], fields: Iterable[Array]) -> Fields:
    """Return fields of a column's statistics by name; the first one is its count."""
    count, *others = (np.asarray(values) for values in fields)
    return dict(
        zip(names, [count.astype(np.int64).tolist(), *(values.tolist() for values in others)], strict=True)
    )


def table_stats(table: pa.Table, *, first_row: int = 0) -> TableStats:
    """Return the statistics of all numeric columns of rows of `data`; `first_row` decides the sample."""
    out = {}
    for field in table.schema:
        has_none = pa.types.is_string(field.type) or pa.types.is_large_list(field.type)
        if field.name not in _NO_STATS and not has_none:
            values = _counted_values(table[field.name], first_row)
            if len(values):
                out[field.name] = column_stats(values)
    return out


def _counted_values(column: pa.ChunkedArray, first_row: int) -> Array:
    """Return the values that count; the rows alone, nulls included, decide which ones are sampled."""
    if not pa.types.is_fixed_size_binary(column.type):
        values = decode(column)
        if math.prod(values.shape[1:]) <= MAX_ELEMENTS:
            return values
        rows = np.flatnonzero(column.is_valid()) if column.null_count else np.arange(len(values))
        return np.ravel(values[(first_row + rows) % SAMPLE == 0])
    taken = []
    for part in column.chunks:  # Joining them would cost more than the statistics.
        taken.append(decode(pa.chunked_array([part]))[-first_row % SAMPLE :: SAMPLE])
        first_row += len(part)
    return np.concatenate(taken).reshape(-1)


def _is_sampled(column: pa.ChunkedArray | pa.Field, stats: ColumnStats) -> bool:
    """Return whether one row in `SAMPLE` was counted: a row's numbers have no statistics of their own."""
    return stats.ndim == 1 and (pa.types.is_nested(column.type) or pa.types.is_fixed_size_binary(column.type))


def merge_stats(parts: Sequence[TableStats]) -> TableStats:
    """Return the statistics of several tables, in their order."""
    names = {name: None for part in parts for name in part}
    return {name: merged([part[name] for part in parts if name in part]) for name in names}


def stats_document(stats: TableStats, schema: DatasetSchema) -> Fields:
    """Return stats.json: min, max, mean, std (of the population) and count; nan where nothing was counted."""
    document = {}
    for column in (name for name in stats if name in schema.data.names):
        count, low, high, center, m2 = stats[column]
        variance = m2 / np.maximum(count, 1)
        mean, std = (np.where(count > 0, values, math.nan) for values in (center, np.sqrt(variance)))
        document[column] = _named(("count", "min", "max", "mean", "std"), (count, low, high, mean, std))
        if _is_sampled(schema.data.field(column), stats[column]):
            document[column]["sampled"] = f"1 row in {SAMPLE}"
    return document


# Anomalies: values that were stored, but that a reader should know of.

Place = tuple[int, int]  # Episode id and step.

_PROBLEMS = {
    "not_finite": "numbers that are not finite (nan or infinite)",
    "outside": "values outside of its space",
    "not_unicode": "texts with lone surrogates, stored as escapes such as \\udc80",
}
_ESCAPE = re.compile(r"\\ud[89ab-f]")


class Anomaly(NamedTuple):
    """A column, its problem (`not_finite`, `outside`, `not_unicode`), and its first episode id and step."""

    column: str
    problem: str
    what: str
    episode: int
    step: int

    def __str__(self) -> str:
        return f"{self.column} holds {self.what}, first in episode {self.episode} at step {self.step}"


def anomalies(places: Mapping[str, Place]) -> list[Anomaly]:
    """Return the anomalies of a dataset from their first places, as `find_anomalies` gives them."""
    keys = ((key, *key.rsplit(":", 1)) for key in sorted(places))
    return [Anomaly(column, problem, _PROBLEMS[problem], *places[key]) for key, column, problem in keys]


def find_anomalies(table: pa.Table, stats: TableStats, schema: DatasetSchema) -> dict[str, Place]:
    """Return where each `column:problem` of either table is first.

    Numbers are searched only if the statistics show a problem, or do not count every row.
    """
    places = {}
    spaces = schema.spaces
    columns = (*spaces.observation, *spaces.action, *spaces.last_observation)
    leaves = {column.name: column.leaf for column in columns if column.stored}
    step = "step" if "step" in table.column_names else "length"  # Of what followed an episode's last step.
    for name in (name for name in (*leaves, "reward") if name in table.column_names):
        for problem, bad in _bad_values(table[name], stats.get(name), leaves.get(name)):
            # Integers near 2**63 are rounded in the statistics, so there may be none.
            rows = np.flatnonzero(bad.reshape(len(bad), -1).any(axis=1)).tolist()
            if rows:
                places[f"{name}:{problem}"] = tuple(
                    table[column][rows[0]].as_py() for column in ("episode_id", step)
                )
    return places


def _bad_values(
    column: pa.ChunkedArray, stats: ColumnStats | None, leaf: Leaf | None
) -> Iterator[tuple[str, Array]]:
    """Yield each problem that a column may have, with a mask of the values that have it, bool (T, ...)."""
    if leaf is not None and leaf.kind == "text":
        texts = column.to_pylist()
        yield "not_unicode", np.array([_ESCAPE.search(text) is not None for text in texts])
        if isinstance(leaf.space, spaces.Text):  # Only its own class knows what is in another one.
            yield "outside", np.array([not leaf.space.contains(text) for text in texts])
    elif stats is not None:
        count, lowest, highest, *_ = stats
        has_nan = count.sum() < len(column) * count.size
        if leaf is not None and leaf.dtype.kind in "iuf" and _is_sampled(column, stats):
            # The rows that are not counted may hold any number of their type.
            has_nan = leaf.dtype.kind == "f"
            numbers: Any = np.finfo if has_nan else np.iinfo
            lowest = numbers(leaf.dtype).min
            highest = numbers(leaf.dtype).max
        if has_nan:
            yield "not_finite", ~np.isfinite(decode(column))
        low, high = (leaf and leaf.bounds) or (-math.inf, math.inf)
        # Comparisons with nan, where nothing was counted, are false.
        if np.any(lowest < low) or np.any(highest > high):
            values = decode(column).reshape(len(column), *getattr(leaf, "shape", ()))
            yield "outside", np.isfinite(values) & ((values < low) | (values > high))
