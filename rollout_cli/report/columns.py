"""The columns of a dataset, number by number: their statistics, and what a sample of their values shows."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from rollout_cli.dataset.convert import Array, decode
from rollout_cli.dataset.layout import stats_path
from rollout_cli.dataset.parquet import reading
from rollout_cli.dataset.reader import Dataset
from rollout_cli.dataset.schema import DatasetSchema
from rollout_cli.dataset.stats import stats_document, table_stats
from rollout_cli.episodes.plain import from_plain

_MOST_STEPS, _MOST_BYTES, _MOST_VALUES = 200_000, 64 << 20, 1 << 20
"""How much of a dataset, and of a column, is looked at."""
_BINS = 24
_STATS = {"low": "min", "high": "max", "mean": "mean", "std": "std"}


@dataclass(frozen=True, eq=False)
class Dimension:
    """One number of a column, or all numbers of an image; what is not known is nan.

    Attributes:
        name: The column, with the number's indices where there are several.
        space: The least and the greatest value of its space.
        low: The least value; this one and the next three are those of all steps.
        high: The greatest value.
        mean: The mean.
        std: The standard deviation.
        at_bound: The share of the values in the sample that are a bound of the space.
        not_finite: The share that is nan or infinite.
        missing: The share of steps without a value.
        edges: The edges of the bins, (n + 1,); none where there is no finite number.
        counts: The values of the sample in each bin, (n,).
        text: What is said of values that are no numbers.
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
        """What is unusual about it, in words."""
        shares = {"at a bound": self.at_bound, "not finite": self.not_finite, "missing": self.missing}
        words = [f"{share:.1%} {what}" for what, share in shares.items() if share]
        return [*["constant"] * (self.low == self.high), *words]


def some_steps(dataset: Dataset) -> pa.Table:
    """Return the rows of `data`, or a sample of them where there are many."""
    step_bytes = DatasetSchema.from_info(dataset.info).step_bytes
    return dataset.rows.some_steps(max(1, min(_MOST_STEPS, _MOST_BYTES // max(1, step_bytes))))


def stats_of(dataset: Dataset) -> dict[str, Any]:
    """Return meta/stats.json; before a run has ended, such statistics of a sample of the steps.

    Raises:
        DatasetFormatError: If it is damaged.
    """
    path = stats_path(dataset.path)
    with reading(path):
        if dataset.info["status"] != "collecting" and path.is_file():
            return dict(from_plain(json.loads(path.read_bytes())))
    return stats_document(table_stats(some_steps(dataset)), DatasetSchema.from_info(dataset.info))


def dimensions(dataset: Dataset, table: pa.Table, *prefixes: str) -> Iterator[Dimension]:
    """Yield the numbers of the columns whose names begin so; those of an image as one.

    `table` has the rows of `data` that are looked at.
    """
    stats, features = stats_of(dataset), dataset.info["features"]
    for name in table.column_names:
        if name.startswith(prefixes) and (name == "reward" or features[name]["kind"] != "fact"):
            yield from _of_column(dataset, table, name, stats.get(name))


def _of_column(
    dataset: Dataset, table: pa.Table, name: str, stats: dict[str, Any] | None
) -> Iterator[Dimension]:
    column = next((each for each in dataset.rows.spaces.columns if each.name == name), None)
    values = decode(table[name]) if column is None else column.decode(table)
    missing = 1 - len(values) / max(1, len(table))
    if values.dtype == object:
        yield Dimension(name, missing=missing, text=_frequent(values.tolist()))
        return
    exact = [np.asarray((stats or {}).get(key, math.nan), float) for key in _STATS.values()]
    # Images, and arrays of infos that differ in shape, have no statistics of each number.
    shape = exact[0].shape if exact[0].shape == values.shape[1:] else ()
    numbers = values.reshape(-1, math.prod(shape))[:: max(1, values.size // _MOST_VALUES)]
    bounds = (None if column is None else column.leaf.bounds) or (math.nan, math.nan)
    lows, highs = (
        np.asarray(bound, float) if shape else np.asarray(np.min(bound), float) for bound in bounds
    )
    for at, index in enumerate(np.ndindex(shape)):
        low, high = (float(np.broadcast_to(bound, shape)[index]) + 0.0 for bound in (lows, highs))  # No -0.
        facts: dict[str, Any] = _observed(numbers[:, at], low, high) | {"missing": missing}
        if exact[0].shape == shape:
            facts |= {key: float(field[index]) for key, field in zip(_STATS, exact, strict=True)}
        indices = f"[{', '.join(map(str, index))}]" if index else ""
        yield Dimension(name + indices, (low, high), **facts)


def _observed(values: Array, low: float, high: float) -> dict[str, Any]:
    """Return what a sample of numbers shows beside its statistics."""
    finite = values[np.isfinite(values)].astype(np.float64)
    if not len(finite):
        return {"not_finite": float(len(values) > 0)}
    # Of a few whole numbers, such as those of Discrete spaces, the first and the last are values like others.
    is_bounded = values.dtype.kind == "f" or high - low >= _BINS
    counts, edges = np.histogram(finite, bins_of(finite))
    return {
        "at_bound": float((is_bounded & ((finite == low) | (finite == high))).mean()),
        "not_finite": 1 - len(finite) / len(values),
        "edges": tuple(edges.tolist()),
        "counts": tuple(counts.tolist()),
    }


def bins_of(values: Array, most: int = _BINS) -> Array:
    """Return the edges of bins for finite numbers, float64 (n + 1,): few integers have a bin each."""
    low, high = float(values.min()), float(values.max())
    if np.array_equal(values, np.floor(values)):
        # The width is a whole number, or some bins would hold one number more than others.
        width = math.ceil((high - low + 1) / most)
        return np.arange(low, high + width + 1, width) - 0.5
    # There may not be so many numbers between them, or more than a float can say.
    if not np.spacing(max(abs(low), abs(high))) * most <= high - low < math.inf:
        return np.array([low, max(high, np.nextafter(low, math.inf))])
    return np.linspace(low, high, most + 1)


def _frequent(texts: list[Any]) -> str:
    text, count = next(iter(Counter(map(str, texts)).most_common(1)), ("", 0))
    return f"{len(set(map(str, texts))):,} different, {count:,} times {text[:60]!r}" if count else "no value"
