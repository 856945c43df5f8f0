"""Statistics of the columns of `data`, and values that a reader should know of.

Each segment has its own statistics, in the footer of its episodes file; those of the dataset are their merge, by the
method of Chan, Golub and LeVeque. Values that are not finite are not counted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from rollout_cli.dataset.convert import Array, contiguous, decode_tensor, is_image
from rollout_cli.dataset.schema import DatasetSchema, SpaceColumn
from rollout_cli.episodes.infos import STRING, kind_type

SAMPLE = 100
"""Of images, and other rows of more than `MAX_ELEMENTS` numbers, one row in this many is counted."""

MAX_ELEMENTS = 1_024
"""Rows of up to this many numbers have statistics for each number; larger ones for all of them together."""

_BLOCK = 1 << 16
"""Numbers that are taken at a time: half a megabyte as float64, which stays in the processor's cache."""

_NO_STATS = ("episode_id", "step", "step_type")
_FIELDS = ("count", "min", "max", "mean", "m2")


@dataclass(frozen=True, slots=True, eq=False)
class RunningStats:
    """Count, extremes, mean and sum of squared distances from it (`m2`), each of the shape of one row.

    Extremes are nan where nothing was counted.
    """

    count: Array
    min: Array
    max: Array
    mean: Array
    m2: Array

    @classmethod
    def of(cls, values: Array) -> RunningStats:
        """Return the statistics of `values`, (n, *shape) with n of at least 1, for each number of a row."""
        rows = values.reshape(len(values), -1)
        size = max(1, _BLOCK // rows.shape[1])
        whole = cls.merged([_block_stats(rows[start : start + size]) for start in range(0, len(rows), size)])
        return cls(*(getattr(whole, name).reshape(values.shape[1:]) for name in _FIELDS))

    @classmethod
    def merged(cls, parts: Sequence[RunningStats]) -> RunningStats:
        """Return the statistics of everything that `parts`, at least one, counted."""
        if len(parts) == 1:
            return parts[0]
        counts, lows, highs, means, squares = (np.array([getattr(part, name) for part in parts]) for name in _FIELDS)
        count = counts.sum(axis=0)
        with np.errstate(over="ignore", invalid="ignore"):
            # As a distance from one of them, for all may be far from zero and near one another.
            mean = means[0] + ((means - means[0]) * (counts / np.maximum(count, 1))).sum(axis=0)
            m2 = squares.sum(axis=0) + ((means - mean) ** 2 * counts).sum(axis=0)
        return cls(count, np.fmin.reduce(lows), np.fmax.reduce(highs), mean, m2)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> RunningStats:
        """Return the statistics that `to_json` described."""
        count = np.asarray(document["count"], np.int64)
        return cls(count, *(np.array(document[name], np.float64) for name in _FIELDS[1:]))

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON, exactly; null where they are not finite."""
        return {name: _with_null(getattr(self, name)) for name in _FIELDS}

    def document(self) -> dict[str, Any]:
        """Return min, max, mean, std (of the population) and count; null where nothing was counted."""
        mean = np.where(self.count > 0, self.mean, math.nan)
        std = np.where(self.count > 0, np.sqrt(self.m2 / np.maximum(self.count, 1)), math.nan)
        named = {"min": self.min, "max": self.max, "mean": mean, "std": std, "count": self.count}
        return {name: _with_null(values) for name, values in named.items()}


def _with_null(values: Array) -> Any:
    out = np.asarray(values).astype(object)
    out[~np.isfinite(values)] = None
    return out.tolist()


def _block_stats(rows: Array) -> RunningStats:
    # A copy, columns first: adding along contiguous memory is several times as fast.
    numbers = np.array(rows.T, np.float64, order="C")
    low, high = numbers.min(axis=1), numbers.max(axis=1)
    count = np.full(len(numbers), len(rows))
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(low).all() and np.isfinite(high).all():
            mean = numbers.mean(axis=1)
        else:
            numbers[~np.isfinite(numbers)] = math.nan
            low, high = np.fmin.reduce(numbers, axis=1), np.fmax.reduce(numbers, axis=1)
            count = len(rows) - np.isnan(numbers).sum(axis=1)
            mean = np.nansum(numbers, axis=1) / np.maximum(count, 1)
        numbers -= mean[:, None]
        if count.min() < len(rows):
            np.nan_to_num(numbers, copy=False, nan=0.0, posinf=math.inf, neginf=-math.inf)
        return RunningStats(count, low, high, mean, np.einsum("ij,ij->i", numbers, numbers))


TableStats = Mapping[str, RunningStats]
"""The statistics of the columns of a table, by name."""


def table_stats(table: pa.Table, *, first_row: int = 0) -> TableStats:
    """Return the statistics of all numeric columns of rows of `data`.

    Args:
        table: The rows.
        first_row: The first one's place in its file; it decides which rows of an image are sampled.
    """
    out = {}
    for field in table.schema:
        if field.name not in _NO_STATS and not pa.types.is_string(field.type):
            values = _counted_values(table[field.name], -first_row % SAMPLE)
            if len(values):
                out[field.name] = RunningStats.of(values)
    return out


def _counted_values(column: pa.ChunkedArray, first: int) -> Array:
    if not pa.types.is_fixed_size_binary(column.type):
        values = decode_tensor(contiguous(column))
        return values[first::SAMPLE].reshape(-1) if math.prod(values.shape[1:]) > MAX_ELEMENTS else values
    taken = []
    for part in column.chunks:  # Joining them would cost more than the statistics.
        rows = np.frombuffer(part.buffers()[1], np.uint8).reshape(-1, column.type.byte_width)
        taken.append(rows[part.offset : part.offset + len(part)][first::SAMPLE])
        first = (first - len(part)) % SAMPLE
    return np.concatenate(taken).reshape(-1)


def _is_sampled(column: SpaceColumn) -> bool:
    return is_image(column.leaf) or (column.leaf.kind != "text" and math.prod(column.leaf.shape) > MAX_ELEMENTS)


def merge_stats(parts: Sequence[TableStats]) -> TableStats:
    """Return the statistics of several tables, in their order."""
    by_name: dict[str, list[RunningStats]] = {}
    for part in parts:
        for name, stats in part.items():
            by_name.setdefault(name, []).append(stats)
    return {name: RunningStats.merged(found) for name, found in by_name.items()}


def stats_document(stats: TableStats, schema: DatasetSchema) -> dict[str, Any]:
    """Return the contents of stats.json."""
    sampled = {column.name for column in schema.spaces.columns if _is_sampled(column)}
    for prefix, fields in schema.infos.groups:
        shapes = {f"{prefix}.{one.key}": kind_type(one.kind)[1] for one in fields if one.kind != STRING}
        sampled |= {name for name, shape in shapes.items() if math.prod(shape) > MAX_ELEMENTS}
    note = {"sampled": f"1 row in {SAMPLE}"}
    return {name: one.document() | (note if name in sampled else {}) for name, one in stats.items()}


# Anomalies: values that were stored, but that a reader should know of.

Place = tuple[int, int]
"""Episode id and step."""

_PROBLEMS = {
    "not_finite": "numbers that are not finite (nan or infinite)",
    "outside": "values outside of its space",
    "not_unicode": "texts with lone surrogates, stored as escapes such as \\udc80",
}
_ESCAPE = re.compile(r"\\ud[89ab-f]")


@dataclass(frozen=True, slots=True)
class Anomaly:
    """A column, its problem (`not_finite`, `outside` or `not_unicode`), and the first episode id and step with it."""

    column: str
    problem: str
    what: str
    episode: int
    step: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON has them."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.column} holds {self.what}, first in episode {self.episode} at step {self.step}"


def anomalies(places: Mapping[str, Place]) -> list[Anomaly]:
    """Return the anomalies of a dataset from their first places, as `find_anomalies` gives them."""
    keys = ((key, *key.rsplit(":", 1)) for key in sorted(places))
    return [Anomaly(column, problem, _PROBLEMS[problem], *places[key]) for key, column, problem in keys]


def find_anomalies(table: pa.Table, stats: TableStats, schema: DatasetSchema) -> dict[str, Place]:
    """Return where the first anomaly of each column and problem is; keys are `column:problem`.

    Args:
        table: Rows of `data`.
        stats: Their statistics. Rows are searched only where these show an anomaly.
        schema: The dataset's columns.
    """
    found = {}
    columns = [
        one for one in (*schema.spaces.observation, *schema.spaces.action) if one.stored and not _is_sampled(one)
    ]
    for name, column in [*((one.name, one) for one in columns), ("reward", None)]:
        for problem, bad in _bad_values(table, name, column, stats):
            # Integers near 2**63 are rounded in the statistics, so there may be none.
            for row in np.flatnonzero(bad.reshape(len(bad), -1).any(axis=1))[:1].tolist():
                found[f"{name}:{problem}"] = (table["episode_id"][row].as_py(), table["step"][row].as_py())
    return found


def _bad_values(
    table: pa.Table, name: str, column: SpaceColumn | None, stats: TableStats
) -> Iterator[tuple[str, Array]]:
    """Yield each problem that the statistics show, with the values that have it, bool (T, ...)."""
    if name not in stats:
        letters = contiguous(table[name]).buffers()[2]
        if letters is not None and b"\\ud" in letters.to_pybytes():
            yield "not_unicode", np.array([_ESCAPE.search(text) is not None for text in table[name].to_pylist()])
        return
    own = stats[name]
    if int(own.count.sum()) < table.num_rows * own.count.size:
        yield "not_finite", ~np.isfinite(_values(table, name, column))
    if column is not None and column.leaf.bounds is not None:
        low, high = column.leaf.bounds
        # Comparisons with nan, where nothing was counted, are false.
        if np.any(own.min < low) or np.any(own.max > high):
            values = _values(table, name, column)
            yield "outside", np.isfinite(values) & ((values < low) | (values > high))


def _values(table: pa.Table, name: str, column: SpaceColumn | None) -> Array:
    return decode_tensor(contiguous(table[name])) if column is None else column.decode(table)
