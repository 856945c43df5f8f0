"""Columns of fixed-size lists of floats, none of them null, as Parquet's pages.

Beside its values a page says of each number whether it begins a list: its levels. Where every list has the same length
they are known beforehand, and are made once here. Arrow's writer makes them anew for every number, which takes longer
than all that it does with the numbers themselves.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rollout_cli.dataset.column_pages import (
    BYTE_STREAM_SPLIT,
    DOUBLE,
    FLOAT,
    Bytes,
    ColumnPages,
    Page,
    column_of,
)
from rollout_cli.dataset.columns import PAGE_BYTES, decode_tensor
from rollout_cli.dataset.files import NewFile
from rollout_cli.dataset.number_encodings import as_bytes, byte_stream_split, length_of, run_of

Array = npt.NDArray[Any]

_PHYSICAL = {np.dtype(np.float32): FLOAT, np.dtype(np.float64): DOUBLE}

_GROUP = 8
"""Levels are packed so many at a time."""

_RUN_GROUPS = 63
"""Groups of one run: as many as other writers put into one, so that its head is one byte."""


def has_list_pages(field: pa.Field) -> bool:
    """Return whether `ListPages` writes a column: lists of floats, as many in each row, and nothing null."""
    if field.nullable or not pa.types.is_fixed_size_list(field.type):
        return False
    kind = field.type
    while pa.types.is_fixed_size_list(kind):
        if kind.value_field.nullable or not kind.list_size:
            return False
        kind = kind.value_type
    return bool(pa.types.is_float32(kind) or pa.types.is_float64(kind))


class ListPages(ColumnPages):
    """Writes one column, row group by row group.

    Args:
        field: The column, one that `has_list_pages`.
        compression_level: zstd's.
        file: Where its pages go.
    """

    def __init__(self, field: pa.Field, compression_level: int, file: NewFile) -> None:
        self._name = field.name
        kind, shape = field.type, []
        while pa.types.is_fixed_size_list(kind):
            shape.append(kind.list_size)
            kind = kind.value_type
        dtype = np.dtype(kind.to_pandas_dtype())
        row_values = prod(shape)
        self._page_values = row_values * max(1, PAGE_BYTES // (row_values * dtype.itemsize))
        self._levels = _levels(tuple(shape), self._page_values)
        path = [field.name, *["list", "element"] * len(shape)]
        super().__init__(path, _PHYSICAL[dtype], compression_level, file)
        # Used for every page, since memory that is touched for the first time has to be cleared.
        self._memory = np.empty(0, np.uint8)

    def write(self, table: pa.Table) -> None:
        """Write this column of a row group at the end of the file; its pages are a function of the rows alone."""
        numbers = decode_tensor(column_of(table, self._name)).reshape(-1)
        # Without rows there is a page without values: readers look for one where the footer says.
        starts = range(0, max(1, len(numbers)), self._page_values)
        self.put(self._page(numbers[start : start + self._page_values]) for start in starts)

    def _page(self, numbers: Array) -> Page:
        levels = self._levels.of(len(numbers))
        size = sum(map(len, levels)) + numbers.nbytes
        if len(self._memory) < size:
            self._memory = np.empty(size, np.uint8)
        at = 0
        for part in levels:
            self._memory[at : at + len(part)] = part
            at += len(part)
        byte_stream_split(numbers, self._memory[at:size])
        return Page(len(numbers), BYTE_STREAM_SPLIT, self._memory[:size])


class _Levels:
    """The levels of pages.

    Args:
        shape: How many lists and numbers there are in a row, from without.
        most: The most values of a page.
    """

    def __init__(self, shape: tuple[int, ...], most: int) -> None:
        self._depth = len(shape)
        self._width = self._depth.bit_length()
        row = _repetition(shape)
        bits = (row[:, None] >> np.arange(self._width, dtype=np.uint8) & 1).reshape(-1)
        packed = np.packbits(np.tile(bits, -(-most // row.size)), bitorder="little")
        run_bytes = _RUN_GROUPS * self._width
        # The head of each run, and its levels; the last run may be filled up with zeros.
        self._runs = np.zeros((-(-len(packed) // run_bytes), 1 + run_bytes), np.uint8)
        self._runs[:, 0] = _RUN_GROUPS << 1 | 1
        whole, rest = divmod(len(packed), run_bytes)
        self._runs[:whole, 1:] = packed[: whole * run_bytes].reshape(whole, run_bytes)
        self._runs[whole:, 1 : 1 + rest] = packed[whole * run_bytes :]

    def of(self, values: int) -> tuple[Bytes, ...]:
        """Return repetition and definition levels of so many values, whole rows, as parts of a page."""
        groups = -(-values // _GROUP)
        whole, rest = divmod(groups, _RUN_GROUPS)
        packed = [self._runs[:whole].reshape(-1)]
        if rest:
            packed += [as_bytes([rest << 1 | 1]), self._runs[whole, 1 : 1 + rest * self._width]]
        # All of them are there: one run of the deepest level.
        defined = as_bytes(run_of(self._depth, values, self._width))
        repeated = np.concatenate(packed)
        return length_of(repeated), repeated, length_of(defined), defined


def _repetition(shape: tuple[int, ...]) -> Bytes:
    """Return the level of each number of a row: how many lists around it go on from the number before."""
    levels = np.full(prod(shape), len(shape), np.uint8)
    size = 1
    for begun, length in enumerate(reversed(shape), 1):
        size *= length
        levels[::size] = len(shape) - begun
    return levels


_levels = lru_cache(maxsize=16)(_Levels)
