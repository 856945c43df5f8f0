"""ColumnPages: the pages of one column in a Parquet file, and what its footer says of them.

Pages are such as Arrow writes them: of version 1, compressed by zstd with their levels, and with a checksum. What they
hold is made by `list_pages.py`, `flat_pages.py` and `null_pages.py`.

The format is Parquet's own, https://parquet.apache.org/docs/file-format: its structures, encodings and levels.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rollout_cli.dataset.files import NewFile
from rollout_cli.dataset.footers import Chunks
from rollout_cli.dataset.thrift import (
    BINARY,
    I32,
    LIST,
    STRUCTURE,
    Elements,
    Field,
    Node,
    encoded,
    i32,
    i32_fields,
    i64,
    signed,
    text,
)

Bytes = npt.NDArray[np.uint8]

BOOLEAN, INT32, INT64, FLOAT, DOUBLE, BYTE_ARRAY = 0, 1, 2, 4, 5, 6
"""Parquet's physical types."""

PLAIN, RLE, DELTA_BINARY_PACKED, RLE_DICTIONARY, BYTE_STREAM_SPLIT = 0, 3, 5, 8, 9
"""Its encodings."""

_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
_UNCOMPRESSED, _ZSTD = 0, 6


@dataclass(frozen=True, slots=True)
class Page:
    """One page, not compressed.

    Attributes:
        values: How many values it has, nulls included.
        encoding: That of its values.
        body: Its levels and values, uint8 (n,).
        is_dictionary: Whether it has the values that the numbers of other pages stand for; then it comes first.
    """

    values: int
    encoding: int
    body: Bytes
    is_dictionary: bool = False

    @property
    def kind(self) -> int:
        """Return what the format calls such a page."""
        return _DICTIONARY_PAGE if self.is_dictionary else _DATA_PAGE


class ColumnPages:
    """Writes the pages of one column, row group by row group.

    Args:
        path: The names from the column down to its values.
        physical: The physical type of its values.
        compression_level: zstd's.
        file: Where its pages go.
    """

    def __init__(self, path: Sequence[str], physical: int, compression_level: int, file: NewFile) -> None:
        self._path = encoded(Elements(BINARY, list(map(text, path))))
        self._physical, self._file = physical, file
        self._codec = pa.Codec("zstd", compression_level=compression_level)
        self._chunks: list[Chunks] = []

    def put(self, pages: Iterable[Page], *, statistics: Node | None = None, compressed: bool = True) -> None:
        """Write the pages of a row group at the end of the file; one may use the memory of the one before it.

        Args:
            pages: At least one with values.
            statistics: What the footer says of the values.
            compressed: Whether the pages are compressed: what is a few bytes only gets larger.
        """
        kinds: Counter[tuple[int, int]] = Counter()
        offsets: dict[int, int] = {}
        values = decoded = stored = 0
        for page in pages:
            offsets.setdefault(page.kind, self._file.tell())
            kinds[page.kind, page.encoding] += 1
            body = self._codec.compress(page.body, asbytes=True) if compressed else page.body.tobytes()
            header = _header(page, body)
            self._file.write(header)
            self._file.write(body)
            decoded, stored = decoded + len(header) + len(page.body), stored + len(header) + len(body)
            values += 0 if page.is_dictionary else page.values
        described = self._described(kinds, offsets, values, codec=_ZSTD if compressed else _UNCOMPRESSED)
        described |= {6: i64(decoded), 7: i64(stored)}
        if statistics is not None:
            described[12] = Field(STRUCTURE, statistics)
        self._chunks.append(Chunks([{2: i64(0), 3: Field(STRUCTURE, described)}], decoded, stored))

    def _described(
        self, kinds: Counter[tuple[int, int]], offsets: dict[int, int], values: int, *, codec: int
    ) -> dict[int, Field]:
        """Return what the footer says of pages that were written, but for their sizes and statistics."""
        described = {
            1: i32(self._physical),
            2: Field(LIST, _encodings(tuple(kinds))),
            3: Field(LIST, self._path),
            4: i32(codec),
            5: i64(values),
            9: i64(offsets[_DATA_PAGE]),
            13: Field(LIST, _counts(tuple(kinds.items()))),
        }
        if _DICTIONARY_PAGE in offsets:
            described[11] = i64(offsets[_DICTIONARY_PAGE])
        return described

    def finish(self) -> list[Chunks]:
        """Return where the column of each row group lies; none is written any more."""
        return self._chunks

    def discard(self) -> None:
        """Let go of nothing: the file is all that there was."""


def column_of(table: pa.Table, name: str) -> pa.Array:
    """Return a column of a row group as one array."""
    column = table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _header(page: Page, body: bytes) -> bytes:
    """Return what a page begins with; each row group has a dozen of them, so it is not put together field by field."""
    checksum = zlib.crc32(body)
    told = i32_fields(page.kind, len(page.body), len(body), checksum - (checksum >> 31 << 32))
    if page.is_dictionary:
        return told + _DICTIONARY_FACTS + i32_fields(page.values, page.encoding) + _STOPS
    return told + _DATA_FACTS + i32_fields(page.values, page.encoding, RLE, RLE) + _STOPS


_DATA_FACTS, _DICTIONARY_FACTS = (bytes([(field - 4) << 4 | STRUCTURE]) for field in (5, 7))
"""What such a field behind the fourth one begins with."""

_STOPS = b"\0\0"
"""The ends of the facts and of the header."""


@lru_cache(maxsize=64)
def _encodings(kinds: tuple[tuple[int, int], ...]) -> bytes:
    return encoded(Elements(I32, [signed(one) for one in sorted({RLE, *(encoding for _, encoding in kinds)})]))


@lru_cache(maxsize=256)
def _counts(kinds: tuple[tuple[tuple[int, int], int], ...]) -> bytes:
    nodes: list[Node] = [{1: i32(kind), 2: i32(encoding), 3: i32(count)} for (kind, encoding), count in kinds]
    return encoded(Elements(STRUCTURE, nodes))
