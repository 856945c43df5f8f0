"""How tables are written as Parquet: encodings that are small and fast for steps of episodes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rollout_cli.dataset.columns import batch_rows
from rollout_cli.dataset.files import FileStore, tidy_up

_BUFFER_BYTES = 256 << 10
"""Smaller writes are joined, inside Arrow: each one that reaches `NewFile` has to wait for the interpreter's lock."""

_PAGE_ROWS = 1 << 20
"""More than a row group has: pages then end by their bytes alone (1 MB), which compresses better than 20,000 rows."""

_PLAIN = ("step", "seed")
"""Steps repeat those of earlier episodes, which zstd finds itself, faster than deltas are made; seeds are noise."""

_HAS_PAGE_ROWS = "max_rows_per_page" in inspect.signature(pq.write_table).parameters


class TableFile:
    """One Parquet file in the making; each table written becomes one row group.

    Args:
        files: Where it is written.
        path: Its temporary name.
        schema: The schema of every table.
    """

    def __init__(self, files: FileStore, path: Path, schema: pa.Schema) -> None:
        self._files = files
        self._file = files.create(path)
        try:
            self._sink = pa.BufferedOutputStream(pa.PythonFile(self._file, mode="w"), _BUFFER_BYTES)
            self._writer = pq.ParquetWriter(self._sink, schema, **_options(schema))
        except BaseException as error:
            tidy_up(error, self._file.discard)
            raise
        self.rows = 0

    def write(self, table: pa.Table) -> None:
        """Write one row group; columns must be contiguous unless rows are big, or pages would be cut as they are."""
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self.rows += table.num_rows

    def publish(self, path: Path, metadata: Mapping[str, str] | None = None) -> int:
        """Write the footer, with `metadata` added, and put the file in place as `path`; return its bytes."""
        if metadata:
            self._writer.add_key_value_metadata(metadata)
        self._writer.close()
        self._sink.flush()
        return self._files.publish(self._file, path)

    def discard(self) -> None:
        """Throw away what was written."""
        try:
            self._file.discard()
        finally:
            # Its footer goes nowhere; left open, these would try to write at some later time.
            self._writer.close()
            self._sink.close()


def _options(schema: pa.Schema) -> dict[str, Any]:
    return {
        "compression": "zstd",
        "compression_level": 1,
        # Values of an observation rarely repeat: a dictionary costs time and is given up after a page.
        "use_dictionary": False,
        "column_encoding": dict(_encodings(schema)),
        # Readers select by episode; statistics of other columns are read by nobody and cost time in each row.
        "write_statistics": ["episode_id"],
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
        elif pa.types.is_integer(kind) and kind != pa.uint8() and field.name not in _PLAIN:
            # Ids and actions: of few values, or near one another.
            yield path, "DELTA_BINARY_PACKED"
