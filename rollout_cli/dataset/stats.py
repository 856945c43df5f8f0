"""Statistics of the columns of `data`, and values that a reader should know of.

Each segment has its own statistics, in the footer of its episodes file; those of the dataset are their merge, by the
method of Chan, Golub and LeVeque. Values that are not finite are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

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
    """Count, extremes, mean and sum of squared distances from it (`m2`), each of the shape of one row."""

    count: Array
    min: Array
    max: Array
    mean: Array
    m2: Array

    @classmethod
    def of(cls, values: Array) -> RunningStats:
        """Return the statistics of `values`, (n, *shape) with n of at least 1, for each number of a row."""
        rows = np.ascontiguousarray(values).reshape(len(values), -1)
        size = max(1, _BLOCK // rows.shape[1])
        whole = cls.merged([_block_stats(rows[start : start + size]) for start in range(0, len(rows), size)])
        return cls(*(getattr(whole, name).reshape(values.shape[1:]) for name in _FIELDS))

    @classmethod
    def of_flags(cls, count: int, trues: int) -> RunningStats:
        """Return the statistics of `count` bools, at least 1, of which `trues` are true."""
        mean = trues / count
        parts = (float(trues == count), float(trues > 0), mean, mean * (count - trues))
        return cls(np.asarray(count), *map(np.asarray, parts))

    @classmethod
    def merged(cls, parts: Sequence[RunningStats]) -> RunningStats:
        """Return the statistics of everything that `parts`, at least one, counted."""
        if len(parts) == 1:
            return parts[0]
        counts, lows, highs, means, squares = (np.array([getattr(part, name) for part in parts]) for name in _FIELDS)
        count = counts.sum(axis=0)
        with np.errstate(over="ignore", invalid="ignore"):
            shares = counts / np.maximum(count, 1)
            # As a distance from one of them, for all may be far from zero and near one another.
            mean = means[0] + ((means - means[0]) * shares).sum(axis=0)
            apart = means - mean
            m2 = squares.sum(axis=0) + (apart * apart * counts).sum(axis=0)
        return cls(count, lows.min(axis=0), highs.max(axis=0), mean, m2)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> RunningStats:
        """Return what `to_json` described."""
        return cls(np.asarray(document["count"]), *(np.asarray(_read(document[name])) for name in _FIELDS[1:]))

    def to_json(self) -> dict[str, Any]:
        """Return the fields exactly, as JSON."""
        return {name: _write(getattr(self, name).tolist()) for name in _FIELDS}

    def document(self) -> dict[str, Any]:
        """Return min, max, mean, std (of the population) and count; None where nothing was counted."""
        std = np.sqrt(self.m2 / np.maximum(self.count, 1))
        named = {"min": self.min, "max": self.max, "mean": self.mean, "std": std}
        out = {name: _finite(np.where(self.count > 0, values, math.nan).tolist()) for name, values in named.items()}
        return out | {"count": self.count.tolist()}


def _block_stats(rows: Array) -> RunningStats:
    # A copy, columns first: adding along contiguous memory is several times as fast.
    numbers = np.array(rows.T, np.float64, order="C")
    low, high = numbers.min(axis=1), numbers.max(axis=1)
    count = np.full(len(numbers), len(rows))
    with np.errstate(over="ignore", invalid="ignore"):
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            finite = np.isfinite(numbers)
            count = finite.sum(axis=1)
            low = np.min(numbers, axis=1, where=finite, initial=math.inf)
            high = np.max(numbers, axis=1, where=finite, initial=-math.inf)
            mean = np.sum(numbers, axis=1, where=finite) / np.maximum(count, 1)
            # The mean has no distance from itself.
            numbers = np.where(finite, numbers, mean[:, None])
        else:
            mean = numbers.mean(axis=1)
        numbers -= mean[:, None]
        return RunningStats(count, low, high, mean, np.einsum("ij,ij->i", numbers, numbers))


def _write(value: Any) -> Any:
    if isinstance(value, list):
        return [_write(item) for item in value]
    return value if math.isfinite(value) else str(value)  # JSON has no infinity.


def _read(value: Any) -> Any:
    return [_read(item) for item in value] if isinstance(value, list) else float(value)


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value if math.isfinite(value) else None


TableStats = Mapping[str, RunningStats]
"""The statistics of the columns of a table, by name."""


def table_stats(table: pa.Table, *, first_row: int = 0) -> TableStats:
    """Return the statistics of all numeric columns.

    Args:
        table: Rows of `data`.
        first_row: The first one's place in its file; it decides which rows of an image are sampled.
    """
    out = {}
    for field in table.schema:
        if field.name in _NO_STATS or pa.types.is_string(field.type):
            continue
        column = table[field.name]
        if pa.types.is_boolean(field.type):
            count = len(column) - column.null_count
            stats = RunningStats.of_flags(count, sum(part.true_count for part in column.chunks)) if count else None
        else:
            stats = _column_stats(column, -first_row % SAMPLE)
        if stats is not None:
            out[field.name] = stats
    return out


def _column_stats(column: pa.ChunkedArray, first: int) -> RunningStats | None:
    if pa.types.is_fixed_size_binary(column.type):
        values = _sampled_bytes(column, first).reshape(-1)
    else:
        values = decode_tensor(contiguous(column))
        if math.prod(values.shape[1:]) > MAX_ELEMENTS:
            values = values[first::SAMPLE].reshape(-1)
    return RunningStats.of(values) if len(values) else None


def _sampled_bytes(column: pa.ChunkedArray, first: int) -> Array:
    """Return rows `first`, `first + SAMPLE`, … of a column of images, without joining its chunks."""
    taken = []
    for part in column.chunks:
        rows = np.frombuffer(part.buffers()[1], np.uint8).reshape(-1, column.type.byte_width)
        taken.append(rows[part.offset : part.offset + len(part)][first::SAMPLE])
        first = (first - len(part)) % SAMPLE if first < len(part) else first - len(part)
    return np.concatenate(taken)


def sampled_columns(schema: DatasetSchema) -> frozenset[str]:
    """Return the columns of which only some rows are counted."""
    shapes = {one.name: one.leaf.shape for one in schema.spaces.columns if one.leaf.kind != "text"}
    images = {one.name for one in schema.spaces.columns if is_image(one.leaf)}
    for prefix, fields in schema.infos.groups:
        shapes |= {f"{prefix}.{one.key}": kind_type(one.kind)[1] for one in fields if one.kind != STRING}
    return frozenset(images | {name for name, shape in shapes.items() if math.prod(shape) > MAX_ELEMENTS})


def merge_stats(parts: Sequence[TableStats]) -> TableStats:
    """Return the statistics of several tables, in their order."""
    by_name: dict[str, list[RunningStats]] = {}
    for part in parts:
        for name, stats in part.items():
            by_name.setdefault(name, []).append(stats)
    return {name: RunningStats.merged(found) for name, found in by_name.items()}


def stats_document(stats: TableStats, schema: DatasetSchema) -> dict[str, Any]:
    """Return the contents of stats.json."""
    note, sampled = {"sampled": f"1 row in {SAMPLE}"}, sampled_columns(schema)
    return {name: one.document() | (note if name in sampled else {}) for name, one in stats.items()}


# Anomalies.

Problem = Literal["not_finite", "outside", "not_unicode"]
Place = tuple[int, int]
"""Episode id and step."""

REWARD = "reward"


@dataclass(frozen=True, slots=True)
class Anomaly:
    """A column with values that were stored as they came, but that a reader should know of.

    Attributes:
        column: Its name.
        problem: `not_finite`, `outside` (of its space) or `not_unicode` (a text with a lone surrogate, which is stored
            as an escape).
        what: The values, in words.
        episode: The id of the first episode with such a value.
        step: The first step there.
    """

    column: str
    problem: Problem
    what: str
    episode: int
    step: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON has them."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.column} holds {self.what}, first in episode {self.episode} at step {self.step}"


def find_anomalies(table: pa.Table, stats: TableStats, schema: DatasetSchema) -> dict[str, Place]:
    """Return where the first anomaly of each column and problem is; keys are `column:problem`.

    Only where the statistics show one are the rows searched.

    Args:
        table: Rows of `data`.
        stats: Their statistics.
        schema: The dataset's columns.
    """
    found = {}
    for name, column in _checked_columns(schema):
        if name not in stats:
            continue
        for problem, _ in _problems(name, stats[name], column, table.num_rows):
            values = decode_tensor(contiguous(table[name])) if column is None else column.decode(table)
            bad = ~np.isfinite(values) if problem == "not_finite" else _outside(values, column)
            # Integers near 2**63 are rounded in the statistics, so there may be none.
            for row in np.flatnonzero(bad.reshape(len(values), -1).any(axis=1))[:1].tolist():
                found[f"{name}:{problem}"] = (table["episode_id"][row].as_py(), table["step"][row].as_py())
    return found


def _checked_columns(schema: DatasetSchema) -> Iterator[tuple[str, SpaceColumn | None]]:
    sampled = sampled_columns(schema)
    for column in (*schema.spaces.observation, *schema.spaces.action):
        if column.stored and column.leaf.kind != "text" and column.name not in sampled:
            yield column.name, column
    yield REWARD, None


def _problems(name: str, stats: RunningStats, column: SpaceColumn | None, rows: int) -> Iterator[tuple[Problem, str]]:
    missing = rows * np.size(stats.count) - int(np.sum(stats.count))
    if missing:
        yield "not_finite", f"{missing:,} numbers that are not finite (nan or infinite)"
    bounds = None if column is None else column.leaf.bounds
    counted = stats.count > 0
    if bounds is not None and np.any(counted & ((stats.min < bounds[0]) | (stats.max > bounds[1]))):
        low, high = float(np.min(stats.min)), float(np.max(stats.max))
        assert column is not None
        yield "outside", f"values from {low:g} to {high:g}, outside of {column.leaf.space}"


def _outside(values: Array, column: SpaceColumn | None) -> Array:
    assert column is not None
    bounds = column.leaf.bounds
    assert bounds is not None
    return np.asarray(np.isfinite(values) & ((values < bounds[0]) | (values > bounds[1])))


def anomalies(stats: TableStats, places: Mapping[str, Place], schema: DatasetSchema, rows: int) -> list[Anomaly]:
    """Return the anomalies of a dataset.

    Args:
        stats: The statistics of its rows.
        places: The first place of each, as `find_anomalies` gives them.
        schema: Its columns.
        rows: How many rows there are.
    """
    found = []
    for name, column in _checked_columns(schema):
        for problem, what in _problems(name, stats[name], column, rows) if name in stats else ():
            key = f"{name}:{problem}"
            if key in places:
                found.append(Anomaly(name, problem, what, *places[key]))
    for key, place in places.items():
        name, _, last = key.rpartition(":")
        if last == "not_unicode":
            what = "texts with lone surrogates, stored as escapes such as \\udc80"
            found.append(Anomaly(name, "not_unicode", what, *place))
    return found
