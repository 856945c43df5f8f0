"""Reading the Parquet files of a dataset: the episodes that it states, and ranges of rows of its data files."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rollout_cli.dataset.limits import check_episode_rows, check_group, open_parquet
from rollout_cli.dataset.schema import EPISODE_FIELDS
from rollout_cli.errors import DatasetFormatError, StorageError


@dataclass(frozen=True, slots=True)
class EpisodeFile:
    """One file of `meta/episodes`.

    Attributes:
        path: Where it is.
        first: The place, among all episodes, of its first row.
        rows: How many rows it has.
    """

    path: Path
    first: int
    rows: int


def read_episodes(root: Path) -> tuple[pa.Table, list[EpisodeFile]]:
    """Return the numbers of all episodes of the dataset in `root`, in order, and the files that hold them."""
    tables, files, first = [], [], 0
    for path in sorted((root / "meta" / "episodes").glob("chunk-*/file-*.parquet")):
        with reading(path):
            file = open_parquet(root, path)
            check_episode_rows(path, file.metadata)
            table = file.read(columns=[field.name for field in EPISODE_FIELDS])
        check_facts(path, table)
        tables.append(table.replace_schema_metadata())
        files.append(EpisodeFile(path, first, table.num_rows))
        first += table.num_rows
    if not tables:
        return pa.schema(EPISODE_FIELDS).empty_table(), []
    return pa.concat_tables(tables).combine_chunks(), files


def check_facts(path: Path, table: pa.Table) -> None:
    """Check that an episode's own columns have their types, and a value in each row.

    Raises:
        DatasetFormatError: If one does not.
    """
    for field in EPISODE_FIELDS:
        if field.name not in table.column_names:
            raise DatasetFormatError(f"{path} has no column {field.name}")
        column = table[field.name]
        if column.type != field.type:
            raise DatasetFormatError(f"{path} has {column.type} in the column {field.name}, expected {field.type}")
        if column.null_count:
            raise DatasetFormatError(f"{path} has {column.null_count} rows without a value in the column {field.name}")


class RowReader:
    """Reads ranges of rows of Parquet files; the last row group read is kept, for the episode that comes next.

    Args:
        root: The folder of the dataset that they belong to.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._path: Path | None = None
        self._file: pq.ParquetFile | None = None
        self._edges = np.zeros(1, np.int64)
        self._group: tuple[int, pa.Table] | None = None

    def read(self, path: Path, start: int, stop: int) -> pa.Table:
        """Return rows `start` to `stop - 1` of the file `path`.

        Raises:
            DatasetFormatError: If the file is not there, is broken, has fewer rows, or would take too much memory.
        """
        self._open(path)
        if not 0 <= start < stop:
            raise DatasetFormatError(f"meta/episodes states rows {start} to {stop} of {path}")
        if stop > int(self._edges[-1]):
            raise DatasetFormatError(
                f"{path} has {int(self._edges[-1])} rows, but meta/episodes states rows up to {stop}"
            )
        first, last = np.searchsorted(self._edges, (start, stop - 1), side="right") - 1
        with reading(path):
            table = pa.concat_tables([self._read_group(group) for group in range(int(first), int(last) + 1)])
        return table.slice(start - int(self._edges[first]), stop - start)

    def _open(self, path: Path) -> None:
        if path == self._path:
            return
        with reading(path):
            self._file = open_parquet(self._root, path)
        metadata = self._file.metadata
        sizes = [metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)]
        self._path, self._edges, self._group = path, np.cumsum([0, *sizes]), None

    def _read_group(self, group: int) -> pa.Table:
        assert self._file is not None
        assert self._path is not None
        if self._group is None or self._group[0] != group:
            check_group(self._path, self._file, group)
            self._group = group, self._file.read_row_group(group)
        return self._group[1]


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Read from the file `path`; what pyarrow and the operating system raise comes out as an error of ours."""
    try:
        yield
    except FileNotFoundError as error:
        raise DatasetFormatError(f"{path} is missing") from error
    except OSError as error:
        # Without a number it is Parquet's reader that speaks; that of an impossible place in a file is its fault too.
        if error.errno in (None, errno.EINVAL):
            raise DatasetFormatError(f"{path} is broken: {error}") from error
        raise StorageError(f"cannot read {path}: {error}") from error
    except (pa.ArrowException, UnicodeDecodeError, OverflowError, IndexError) as error:
        raise DatasetFormatError(f"{path} is not a file of this format: {error}") from error
