"""Statistics of the columns of `data`, and anomalies, values that readers should know of.

The footer of each episodes file has the statistics of its segment. The dataset's statistics merge them by the
method of Chan, Golub and LeVeque. Values that are not finite do not count.
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
"""One row in this many counts, for images and for rows of more than `MAX_ELEMENTS` numbers."""

MAX_ELEMENTS = 1_024
"""Rows of up to this many numbers have statistics for each number; larger rows for all numbers at once."""

_BLOCK = 1 << 16  # Numbers per block: half a megabyte as float64, which fits in the processor's cache.

_NO_STATS = ("episode_id", "step", "step_type")
_FIELDS = ("count", "min", "max", "mean", "m2")

ColumnStats = Array
"""`_FIELDS` of a column, float64 (5, *shape of a row); `m2` sums squared distances from the mean."""

TableStats = Mapping[str, ColumnStats]  # By column.


def column_stats(values: Array) -> ColumnStats:
    """Return the statistics of `values`, (n, *shape) with n >= 1, for each number of a row."""
    rows = values.reshape(len(values), -1)
    size = max(1, _BLOCK // rows.shape[1])
    total = merged([_block_stats(rows[start : start + size]) for start in range(0, len(rows), size)])
    return total.reshape(-1, *values.shape[1:])


def merged(parts: Sequence[ColumnStats]) -> ColumnStats:
    """Return the merged statistics of `parts`, at least one."""
    if len(parts) == 1:
        return parts[0]
    counts, lows, highs, means, squares = np.stack(parts, axis=1)
    count = counts.sum(axis=0)
    with np.errstate(all="ignore"):
        # Relative to the first mean, because all means may be close to each other and far from zero.
        mean = means[0] + ((means - means[0]) * (counts / np.maximum(count, 1))).sum(axis=0)
        m2 = squares.sum(axis=0) + ((means - mean) ** 2 * counts).sum(axis=0)
    return np.stack([count, np.fmin.reduce(lows), np.fmax.reduce(highs), mean, m2])


def _block_stats(rows: Array) -> ColumnStats:
    # A copy, columns first: sums over contiguous memory are several times as fast.
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
    """Return the statistics as a JSON document, without loss."""
    return {column: _named(_FIELDS, fields) for column, fields in stats.items()}


def stats_from_json(document: Document) -> TableStats:
    """Return the statistics in a document of `stats_to_json`."""
    return {
        column: np.array([fields[name] for name in _FIELDS], np.float64)
        for column, fields in document.items()
    }


def _named(names: Sequence[str], fields: Iterable[Array]) -> Fields:
    """Return the fields of a column's statistics by name; the first field is the count."""
    count, *others = (np.asarray(values) for values in fields)
    return dict(
        zip(names, [count.astype(np.int64).tolist(), *(values.tolist() for values in others)], strict=True)
    )


def table_stats(table: pa.Table, *, first_row: int = 0) -> TableStats:
    """Return the statistics of all numeric columns of rows of `data`; `first_row` selects the sampled rows."""
    out = {}
    for field in table.schema:
        has_none = pa.types.is_string(field.type) or pa.types.is_large_list(field.type)
        if field.name not in _NO_STATS and not has_none:
            values = _counted_values(table[field.name], first_row)
            if len(values):
                out[field.name] = column_stats(values)
    return out


def _counted_values(column: pa.ChunkedArray, first_row: int) -> Array:
    """Return the values that count; row numbers, including nulls, decide the sample."""
    if not pa.types.is_fixed_size_binary(column.type):
        values = decode(column)
        if math.prod(values.shape[1:]) <= MAX_ELEMENTS:
            return values
        rows = np.flatnonzero(column.is_valid()) if column.null_count else np.arange(len(values))
        return np.ravel(values[(first_row + rows) % SAMPLE == 0])
    taken = []
    for part in column.chunks:  # Joining the chunks would cost more than the statistics.
        taken.append(decode(pa.chunked_array([part]))[-first_row % SAMPLE :: SAMPLE])
        first_row += len(part)
    return np.concatenate(taken).reshape(-1)


def _is_sampled(column: pa.ChunkedArray | pa.Field, stats: ColumnStats) -> bool:
    """Return True if one row in `SAMPLE` was counted; then all numbers of a row share one statistic."""
    return stats.ndim == 1 and (pa.types.is_nested(column.type) or pa.types.is_fixed_size_binary(column.type))


def merge_stats(parts: Sequence[TableStats]) -> TableStats:
    """Return the merged statistics of several tables, in their order."""
    names = {name: None for part in parts for name in part}
    return {name: merged([part[name] for part in parts if name in part]) for name in names}


def stats_document(stats: TableStats, schema: DatasetSchema) -> Fields:
    """Return stats.json: min, max, mean, std (of the population) and count; nan if no value was counted."""
    document = {}
    for column in (name for name in stats if name in schema.data.names):
        count, low, high, center, m2 = stats[column]
        variance = m2 / np.maximum(count, 1)
        mean, std = (np.where(count > 0, values, math.nan) for values in (center, np.sqrt(variance)))
        document[column] = _named(("count", "min", "max", "mean", "std"), (count, low, high, mean, std))
        if _is_sampled(schema.data.field(column), stats[column]):
            document[column]["sampled"] = f"1 row in {SAMPLE}"
    return document


# Anomalies: stored values that a reader should know of.

Place = tuple[int, int]  # Episode id and step.

# info.json stores these descriptions, and verification compares them: they must not change.
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
    """Return the anomalies of a dataset from the result of `find_anomalies`."""
    keys = ((key, *key.rsplit(":", 1)) for key in sorted(places))
    return [Anomaly(column, problem, _PROBLEMS[problem], *places[key]) for key, column, problem in keys]


def find_anomalies(table: pa.Table, stats: TableStats, schema: DatasetSchema) -> dict[str, Place]:
    """Return the first place of each `column:problem` in either table.

    Numbers are searched only if the statistics show a problem, or do not count every row.
    """
    places = {}
    spaces = schema.spaces
    columns = (*spaces.observation, *spaces.action, *spaces.last_observation)
    leaves = {column.name: column.leaf for column in columns if column.stored}
    step = "step" if "step" in table.column_names else "length"  # The last observation has step `length`.
    for name in (name for name in (*leaves, "reward") if name in table.column_names):
        for problem, bad in _bad_values(table[name], stats.get(name), leaves.get(name)):
            # Statistics round integers near 2**63, and the rows may turn out to be valid.
            rows = np.flatnonzero(bad.reshape(len(bad), -1).any(axis=1)).tolist()
            if rows:
                places[f"{name}:{problem}"] = tuple(
                    table[column][rows[0]].as_py() for column in ("episode_id", step)
                )
    return places


def _bad_values(
    column: pa.ChunkedArray, stats: ColumnStats | None, leaf: Leaf | None
) -> Iterator[tuple[str, Array]]:
    """Yield each possible problem of a column, with a mask of the bad values, bool (T, ...)."""
    if leaf is not None and leaf.kind == "text":
        texts = column.to_pylist()
        yield "not_unicode", np.array([_ESCAPE.search(text) is not None for text in texts])
        if isinstance(leaf.space, spaces.Text):  # Other string spaces have unknown rules.
            yield "outside", np.array([not leaf.space.contains(text) for text in texts])
    elif stats is not None:
        count, lowest, highest, *_ = stats
        has_nan = count.sum() < len(column) * count.size
        if leaf is not None and leaf.dtype.kind in "iuf" and _is_sampled(column, stats):
            # Rows that were not sampled may hold any number of the dtype.
            has_nan = leaf.dtype.kind == "f"
            numbers: Any = np.finfo if has_nan else np.iinfo
            lowest = numbers(leaf.dtype).min
            highest = numbers(leaf.dtype).max
        if has_nan:
            yield "not_finite", ~np.isfinite(decode(column))
        low, high = (leaf and leaf.bounds) or (-math.inf, math.inf)
        # Comparisons with nan, which stands for no counted values, are false.
        if np.any(lowest < low) or np.any(highest > high):
            values = decode(column).reshape(len(column), *getattr(leaf, "shape", ()))
            yield "outside", np.isfinite(values) & ((values < low) | (values > high))
