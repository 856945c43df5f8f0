"""Columns of one number or flag a row, none of them null, as Parquet's pages.

Few integers are numbers of a dictionary, ids and steps are differences, floats have their bytes apart, flags are bits;
integers that are far from one another, as seeds are, stay as they are. Arrow's writer goes through such
columns value by value, several times; here numpy does.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from rollout_cli.dataset.arrays import numbers_of
from rollout_cli.dataset.column_pages import (
    BOOLEAN,
    BYTE_STREAM_SPLIT,
    DELTA_BINARY_PACKED,
    DOUBLE,
    FLOAT,
    INT32,
    INT64,
    PLAIN,
    RLE_DICTIONARY,
    ColumnPages,
    Page,
    column_of,
)
from rollout_cli.dataset.columns import PAGE_BYTES, Array
from rollout_cli.dataset.files import NewFile
from rollout_cli.dataset.number_encodings import byte_stream_split, delta_binary_packed, dictionary_indices, plain
from rollout_cli.dataset.thrift import BINARY, TRUE, Field, Node, i64, unsigned

WITH_EXTREMES = ("episode_id",)
"""Readers select by episode; the extremes of other columns are read by nobody and cost time in each row."""

_RISING = ("episode_id", "step")
"""Columns whose differences are few, and mostly one."""

_FEW = 256
"""Integers that lie nearer one another than this are numbers of a dictionary."""

_LONG = 64
"""Bits of the longer of the two physical types of integers."""


def has_flat_pages(field: pa.Field) -> bool:
    """Return whether `FlatPages` writes a column: a number or flag a row, and none null."""
    kind = field.type
    return not field.nullable and bool(
        pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind)
    )


class FlatPages(ColumnPages):
    """Writes one column, row group by row group.

    Args:
        field: The column, one that `has_flat_pages`.
        compression_level: zstd's.
        file: Where its pages go.
    """

    def __init__(self, field: pa.Field, compression_level: int, file: NewFile) -> None:
        super().__init__([field.name], _physical(field.type), compression_level, file)
        self._name = field.name

    def write(self, table: pa.Table) -> None:
        """Write this column of a row group at the end of the file; its pages are a function of the rows alone."""
        values = column_of(table, self._name)
        if pa.types.is_boolean(values.type):
            self.put(_flags(values))
            return
        numbers = np.ascontiguousarray(numbers_of(values))
        if numbers.dtype.kind == "f":
            self._write_floats(numbers)
        else:
            self._write_integers(numbers)

    def _write_floats(self, numbers: Array) -> None:
        bits = numbers.view(f"u{numbers.itemsize}")
        # By their bits: nan is not itself, and there are two zeros.
        if len(bits) and not (bits != bits[0]).any():
            self.put(_few(bits, int(bits[0]), int(bits[0])), compressed=False)
        else:
            self.put(_floats(numbers))

    def _write_integers(self, numbers: Array) -> None:
        low, high = (int(numbers.min()), int(numbers.max())) if len(numbers) else (0, _FEW)
        told = _extremes(low, high) if len(numbers) and self._name in WITH_EXTREMES else None
        if low == high or (high - low < _FEW and self._name not in _RISING):
            self.put(_few(numbers, low, high), statistics=told, compressed=low < high)
        else:
            self.put(_rising(numbers), statistics=told)


def _physical(kind: pa.DataType) -> int:
    if pa.types.is_boolean(kind):
        return BOOLEAN
    if pa.types.is_integer(kind):
        return INT64 if kind.bit_width == _LONG else INT32
    return FLOAT if pa.types.is_float32(kind) else DOUBLE


def _stored(integers: Array) -> Array:
    """Return integers as the physical type has them, which knows no sign and nothing shorter than 32 bits."""
    return integers.astype(np.int64 if 8 * integers.itemsize == _LONG else np.int32, copy=False)


def _parts(values: Array) -> Iterator[Array]:
    """Give the values of each page; where there are none, there is a page all the same, for readers look for one."""
    rows = PAGE_BYTES // values.itemsize
    return (values[start : start + rows] for start in range(0, max(1, len(values)), rows))


def _few(integers: Array, low: int, high: int) -> Iterator[Page]:
    """Give pages of integers near one another; first a dictionary of all from the lowest to the highest."""
    between = np.array(range(low, high + 1), integers.dtype)
    yield Page(len(between), PLAIN, plain(_stored(between)), is_dictionary=True)
    for part in _parts(integers):
        yield Page(len(part), RLE_DICTIONARY, dictionary_indices(part, low, high))


def _rising(integers: Array) -> Iterator[Page]:
    for part in map(_stored, _parts(integers)):
        differences = delta_binary_packed(part)
        if differences is None:
            yield Page(len(part), PLAIN, plain(part))
        else:
            yield Page(len(part), DELTA_BINARY_PACKED, differences)


def _floats(numbers: Array) -> Iterator[Page]:
    for part in _parts(numbers):
        streams = np.empty(part.nbytes, np.uint8)
        byte_stream_split(part, streams)
        yield Page(len(part), BYTE_STREAM_SPLIT, streams)


def _flags(column: pa.Array) -> Iterator[Page]:
    bits = np.packbits(numbers_of(column), bitorder="little")
    for start in range(0, max(1, len(bits)), PAGE_BYTES):
        part = bits[start : start + PAGE_BYTES]
        yield Page(min(8 * len(part), len(column) - 8 * start), PLAIN, part)


def _extremes(low: int, high: int) -> Node:
    """Return the statistics of a column of 64-bit integers without nulls."""
    lowest, highest = (Field(BINARY, unsigned(8) + number.to_bytes(8, "little", signed=True)) for number in (low, high))
    exact = Field(TRUE, b"")
    # Once for readers of today, and once for old ones.
    return {1: highest, 2: lowest, 3: i64(0), 5: highest, 6: lowest, 7: exact, 8: exact}
