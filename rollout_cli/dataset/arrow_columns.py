"""Neighbouring columns of a Parquet file as Arrow writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rollout_cli.dataset.files import NewFile
from rollout_cli.dataset.footers import MAGIC, Chunks, footer_of, moved_chunks

_BUFFER_BYTES = 256 << 10
"""Smaller writes are joined, inside Arrow: each one that reaches `NewFile` has to wait for the interpreter's lock."""


class ArrowColumns:
    """Writes some columns, row group by row group.

    Arrow believes that it writes a file of its own. Of that only the pages come into ours, where others lie between
    them; so they lie further behind than its footer says.

    Args:
        schema: The columns.
        options: Arrow's, of how they are written.
        file: Where they go.
    """

    def __init__(self, schema: pa.Schema, options: Mapping[str, Any], file: NewFile) -> None:
        self._names = schema.names
        self._file = file
        self._pages = _Pages(file)
        self._sink = pa.BufferedOutputStream(pa.PythonFile(self._pages, mode="w"), _BUFFER_BYTES)
        self._writer = pq.ParquetWriter(self._sink, schema, **options)
        self._sink.flush()
        self._pages.pass_on()
        self._distances: list[int] = []

    def write(self, table: pa.Table) -> None:
        """Write these columns of a row group at the end of the file."""
        self._distances.append(self._file.tell() - self._sink.tell())
        self._writer.write_table(table.select(self._names), row_group_size=max(1, table.num_rows))
        self._sink.flush()

    def finish(self) -> list[Chunks]:
        """Return where the columns of each row group lie; none is written any more."""
        self._pages.keep()
        self._writer.close()
        self._sink.flush()
        return moved_chunks(footer_of(self._pages.kept), self._distances)

    def discard(self) -> None:
        """Let go of what Arrow holds, once the file was discarded."""
        # Its footer goes nowhere; left open, these would try to write at some later time.
        self._writer.close()
        self._sink.close()


class _Pages:
    """What Arrow writes into: pages are passed on to the file; what stands before and behind them is kept from it."""

    def __init__(self, file: NewFile) -> None:
        self._file = file
        self._kept: list[bytes] | None = []

    def pass_on(self) -> None:
        """Pass on what comes from here on."""
        assert self.kept == MAGIC
        self._kept = None

    def keep(self) -> None:
        """Keep what comes from here on in memory."""
        self._kept = []

    @property
    def kept(self) -> bytes:
        """Return what came since `keep`, or since the beginning."""
        return b"".join(self._kept or [])

    @property
    def closed(self) -> bool:
        """Return whether nothing can be written any more."""
        return self._file.closed

    def write(self, data: bytes | memoryview) -> int:
        """Append `data`; return its size in bytes."""
        if self._kept is None:
            return self._file.write(data)
        self._kept.append(bytes(data))
        return len(self._kept[-1])

    def flush(self) -> None:
        """Do nothing: `NewFile.finish` flushes."""

    def close(self) -> None:
        """Do nothing: `NewFile` is closed by who opened it."""
