"""Reading the Parquet files of a dataset: the episodes that it states, and ranges of rows of its data files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

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
            table = pq.ParquetFile(path).read(columns=[field.name for field in EPISODE_FIELDS])
        tables.append(table.replace_schema_metadata())
        files.append(EpisodeFile(path, first, table.num_rows))
        first += table.num_rows
    if not tables:
        return pa.schema(EPISODE_FIELDS).empty_table(), []
    return pa.concat_tables(tables).combine_chunks(), files


class RowReader:
    """Reads ranges of rows of Parquet files; the last row group read is kept, for the episode that comes next."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._file: pq.ParquetFile | None = None
        self._edges = np.zeros(1, np.int64)
        self._group: tuple[int, pa.Table] | None = None

    def read(self, path: Path, start: int, stop: int) -> pa.Table:
        """Return rows `start` to `stop - 1` of the file `path`.

        Raises:
            DatasetFormatError: If the file is not there, is broken, or has fewer rows.
        """
        self._open(path)
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
            self._file = pq.ParquetFile(path)
        metadata = self._file.metadata
        sizes = [metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)]
        self._path, self._edges, self._group = path, np.cumsum([0, *sizes]), None

    def _read_group(self, group: int) -> pa.Table:
        assert self._file is not None
        if self._group is None or self._group[0] != group:
            self._group = group, self._file.read_row_group(group)
        return self._group[1]


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Read the file `path`; what goes wrong comes out as an error of ours that names it."""
    try:
        yield
    except FileNotFoundError as error:
        raise DatasetFormatError(f"{path} is missing") from error
    except (pa.ArrowInvalid, pa.ArrowKeyError, pa.ArrowNotImplementedError) as error:
        raise DatasetFormatError(f"{path} is not a file of this format: {error}") from error
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error}") from error
