"""The footer of a Parquet file whose columns were written apart from one another.

Arrow says where columns lie in the footer of a file that has no others; an empty file of the whole schema has all else.
The two are put together here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollout_cli.dataset.thrift import LIST, STRUCTURE, Elements, Field, Node, Reader, encoded, i64, opened

MAGIC = b"PAR1"
_TAIL = 8
"""Bytes behind a footer: its length and the magic number."""

_N_ROWS, _ROW_GROUPS = 3, 4
"""Of a footer."""

_COLUMNS, _DECODED, _ROWS, _OFFSET, _STORED = 1, 2, 3, 5, 6
"""Of a row group."""

_METADATA = 3
"""Of a column of one."""

_PLACES = (9, 10, 11)
"""Of its metadata: where its data pages, an index and a dictionary begin."""

_TO_PLACES = 6
"""How deep a footer is taken apart: itself, its list of row groups, each of them, its columns, each, its metadata."""


@dataclass(frozen=True, slots=True)
class Chunks:
    """Neighbouring columns of one row group, as they lie in the file.

    Attributes:
        nodes: What the footer says of each.
        decoded: Bytes of their pages, decompressed.
        stored: Bytes of their pages in the file.
    """

    nodes: list[Node]
    decoded: int
    stored: int


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows of a file.

    Attributes:
        rows: How many.
        offset: Where in the file they begin.
        columns: All columns, in the order of the schema.
    """

    rows: int
    offset: int
    columns: Sequence[Chunks]


def footer_of(end: bytes) -> bytes:
    """Return the footer that the end of a file consists of."""
    length = int.from_bytes(end[-_TAIL:-4], "little")
    if end[-4:] != MAGIC or length != len(end) - _TAIL:
        raise ValueError(f"{len(end)} bytes are not the end of a Parquet file")
    return end[:-_TAIL]


def end_of(footer: bytes) -> bytes:
    """Return the end of a file with this footer."""
    return footer + len(footer).to_bytes(4, "little") + MAGIC


def moved_chunks(footer: bytes, distances: Sequence[int]) -> list[Chunks]:
    """Return the columns of each row group of a footer.

    Args:
        footer: Of a file of its own.
        distances: How much further behind each row group lies in the file that it came into.
    """
    groups = _nodes(opened(footer, _TO_PLACES)[_ROW_GROUPS])
    return [_moved(group, distance) for group, distance in zip(groups, distances, strict=True)]


def _moved(group: Node, distance: int) -> Chunks:
    assert isinstance(group, dict)
    columns = _nodes(group[_COLUMNS])
    for column in columns:
        assert isinstance(column, dict)
        metadata = column[_METADATA].node
        assert isinstance(metadata, dict)
        metadata.update({place: i64(_number(metadata[place]) + distance) for place in _PLACES if place in metadata})
    return Chunks(columns, _number(group[_DECODED]), _number(group[_STORED]))


def whole_footer(empty: bytes, groups: Sequence[RowGroup]) -> bytes:
    """Return the footer of a file with these row groups.

    Args:
        empty: That of an empty file of the same schema and metadata.
        groups: The row groups.
    """
    row_groups = Field(LIST, Elements(STRUCTURE, [_row_group(group) for group in groups]))
    return encoded(opened(empty, 1) | {_N_ROWS: i64(sum(group.rows for group in groups)), _ROW_GROUPS: row_groups})


def _row_group(group: RowGroup) -> Node:
    return {
        _COLUMNS: Field(LIST, Elements(STRUCTURE, [node for chunks in group.columns for node in chunks.nodes])),
        _DECODED: i64(sum(chunks.decoded for chunks in group.columns)),
        _ROWS: i64(group.rows),
        _OFFSET: i64(group.offset),
        _STORED: i64(sum(chunks.stored for chunks in group.columns)),
    }


def _nodes(field: Field) -> list[Node]:
    assert isinstance(field.node, Elements)
    return field.node.nodes


def _number(field: Field) -> int:
    assert isinstance(field.node, bytes)
    return Reader(field.node).signed()
