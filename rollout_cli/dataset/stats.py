"""Streaming statistics of the columns of `data`: min, max, mean, standard deviation and count.

Taken row group by row group and merged by the method of Chan, Golub and LeVeque, so that the result depends on the data
and its cuts alone. Values that are not finite are not counted.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa

from rollout_cli.dataset.arrays import Array, number_array
from rollout_cli.dataset.columns import decode_tensor
from rollout_cli.dataset.sums import Sums, joined, sums_of, sums_of_flags

SAMPLE = 100
"""Of images, and other rows of more than `MAX_ELEMENTS` numbers, one row in this many is counted."""

MAX_ELEMENTS = 1_024
"""Rows of up to this many numbers have statistics for each number; larger ones for all of them together."""

_LEFT_OUT = ("episode_id", "step", "step_type")


class TableStats:
    """The statistics of all numeric columns of a growing table."""

    def __init__(self) -> None:
        self._columns: dict[str, ColumnStats] = {}
        self._sampled: set[str] = set()
        self._rows = 0
        self._schema = pa.schema([])
        self._counted: list[tuple[int, str]] = []

    def update(self, table: pa.Table) -> None:
        """Count the next rows."""
        if not table.schema.equals(self._schema):
            self._schema = table.schema
            self._counted = [
                (at, field.name)
                for at, field in enumerate(table.schema)
                if field.name not in _LEFT_OUT and not pa.types.is_string(field.type)
            ]
        first = -self._rows % SAMPLE
        for at, name in self._counted:
            self._update(name, table.column(at), first)
        self._rows += table.num_rows

    def merge(self, other: TableStats) -> None:
        """Count the rows that `other` counted."""
        for name, column in other._columns.items():
            self._columns.setdefault(name, ColumnStats()).merge(column)
        self._sampled |= other._sampled

    def sums(self, name: str) -> Sums | None:
        """Return what was counted of a column; None where nothing was."""
        return self._columns[name].sums if name in self._columns else None

    def is_sampled(self, name: str) -> bool:
        """Return whether not every row of a column was counted."""
        return name in self._sampled

    def document(self) -> dict[str, Any]:
        """Return the statistics as JSON, by column name."""
        note = {"sampled": f"1 row in {SAMPLE}"}
        return {
            name: column.document() | (note if name in self._sampled else {}) for name, column in self._columns.items()
        }

    def _update(self, name: str, column: pa.ChunkedArray, first: int) -> None:
        if pa.types.is_boolean(column.type):
            self._update_flags(name, column)
            return
        if pa.types.is_fixed_size_binary(column.type) or _elements(column.type) > MAX_ELEMENTS:
            self._sampled.add(name)
            values = _numbers(_every(SAMPLE, column, first)).reshape(-1)
        else:
            values = _numbers(_contiguous(column))
        if len(values):
            self._columns.setdefault(name, ColumnStats()).update(values)

    def _update_flags(self, name: str, column: pa.ChunkedArray) -> None:
        count = len(column) - column.null_count
        if count:
            trues = sum(piece.true_count for piece in column.chunks)
            self._columns.setdefault(name, ColumnStats()).add(sums_of_flags(count, trues))


def _contiguous(column: pa.ChunkedArray) -> pa.Array:
    # Joining one chunk would copy it.
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _every(step: int, column: pa.ChunkedArray, first: int) -> pa.Array:
    """Return rows `first`, `first + step`, … without joining the others."""
    taken = []
    for piece in column.chunks:
        taken.append(piece.take(number_array(np.arange(first, len(piece), step))))
        first = (first - len(piece)) % step if first < len(piece) else first - len(piece)
    return pa.concat_arrays(taken)


def _elements(kind: pa.DataType) -> int:
    count = 1
    while pa.types.is_fixed_size_list(kind):
        count *= kind.list_size
        kind = kind.value_type
    return count


def _numbers(column: pa.Array) -> Array:
    if pa.types.is_fixed_size_binary(column.type):
        data = np.frombuffer(column.buffers()[1], np.uint8)
        return data[column.offset * column.type.byte_width :][: len(column) * column.type.byte_width]
    return decode_tensor(column)


_MOST_PARTS = 64


class ColumnStats:
    """The statistics of one column, of each number of a row apart."""

    def __init__(self) -> None:
        # Joined some at a time, which costs the same as joining two of them.
        self._parts: list[Sums] = []

    @property
    def sums(self) -> Sums | None:
        """Return what was counted; None where nothing was."""
        if self._parts:
            self._parts = [joined(self._parts)]
        return self._parts[0] if self._parts else None

    def update(self, values: Array) -> None:
        """Count `values`, (n, *shape) with n of at least 1."""
        self.add(sums_of(values))

    def merge(self, other: ColumnStats) -> None:
        """Count what `other` counted."""
        if other.sums is not None:
            self.add(other.sums)

    def add(self, sums: Sums) -> None:
        """Count what `sums` counted."""
        self._parts.append(sums)
        if len(self._parts) == _MOST_PARTS:
            self._parts = [joined(self._parts)]

    def document(self) -> dict[str, Any]:
        """Return min, max, mean, std (of the population) and count; None where nothing was counted."""
        sums = self.sums
        assert sums is not None
        std = np.sqrt(sums.squares / np.maximum(sums.count, 1))
        named = {"min": sums.low, "max": sums.high, "mean": sums.mean, "std": std}
        document = {
            name: _finite(np.where(sums.count > 0, values, math.nan).tolist()) for name, values in named.items()
        }
        return document | {"count": sums.count.tolist()}


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value if math.isfinite(value) else None
