"""Parquet files of a bounded size, for formats that consist of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

_MOST_BYTES = 100 << 20


class ParquetFiles:
    """Tables of one schema that go to files which follow one another; used as a context.

    `path_of` gives the path of a file's number, 0 for the first one. A file of 100 MiB or more is followed by
    the next one.
    """

    def __init__(self, path_of: Callable[[int], Path]) -> None:
        self._path_of, self._number = path_of, -1
        self._open = ExitStack()
        self._sink: Any = None
        self._writer: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def write(self, table: pa.Table) -> int:
        """Write a table, a row group, and return the number of its file."""
        if self._sink is None or self._sink.tell() >= _MOST_BYTES:
            self._open.close()
            self._number += 1
            path = self._path_of(self._number)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._sink = self._open.enter_context(pa.OSFile(str(path), "wb"))
            options = {"compression": "zstd"}
            self._writer = self._open.enter_context(pq.ParquetWriter(self._sink, table.schema, **options))
        self._writer.write_table(table)
        return self._number
