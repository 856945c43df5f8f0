"""Neighbouring columns that may be null: Arrow writes them, but where nothing at all is in them.

So it is with infos of most environments, and Arrow looks at each row of each column to find that it is null.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from rollout_cli.dataset.arrow_columns import ArrowColumns
from rollout_cli.dataset.column_pages import BYTE_ARRAY, PLAIN, ColumnPages, Page
from rollout_cli.dataset.files import NewFile
from rollout_cli.dataset.footers import Chunks
from rollout_cli.dataset.number_encodings import as_bytes, length_of, run_of


def has_null_pages(field: pa.Field) -> bool:
    """Return whether `NullableTexts` writes a column: texts that may be null."""
    return bool(field.nullable and pa.types.is_string(field.type))


class NullableTexts:
    """Writes some columns, row group by row group.

    Args:
        schema: The columns, each one that `has_null_pages`.
        options: Arrow's, of how they are written where there is something in them.
        compression_level: zstd's.
        file: Where they go.
    """

    def __init__(self, schema: pa.Schema, options: Mapping[str, Any], compression_level: int, file: NewFile) -> None:
        self._schema, self._options, self._file = schema, options, file
        self._empty = [ColumnPages([name], BYTE_ARRAY, compression_level, file) for name in schema.names]
        self._arrow: ArrowColumns | None = None
        self._are_empty: list[bool] = []

    def write(self, table: pa.Table) -> None:
        """Write these columns of a row group at the end of the file."""
        self._are_empty.append(all(table.column(name).null_count == table.num_rows for name in self._schema.names))
        if self._are_empty[-1]:
            for pages in self._empty:
                pages.put([_page(table.num_rows)], compressed=False)
            return
        if self._arrow is None:
            self._arrow = ArrowColumns(self._schema, self._options, self._file)
        self._arrow.write(table)

    def finish(self) -> list[Chunks]:
        """Return where the columns of each row group lie; none is written any more."""
        empty = map(_together, zip(*(pages.finish() for pages in self._empty), strict=True))
        written = iter(self._arrow.finish() if self._arrow else ())
        return [next(empty) if is_empty else next(written) for is_empty in self._are_empty]

    def discard(self) -> None:
        """Let go of what Arrow holds, once the file was discarded."""
        if self._arrow is not None:
            self._arrow.discard()


def _page(rows: int) -> Page:
    """Return a page of nulls: that no value is there, and no value."""
    levels = as_bytes(run_of(0, rows, 1))
    return Page(rows, PLAIN, np.concatenate([length_of(levels), levels]))


def _together(columns: tuple[Chunks, ...]) -> Chunks:
    """Return neighbouring columns of one row group as one."""
    nodes = [node for column in columns for node in column.nodes]
    return Chunks(nodes, sum(column.decoded for column in columns), sum(column.stored for column in columns))
