"""The rows of a dataset's episodes in both tables: where they lie, and how to read some columns at a time."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from rollout_cli.dataset.convert import Array
from rollout_cli.dataset.fingerprint import Origin, check_origin, file_origin, fingerprint_of
from rollout_cli.dataset.layout import FileId, file_name, order_column
from rollout_cli.dataset.parquet import open_parquet, reading
from rollout_cli.dataset.schema import EPISODE_FIELDS, DatasetSchema, SpaceColumn, SpaceSchema, spec_from_info
from rollout_cli.dataset.tables import decode_batch, decode_chunk, decode_numbers, decode_tree
from rollout_cli.episodes.batch import EpisodeBatch
from rollout_cli.episodes.chunk import Chunk
from rollout_cli.episodes.spaces import map_tree
from rollout_cli.errors import DatasetFormatError, StorageError

CACHE_BYTES = 256 << 20
"""Row groups kept in memory for the next reads: random access need not decode one for each episode."""

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
        self._groups: OrderedDict[tuple[Path, int, Columns], pa.Table] = OrderedDict()
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

    def read(self, path: Path, start: int, stop: int, columns: Columns = None) -> list[pa.Table]:
        """Return rows `start` to `stop - 1` of file `path` as slices of row groups; all columns, or some."""
        edges = self.edges(path)
        if not 0 <= start < stop <= edges[-1]:
            raise DatasetFormatError(
                f"{path} has {edges[-1]} rows, but meta/episodes states rows {start} to {stop}"
            )
        return [
            self._group(path, group, columns).slice(
                max(start - first, 0), min(stop, last) - max(start, first)
            )
            for group, (first, last) in enumerate(pairwise(edges))
            if first < stop and start < last
        ]

    def _group(self, path: Path, group: int, columns: Columns) -> pa.Table:
        key = (path, group, columns)
        with self._changing:
            if key in self._groups:
                self._groups.move_to_end(key)
                return self._groups[key]
        table = self._decoded(*key)
        with self._changing:
            self._groups[key] = table
            while len(self._groups) > 1 and sum(kept.nbytes for kept in self._groups.values()) > CACHE_BYTES:
                self._groups.popitem(last=False)
        return table

    def _decoded(self, path: Path, group: int, columns: Columns) -> pa.Table:
        start, stop = self._edges[path][group : group + 2]
        with self._opened(path) as (file, edges):
            if edges[group : group + 1] != [start] or edges[group + 1 : group + 2] < [stop]:
                raise DatasetFormatError(
                    f"{path} was replaced while it was read", hint="load the dataset again"
                )
            # Parquet takes a name for the beginning of others, too.
            table = file.read_row_group(group, columns=None if columns is None else list(columns))
            return table if columns is None else table.select(columns)


@dataclass(frozen=True, slots=True)
class _Source:
    """All selections of one dataset share this."""

    root: Path
    info: Mapping[str, Any]
    spaces: SpaceSchema
    table: pa.Table
    places: Array
    reader: RowReader


class Rows:
    """The rows of some episodes of a dataset, which are decoded together. It can be pickled."""

    def __init__(self, source: _Source, ids: Array) -> None:
        self._source, self.ids = source, ids
        self.root, self.info, self.spaces = source.root, source.info, source.spaces
        self._values: dict[str, list[Any]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Rows, (self._source, self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, places: Any) -> Rows:
        """Return the rows of the episodes at these places, whatever numpy takes for some of an array."""
        return Rows(self._source, self.ids[places])

    @cached_property
    def episodes(self) -> pa.Table:
        """The columns `EPISODE_FIELDS`, one row an episode."""
        return self._source.table.take(pa.array(self.ids))

    def column(self, name: str) -> Array:
        """Return one of `EPISODE_FIELDS`, (N,)."""
        return np.asarray(self.episodes[name].to_numpy())

    @cached_property
    def facts(self) -> list[Mapping[str, Any]]:
        """The row of each episode, by column name."""
        return [MappingProxyType(row) for row in self.episodes.to_pylist()]

    @cached_property
    def batches(self) -> list[EpisodeBatch]:
        """Each episode by itself."""
        return self.batch().split()

    def batch(self) -> EpisodeBatch:
        """Return all episodes; the errors are those of `Dataset.to_episode_batch`."""
        try:
            return decode_batch(self.spaces, self.steps(), self.ends())
        except MemoryError as error:
            hint = "read some episodes at a time: dataset[a:b].to_episode_batch()"
            raise StorageError(
                f"{len(self):,} episodes do not fit into memory: {error}", hint=hint
            ) from error
        except (ValueError, KeyError, RecursionError) as error:
            raise DatasetFormatError(f"{self.root} contradicts itself: {error}") from error

    def chunk(self, most_steps: int | None = None) -> Chunk:
        """Return the episodes as a chunk that a writer writes unchanged; of one, perhaps its first steps.

        Raises:
            DatasetFormatError: If the files are damaged, or contradict each other.
        """
        schema, places = DatasetSchema.from_info(self.info), self._step_places()
        if most_steps is not None:
            places[:, 3] = np.minimum(places[:, 3], places[:, 2] + most_steps)
        try:
            chunk = decode_chunk(schema, self._read("data", places, None), self.ends())
            return replace(chunk, lengths=places[:, 3] - places[:, 2])
        except (ValueError, KeyError) as error:
            raise DatasetFormatError(f"{self.root} contradicts itself: {error}") from error

    def steps(self, columns: Columns = None) -> pa.Table:
        """Return the rows of `data`."""
        return self._read("data", self._step_places(), columns)

    def some_steps(self, most: int, columns: Columns = None, *, n_runs: int = 16) -> pa.Table:
        """Return the rows of `data`; where there are more than `most`, `n_runs` runs that lie evenly."""
        places, stops = self._step_places(), np.cumsum(self.column("length"))
        total = int(stops[-1]) if len(stops) else 0
        if total <= most:
            return self._read("data", places, columns)
        chosen, n_runs = [], min(n_runs, most)
        size = most // n_runs
        for start in np.linspace(0, total - size, n_runs, dtype=np.int64).tolist():
            stop = start + size
            first, last = np.searchsorted(stops, [start + 1, stop]).tolist()
            run = places[first : last + 1].copy()
            run[0, 2] = run[0, 3] - (stops[first] - start)
            run[-1, 3] -= stops[last] - stop
            chosen.append(run)
        return self._read("data", np.concatenate(chosen), columns)

    def ends(self, columns: Columns = None) -> pa.Table:
        """Return the rows of `meta/episodes`, with last observations and infos."""
        return self._read("meta/episodes", self._source.places[self.ids], columns)

    def values(self, name: str) -> list[Any]:
        """Return each episode's `reward`, `observation`, `action` or `last_observation`, (T, *shape).

        No column of another field is read. The errors are those of `Dataset.to_episode_batch`.
        """
        if name not in self._values:
            self._values[name] = list(self._split(name))
        return self._values[name]

    def _split(self, name: str) -> Iterator[Any]:
        is_last, spec = name == "last_observation", self.spaces.env_spec
        columns: tuple[SpaceColumn, ...] = () if name == "reward" else getattr(self.spaces, name)
        # A fact says how many rows there are where no leaf has a column.
        names = tuple(column.name for column in columns if column.stored) or (
            "length" if is_last else "reward",
        )
        table = self.ends(names) if is_last else self.steps(names)
        space = spec.action_space if name == "action" else spec.observation_space
        tree = decode_numbers(table, name) if name == "reward" else decode_tree(space, columns, table)
        lengths = np.ones(len(self), np.int64) if is_last else self.column("length")
        for start, stop in pairwise([0, *np.cumsum(lengths).tolist()]):
            yield map_tree(itemgetter(slice(start, stop)), tree)

    def blocks(self) -> Iterator[Rows]:
        """Yield the episodes that begin in one row group together."""
        if not len(self):
            return
        places = self._step_places()
        for first, last in _runs(np.any(np.diff(places[:, :2], axis=0), axis=1)):
            chunk, file, *_ = places[first].tolist()
            edges = self._source.reader.edges(self.root / "data" / file_name((chunk, file)))
            groups = np.searchsorted(edges, places[first:last, 2], side="right")
            for start, stop in _runs(np.diff(groups) != 0):
                yield self.select(slice(first + start, first + stop))

    def _step_places(self) -> Array:
        """Return the places of the episodes' rows in `data`, as `_read` takes them."""
        names = ("data_chunk_index", "data_file_index", "data_row_index", "length")
        chunk, file, row, length = map(self.column, names)
        return np.column_stack([chunk, file, row, row + length])

    def _read(self, folder: str, places: Array, columns: Columns) -> pa.Table:
        """Return rows of the files of `folder` (`data` or `meta/episodes`), one range an episode.

        They are slices, for `take` of pyarrow 26 gives wrong rows of nested fixed-size lists. The columns of
        `places`, int64 (N, 4), are chunk index, file index, first row, and one past the last row.
        """
        tables = []
        for first, last in _runs(
            np.any(np.diff(places[:, :2], axis=0), axis=1) | (places[1:, 2] != places[:-1, 3])
        ):
            chunk, file, start, _ = places[first].tolist()
            path = self.root / folder / file_name((chunk, file))
            tables += self._source.reader.read(path, start, int(places[last - 1, 3]), columns)
        return pa.concat_tables(tables)


def _runs(ends: Array) -> Iterator[tuple[int, int]]:
    """Yield start and stop of each run of n items; `ends`, bool (n - 1,), marks the last of each run."""
    return pairwise([0, *(np.flatnonzero(ends) + 1).tolist(), len(ends) + 1])


def rows_of(root: Path, info: Mapping[str, Any], files: Mapping[FileId, Path]) -> Rows:
    """Return the rows of the dataset in `root` as far as these episodes files go.

    Raises:
        DatasetFormatError: If the dataset contradicts itself.
        StorageError: If it cannot be read.
    """
    table, places, origins = _read_episodes(root, info, files)
    source = _Source(root, info, SpaceSchema.of(spec_from_info(info)), table, places, RowReader(origins))
    return Rows(source, np.arange(table.num_rows))


def _read_episodes(
    root: Path, info: Mapping[str, Any], files: Mapping[FileId, Path]
) -> tuple[pa.Table, Array, dict[Path, Origin]]:
    """Read the episodes files.

    Returns:
        The columns `EPISODE_FIELDS` of all episodes, the places of their rows as `Rows` takes them, and by
        path the origin of each episodes file and of its data file.
    """
    schema = pa.schema(EPISODE_FIELDS)
    tables, places = [schema.empty_table()], [np.empty((0, 4), np.int64)]
    origins: dict[Path, Origin] = {}
    for (chunk, file), path in files.items():
        with reading(path), open_parquet(path) as opened:
            table, footer = opened.read(columns=schema.names), opened.metadata.metadata
        kinds = {field.name: field.type for field in table.schema}
        for field in EPISODE_FIELDS:
            if kinds.get(field.name) != field.type or table[field.name].null_count or not table.num_rows:
                raise DatasetFormatError(
                    f"{path} lacks values of type {field.type} in the column {field.name}"
                )
        named = (table["data_chunk_index"].to_numpy(), chunk), (table["data_file_index"].to_numpy(), file)
        if any((indices != index).any() for indices, index in named):
            raise DatasetFormatError(
                f"{path} names another data file than its own: it is in another file's place"
            )
        partition = 0 if info.get("partitions") == 1 else chunk
        origin = file_origin(fingerprint_of(info), partition, table[order_column(info)][0].as_py())
        check_origin(path, footer, origin)
        origins |= dict.fromkeys((path, root / "data" / file_name((chunk, file))), origin)
        rows = np.arange(table.num_rows)
        places.append(np.stack(np.broadcast_arrays(chunk, file, rows, rows + 1), axis=1))
        tables.append(table.select(schema.names).cast(schema))
    return pa.concat_tables(tables).combine_chunks(), np.concatenate(places), origins
