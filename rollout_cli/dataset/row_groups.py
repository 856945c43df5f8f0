"""Reading ranges of rows of Parquet files, a row group at a time; those read last are kept."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from rollout_cli.dataset.layout import Origin, check_origin
from rollout_cli.dataset.parquet import open_parquet, reading
from rollout_cli.errors import DatasetFormatError

CACHE_BYTES = 96 << 20
"""Row groups kept in memory for the next reads: random access need not decode one for each episode."""

_LEAST_KEPT = 2
"""Kept whatever their size, since an episode has rows in both tables."""

Columns = tuple[str, ...] | None
"""The columns that are read; None stands for all."""


class RowReader:
    """Reads ranges of rows of Parquet files, and keeps the row groups read last. A pickled one begins anew.

    Each file must have its origin in `origins`, and is checked against it whenever it is opened: a run may
    have replaced the dataset meanwhile. It may have more rows than before, of episodes that a run has added.
    Several threads may read at once.
    """

    def __init__(self, origins: Mapping[Path, Origin]) -> None:
        self._origins = origins
        self._edges: dict[Path, list[int]] = {}
        self._kept: OrderedDict[Any, Any] = OrderedDict()
        self._changing = threading.Lock()  # Held by a thread that changes what is kept.

    def __reduce__(self) -> tuple[Any, ...]:
        return RowReader, (self._origins,)

    @contextmanager
    def _opened(self, path: Path) -> Iterator[tuple[Any, list[int]]]:
        """Open a file; give it, and the rows at which its row groups begin, and its number of rows."""
        with reading(path), open_parquet(path) as file:
            check_origin(path, file.metadata.metadata, self._origins[path])
            sizes = [file.metadata.row_group(at).num_rows for at in range(file.metadata.num_row_groups)]
            yield file, list(accumulate(sizes, initial=0))

    def edges(self, path: Path) -> list[int]:
        """Return the rows at which the row groups of a file begin, and its number of rows."""
        if path not in self._edges:
            with self._opened(path) as (_, edges):
                self._edges[path] = edges
        return self._edges[path]

    def groups(self, path: Path, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Return place, first row, and end of each row group that has some of rows `start` to `stop - 1`."""
        edges = self.edges(path)
        if not 0 <= start < stop <= edges[-1]:
            raise DatasetFormatError(
                f"{path} has {edges[-1]} rows, but meta/episodes states rows {start} to {stop}"
            )
        pairs = enumerate(pairwise(edges))
        return [(at, first, last) for at, (first, last) in pairs if first < stop and start < last]

    def read(self, path: Path, start: int, stop: int, columns: Columns = None) -> list[pa.Table]:
        """Return rows `start` to `stop - 1` of file `path` as slices of row groups; all columns, or some."""
        tables = []
        for at, first, last in self.groups(path, start, stop):
            table = self.kept((path, at, columns), self._decoded)
            tables.append(table.slice(max(start - first, 0), min(stop, last) - max(start, first)))
        return tables

    def _decoded(self, key: tuple[Path, int, Columns]) -> pa.Table:
        return self.decoded(*key)

    def kept(self, key: Any, read: Callable[[Any], Any]) -> Any:
        """Return what is kept under `key`, or else `read(key)`, which is kept; its `nbytes` count."""
        value = self._kept.get(key)
        if value is not None:
            return value
        value = read(key)
        with self._changing:
            self._kept[key] = value
        self.trim()
        return value

    def trim(self) -> None:
        """Forget what was read first, until the rest fits, or little is left."""
        with self._changing:
            n_bytes = sum(kept.nbytes for kept in self._kept.values())
            while len(self._kept) > _LEAST_KEPT and n_bytes > CACHE_BYTES:
                n_bytes -= self._kept.popitem(last=False)[1].nbytes

    def decoded(self, path: Path, group: int, columns: Columns) -> pa.Table:
        """Return a row group of a file whose `edges` were asked for; it is not kept."""
        start, stop = self._edges[path][group : group + 2]
        with self._opened(path) as (file, edges):
            if edges[group : group + 1] != [start] or edges[group + 1 : group + 2] < [stop]:
                raise DatasetFormatError(
                    f"{path} was replaced while it was read", hint="load the dataset again"
                )
            # Parquet takes a name for the beginning of others, too.
            table = file.read_row_group(group, columns=None if columns is None else list(columns))
            if missing := [name for name in columns or () if name not in table.column_names]:
                raise DatasetFormatError(f"{path} lacks the column {missing[0]}")
            return table if columns is None else table.select(columns)
