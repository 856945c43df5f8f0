"""How tables are written as Parquet: encodings that are small and fast for steps of episodes."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from rollout_cli.dataset.arrow_columns import ArrowColumns
from rollout_cli.dataset.columns import batch_rows
from rollout_cli.dataset.files import FileStore, NewFile, tidy_up
from rollout_cli.dataset.flat_pages import WITH_EXTREMES, FlatPages, has_flat_pages
from rollout_cli.dataset.footers import MAGIC, Chunks, RowGroup, end_of, footer_of, whole_footer
from rollout_cli.dataset.list_pages import ListPages, has_list_pages
from rollout_cli.dataset.null_pages import NullableTexts, has_null_pages

_LEVEL = 1
"""zstd's: each higher one takes longer for little."""

_PAGE_ROWS = 1 << 20
"""More than a row group has: pages then end by their bytes alone (1 MB), which compresses better than 20,000 rows."""

_HAS_PAGE_ROWS = "max_rows_per_page" in inspect.signature(pq.write_table).parameters


class _Columns(Protocol):
    """Writes some columns of each row group."""

    def write(self, table: pa.Table) -> None:
        """Write these columns of a row group at the end of the file."""

    def finish(self) -> list[Chunks]:
        """Return where the columns of each row group lie; none is written any more."""

    def discard(self) -> None:
        """Let go of what is held, once the file was discarded."""


class TableFile:
    """One Parquet file in the making; each table written becomes one row group.

    Args:
        files: Where it is written.
        path: Its temporary name.
        schema: The schema of every table.
    """

    def __init__(self, files: FileStore, path: Path, schema: pa.Schema) -> None:
        self._files = files
        self._schema = schema
        self._groups: list[tuple[int, int]] = []
        self._file = files.create(path)
        try:
            self._file.write(MAGIC)
            self._columns = list(_columns(schema, self._file))
        except BaseException as error:
            tidy_up(error, self._file.discard)
            raise

    @property
    def rows(self) -> int:
        """Return how many rows were written."""
        return sum(rows for rows, _ in self._groups)

    def write(self, table: pa.Table) -> None:
        """Write one row group; columns must be contiguous unless rows are big, or pages would be cut as they are."""
        self._groups.append((table.num_rows, self._file.tell()))
        for columns in self._columns:
            columns.write(table)

    def publish(self, path: Path, metadata: Mapping[str, str] | None = None) -> int:
        """Write the footer, with `metadata` added, and put the file in place as `path`; return its bytes."""
        chunks = zip(*(columns.finish() for columns in self._columns), strict=True)
        groups = [RowGroup(*group, columns) for group, columns in zip(self._groups, chunks, strict=True)]
        empty = _empty_file(self._schema, metadata or {})
        self._file.write(end_of(whole_footer(footer_of(empty.removeprefix(MAGIC)), groups)))
        return self._files.publish(self._file, path)

    def discard(self) -> None:
        """Throw away what was written."""
        with ExitStack() as stack:
            for columns in self._columns:
                stack.callback(columns.discard)
            self._file.discard()


def _columns(schema: pa.Schema, file: NewFile) -> Iterator[_Columns]:
    """Give the writers of all columns, in the schema's order."""
    for form, neighbours in groupby(schema, _form):
        fields = list(neighbours)
        columns = pa.schema(fields)
        if form is _Form.LIST:
            yield from (ListPages(field, _LEVEL, file) for field in fields)
        elif form is _Form.FLAT:
            yield from (FlatPages(field, _LEVEL, file) for field in fields)
        elif form is _Form.NULLABLE:
            yield NullableTexts(columns, _options(columns), _LEVEL, file)
        else:
            yield ArrowColumns(columns, _options(columns), file)


class _Form(enum.Enum):
    """Who writes a column."""

    LIST = enum.auto()
    FLAT = enum.auto()
    NULLABLE = enum.auto()
    OTHER = enum.auto()


def _form(field: pa.Field) -> _Form:
    if has_list_pages(field):
        return _Form.LIST
    if has_flat_pages(field):
        return _Form.FLAT
    return _Form.NULLABLE if has_null_pages(field) else _Form.OTHER


def _empty_file(schema: pa.Schema, metadata: Mapping[str, str]) -> bytes:
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, schema, **_options(schema)) as writer:
        writer.add_key_value_metadata(metadata)
    return bytes(sink.getvalue())


def _options(schema: pa.Schema) -> dict[str, Any]:
    return {
        "compression": "zstd",
        "compression_level": _LEVEL,
        # Values of an observation rarely repeat: a dictionary costs time and is given up after a page.
        "use_dictionary": False,
        "column_encoding": dict(_encodings(schema)),
        "write_statistics": list(WITH_EXTREMES),
        "write_page_index": False,
        # What finds a flipped bit: neither the compression nor anything else of Parquet does.
        "write_page_checksum": True,
        "write_batch_size": batch_rows(max(map(_row_bytes, schema.types))),
        **({"max_rows_per_page": _PAGE_ROWS} if _HAS_PAGE_ROWS else {}),
    }


def _row_bytes(kind: pa.DataType) -> int:
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size) * _row_bytes(kind.value_type)
    return int(kind.byte_width) if pa.types.is_fixed_size_binary(kind) else 8


def _encodings(schema: pa.Schema) -> Iterator[tuple[str, str]]:
    for field in schema:
        kind, path = field.type, field.name
        while pa.types.is_fixed_size_list(kind):
            kind, path = kind.value_type, f"{path}.list.element"
        if pa.types.is_float32(kind) or pa.types.is_float64(kind):
            yield path, "BYTE_STREAM_SPLIT"
        elif pa.types.is_boolean(kind):
            # Bits. Levels in run lengths come to more bytes and more time.
            yield path, "PLAIN"
        elif pa.types.is_integer(kind) and kind != pa.uint8():
            # Actions and infos: of few values, or near one another.
            yield path, "DELTA_BINARY_PACKED"
