"""Row groups of committed files, read back: to be written into a file that goes on from there, or to be counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from rollout_cli.dataset.limits import check_group, open_parquet
from rollout_cli.dataset.tables import reading
from rollout_cli.errors import DatasetFormatError

_JOINED_ROWS = 4_096


def row_groups(root: Path, path: Path, schema: pa.Schema, count: int | None = None) -> Iterator[pa.Table]:
    """Give the first `count` row groups of a file (all by default) as they were when they were written.

    Args:
        root: The dataset's folder.
        path: A file of it.
        schema: The columns that it must have.
        count: How many row groups.

    Raises:
        DatasetFormatError: If the file has other columns than `schema`, or fewer row groups, is no such file, lies
            outside of the dataset, or would take too much memory.
        StorageError: If it cannot be read.
    """
    with reading(path):
        file = open_parquet(root, path)
    if not file.schema_arrow.equals(schema):
        raise DatasetFormatError(f"{path} has other columns than the dataset")
    for at in range(file.num_row_groups if count is None else count):
        with reading(path):
            check_group(path, file, at)
            table = file.read_row_group(at)
        # Contiguous, since pages would otherwise end where the pieces do that it was read in.
        yield pa.Table.from_arrays(table.combine_chunks().columns, schema=schema)


def joined(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Join small tables that follow one another: frequent commits would else leave a file of tiny row groups."""
    small: list[pa.Table] = []
    rows = 0
    for table in tables:
        small.append(table)
        rows += table.num_rows
        if rows >= _JOINED_ROWS:
            yield pa.concat_tables(small).combine_chunks()
            small, rows = [], 0
    if small:
        yield pa.concat_tables(small).combine_chunks()
