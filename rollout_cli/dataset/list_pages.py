"""Columns of fixed-size lists of floats, none of them null, as Parquet's pages.

Beside its values a page says of each number whether it begins a list: its levels. Where every list has the same length
they are known beforehand, and are made once here. Arrow's writer makes them anew for every number, which takes longer
than all that it does with the numbers themselves. The pages are such as it writes: of version 1, with the numbers'
bytes apart (BYTE_STREAM_SPLIT), zstd around levels and values, and a checksum.

The format is Parquet's own, https://parquet.apache.org/docs/file-format: its structures, encodings and levels.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rollout_cli.dataset.columns import PAGE_BYTES, decode_tensor
from rollout_cli.dataset.files import NewFile
from rollout_cli.dataset.footers import Chunks
from rollout_cli.dataset.thrift import (
    BINARY,
    I32,
    LIST,
    STRUCTURE,
    Elements,
    Field,
    encoded,
    i32,
    i64,
    signed,
    text,
    unsigned,
)

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]

_PHYSICAL = {np.dtype(np.float32): 4, np.dtype(np.float64): 5}
_BYTE_STREAM_SPLIT, _RLE = 9, 3
_ZSTD = 6
_DATA_PAGE = 0

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


class ListPages:
    """Writes one column, row group by row group.

    Args:
        field: The column, one that `has_list_pages`.
        compression_level: zstd's.
        file: Where its pages go.
    """

    def __init__(self, field: pa.Field, compression_level: int, file: NewFile) -> None:
        self._name, self._file = field.name, file
        self._chunks: list[Chunks] = []
        kind, shape = field.type, []
        while pa.types.is_fixed_size_list(kind):
            shape.append(kind.list_size)
            kind = kind.value_type
        self._dtype = np.dtype(kind.to_pandas_dtype())
        self._row_values = prod(shape)
        self._page_values = self._row_values * max(1, PAGE_BYTES // (self._row_values * self._dtype.itemsize))
        self._path = [field.name, *["list", "element"] * len(shape)]
        self._levels = _levels(tuple(shape), self._page_values)
        self._codec = pa.Codec("zstd", compression_level=compression_level)
        # Used for every page, since memory that is touched for the first time has to be cleared.
        self._memory = np.empty(0, np.uint8)

    def write(self, table: pa.Table) -> None:
        """Write this column of a row group at the end of the file; its pages are a function of the rows alone."""
        offset = self._file.tell()
        column = table.column(self._name)
        contiguous = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        numbers = decode_tensor(contiguous).reshape(-1)
        decoded = stored = pages = 0
        # Without rows there is a page without values: readers look for one where the footer says.
        for start in range(0, max(1, len(numbers)), self._page_values):
            header, body, size = self._page(numbers[start : start + self._page_values])
            self._file.write(header)
            self._file.write(body)
            decoded, stored, pages = decoded + len(header) + size, stored + len(header) + len(body), pages + 1
        described = {
            1: i32(_PHYSICAL[self._dtype]),
            2: Field(LIST, Elements(I32, [signed(_RLE), signed(_BYTE_STREAM_SPLIT)])),
            3: Field(LIST, Elements(BINARY, [text(name) for name in self._path])),
            4: i32(_ZSTD),
            5: i64(len(numbers)),
            6: i64(decoded),
            7: i64(stored),
            9: i64(offset),
            13: Field(LIST, Elements(STRUCTURE, [{1: i32(_DATA_PAGE), 2: i32(_BYTE_STREAM_SPLIT), 3: i32(pages)}])),
        }
        self._chunks.append(Chunks([{2: i64(0), 3: Field(STRUCTURE, described)}], decoded, stored))

    def finish(self) -> list[Chunks]:
        """Return where the column of each row group lies; none is written any more."""
        return self._chunks

    def discard(self) -> None:
        """Let go of nothing: the file is all that there was."""

    def _page(self, numbers: Array) -> tuple[bytes, pa.Buffer, int]:
        """Return header and body of a page, and how many bytes the body has decompressed."""
        levels = self._levels.of(len(numbers))
        decoded = sum(map(len, levels)) + numbers.nbytes
        if len(self._memory) < decoded:
            self._memory = np.empty(decoded, np.uint8)
        at = 0
        for part in levels:
            self._memory[at : at + len(part)] = part
            at += len(part)
        size = self._dtype.itemsize
        streams = self._memory[at:decoded].reshape(size, len(numbers))
        np.copyto(streams, numbers.view(np.uint8).reshape(-1, size).T)
        body = self._codec.compress(self._memory[:decoded])
        checksum = zlib.crc32(body)
        header = {
            1: i32(_DATA_PAGE),
            2: i32(decoded),
            3: i32(len(body)),
            4: i32(checksum - (checksum >> 31 << 32)),
            5: Field(STRUCTURE, {1: i32(len(numbers)), 2: i32(_BYTE_STREAM_SPLIT), 3: i32(_RLE), 4: i32(_RLE)}),
        }
        return encoded(header), body, decoded


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
        packed.resize(-(-len(packed) // run_bytes), run_bytes)
        heads = np.full((len(packed), 1), _RUN_GROUPS << 1 | 1, np.uint8)
        self._runs = np.concatenate([heads, packed], axis=1)

    def of(self, values: int) -> tuple[Bytes, ...]:
        """Return repetition and definition levels of so many values, whole rows, as parts of a page."""
        groups = -(-values // _GROUP)
        whole, rest = divmod(groups, _RUN_GROUPS)
        packed = [self._runs[:whole].reshape(-1)]
        if rest:
            packed += [_bytes([rest << 1 | 1]), self._runs[whole, 1 : 1 + rest * self._width]]
        # All of them are there: one run of the deepest level.
        defined = _bytes([*unsigned(values << 1), self._depth] if values else [])
        return (_length(sum(map(len, packed))), *packed, _length(len(defined)), defined)


def _repetition(shape: tuple[int, ...]) -> Bytes:
    """Return the level of each number of a row: how many lists around it go on from the number before."""
    levels = np.full(prod(shape), len(shape), np.uint8)
    size = 1
    for begun, length in enumerate(reversed(shape), 1):
        size *= length
        levels[::size] = len(shape) - begun
    return levels


_levels = lru_cache(maxsize=16)(_Levels)


def _bytes(values: Sequence[int]) -> Bytes:
    return np.array(values, np.uint8)


def _length(count: int) -> Bytes:
    return np.array([count], "<u4").view(np.uint8)
