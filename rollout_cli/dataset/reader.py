"""Reading a dataset: lazily, one episode or any selection of them at a time."""

from __future__ import annotations

import re
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, overload

import numpy as np
import pyarrow as pa

from rollout_cli.dataset.convert import MOST_OFFSET, Array
from rollout_cli.dataset.files import read_info
from rollout_cli.dataset.parquet import open_parquet, reading
from rollout_cli.dataset.schema import EPISODE_FIELDS, SpaceSchema, env_spec_of
from rollout_cli.dataset.tables import decode_batch
from rollout_cli.episodes.batch import EnvSpec, EpisodeBatch, Tree
from rollout_cli.episodes.spaces import map_tree
from rollout_cli.errors import DatasetFormatError, StorageError

CACHE_BYTES = 256 << 20
"""Row groups that stay in memory for the next reads, so that random access does not decode one for each episode."""

FileId = tuple[int, int]
"""Chunk index and file index."""

_FILE = re.compile(r"chunk-(\d+)/file-(\d+)\.parquet")
_NAMES = [field.name for field in EPISODE_FIELDS]


def load(path: Path | str) -> Dataset:
    """Open the dataset in the folder `path`; only the table of its episodes is read.

    It warns (`UserWarning`) where there are fewer episodes than info.json states, as after files were lost.

    Raises:
        DatasetFormatError: If there is no dataset of this format, or it contradicts itself.
        StorageError: If it cannot be read.
    """
    root = Path(path)
    info = read_info(root)
    spaces = SpaceSchema.of(env_spec_of(info))
    table, files = read_episodes(root)
    stated = info.get("episodes")
    if isinstance(stated, int) and table.num_rows < stated:
        text = (
            f"{root} has {table.num_rows:,} episodes, but its info.json states {stated:,}; see: rollout verify {root}"
        )
        warnings.warn(text, UserWarning, stacklevel=2)
    source = _Source(root, info, spaces, table, files, RowReader(), RowReader())
    return Dataset(source, np.arange(table.num_rows))


def file_name(file: FileId) -> str:
    """Return the path of a file of `data` or `meta/episodes`, below that folder."""
    return f"chunk-{file[0]:05}/file-{file[1]:05}.parquet"


def table_files(folder: Path) -> dict[FileId, Path]:
    """Return the files of a table, in the order of their rows; none where there is no such folder.

    Links are followed: the cache of the Hugging Face hub consists of them.

    Raises:
        StorageError: If a folder cannot be read.
    """
    found = {}
    for chunk in _names(folder):
        for name in _names(folder / chunk):
            match = _FILE.fullmatch(f"{chunk}/{name}")
            file = (int(match[1]), int(match[2])) if match else (-1, -1)
            if f"{chunk}/{name}" == file_name(file):
                found[file] = folder / chunk / name
    return dict(sorted(found.items()))


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageError(f"cannot read the folder {folder}: {reason}", hint="check its permissions") from error


@dataclass(frozen=True, slots=True)
class EpisodeFile:
    """One file of `meta/episodes`.

    Attributes:
        path: The file.
        first: The place, among all episodes, of its first row.
        rows: How many rows it has.
    """

    path: Path
    first: int
    rows: int


def read_episodes(root: Path) -> tuple[pa.Table, list[EpisodeFile]]:
    """Return the columns `EPISODE_FIELDS` of all episodes, in order, and the files that hold them.

    Raises:
        DatasetFormatError: If a file is damaged, or has other columns.
        StorageError: If one cannot be read.
    """
    tables, files, first = [], [], 0
    for path in table_files(root / "meta" / "episodes").values():
        with reading(path), open_parquet(path) as file:
            table = file.read(columns=_NAMES)
        _check_episodes(path, table)
        tables.append(table.replace_schema_metadata())
        files.append(EpisodeFile(path, first, table.num_rows))
        first += table.num_rows
    if not tables:
        return pa.schema(EPISODE_FIELDS).empty_table(), []
    return pa.concat_tables(tables).combine_chunks(), files


def _check_episodes(path: Path, table: pa.Table) -> None:
    for field in EPISODE_FIELDS:
        kind = table.schema.field(field.name).type if field.name in table.column_names else "no such column"
        if kind != field.type:
            raise DatasetFormatError(f"{path} has {kind} in the column {field.name}, expected {field.type}")
        if table[field.name].null_count:
            raise DatasetFormatError(f"{path} has rows without a value in the column {field.name}")


class RowReader:
    """Reads ranges of rows of Parquet files, and keeps the row groups read last. A pickled one begins anew."""

    def __init__(self) -> None:
        self._edges: dict[Path, Array] = {}
        self._groups: OrderedDict[tuple[Path, int], pa.Table] = OrderedDict()

    def __reduce__(self) -> tuple[Any, ...]:
        return RowReader, ()

    def edges(self, path: Path) -> Array:
        """Return the rows at which the row groups of a file begin, and its number of rows, int64 (groups + 1,)."""
        if path not in self._edges:
            with reading(path), open_parquet(path) as file:
                sizes = [file.metadata.row_group(at).num_rows for at in range(file.metadata.num_row_groups)]
            self._edges[path] = np.cumsum([0, *sizes])
        return self._edges[path]

    def read(self, path: Path, start: int, stop: int) -> list[pa.Table]:
        """Return rows `start` to `stop - 1` of the file `path`, as slices of row groups.

        Raises:
            DatasetFormatError: If the file is missing or damaged, or has fewer rows.
            StorageError: If it cannot be read.
        """
        edges = self.edges(path)
        if not 0 <= start < stop <= edges[-1]:
            raise DatasetFormatError(f"{path} has {edges[-1]} rows, but meta/episodes states rows {start} to {stop}")
        first, last = (np.searchsorted(edges, (start, stop - 1), side="right") - 1).tolist()
        out = []
        for group in range(first, last + 1):
            low, high = max(start, int(edges[group])), min(stop, int(edges[group + 1]))
            out.append(self._group(path, group).slice(low - int(edges[group]), high - low))
        return out

    def _group(self, path: Path, group: int) -> pa.Table:
        key = (path, group)
        if key not in self._groups:
            with reading(path), open_parquet(path) as file:
                self._groups[key] = file.read_row_group(group)
            while len(self._groups) > 1 and sum(table.nbytes for table in self._groups.values()) > CACHE_BYTES:
                self._groups.popitem(last=False)
        self._groups.move_to_end(key)
        return self._groups[key]


@dataclass(frozen=True)
class _Source:
    """All views of one dataset share this."""

    root: Path
    info: Mapping[str, Any]
    spaces: SpaceSchema
    table: pa.Table
    files: list[EpisodeFile]
    steps: RowReader
    episodes: RowReader

    def data_path(self, file: FileId) -> Path:
        return self.root / "data" / file_name(file)


class Dataset:
    """The episodes of a dataset, or of a selection of them.

    `len(dataset)` counts episodes and `dataset[i]` is an `Episode`. `dataset[a:b]`, `dataset[[3, 1]]` and
    `dataset[mask]`, with a bool array of one value an episode, are each a `Dataset` that shares everything with this
    one. Iterating decodes a row group at a time; an episode kept from it keeps that row group in memory. A dataset can
    be pickled; each process then reads by itself.
    """

    def __init__(self, source: _Source, places: Array) -> None:
        self._source = source
        self._places = places

    def __len__(self) -> int:
        """Return the number of episodes."""
        return len(self._places)

    @overload
    def __getitem__(self, at: int | np.integer[Any]) -> Episode: ...
    @overload
    def __getitem__(self, at: slice | Sequence[int] | Array) -> Dataset: ...
    def __getitem__(self, at: int | np.integer[Any] | slice | Sequence[int] | Array) -> Episode | Dataset:
        """Return one episode, or a view of some.

        Raises:
            IndexError: If there is no such episode, or a mask has another length.
            TypeError: If `at` is not an integer, a slice, integers, or a mask.
        """
        if isinstance(at, slice):
            return Dataset(self._source, self._places[at])
        if isinstance(at, int | np.integer):
            place = int(self._places[at])
            return Episode(_Block(Dataset(self._source, np.array([place]))), 0)
        chosen = np.asarray(at)
        if not chosen.size:
            chosen = chosen.astype(np.int64)  # numpy takes an empty list for floats.
        if chosen.ndim != 1 or chosen.dtype.kind not in "biu":
            raise TypeError(f"a dataset is indexed by integers, a slice or a mask, not by {type(at).__name__}: {at!r}")
        return Dataset(self._source, self._places[chosen])

    def __iter__(self) -> Iterator[Episode]:
        """Give each episode in turn."""
        for block in self._blocks():
            for at in range(len(block.view)):
                yield Episode(block, at)

    def __repr__(self) -> str:
        return f"<Dataset {self._source.root}: {len(self)} episodes>"

    @property
    def path(self) -> Path:
        """Return the dataset's folder."""
        return self._source.root

    @property
    def info(self) -> Mapping[str, Any]:
        """Return the dataset's info.json."""
        return self._source.info

    @property
    def env_spec(self) -> EnvSpec:
        """Return the environment's spaces and limit."""
        return self._source.spaces.env_spec

    @cached_property
    def episodes(self) -> pa.Table:
        """Return the rows of `meta/episodes`, one an episode, without last observations and infos."""
        return self._source.table.take(pa.array(self._places))

    def to_episode_batch(self) -> EpisodeBatch:
        """Read all these episodes into memory.

        Dtypes, shapes and trees are those of the spaces; infos that some steps lack are masked arrays.

        Raises:
            ValueError: If there is no episode.
            DatasetFormatError: If the files are damaged, or contradict each other.
            StorageError: If they cannot be read, or do not fit into memory.
        """
        if not len(self):
            raise ValueError("there is no episode to read")
        try:
            steps, episodes = pa.concat_tables(self._step_rows()), pa.concat_tables(self._episode_rows())
            if len(self) > 1 and _has_long_texts(steps):
                half = len(self) // 2
                return EpisodeBatch.concatenate(self[:half].to_episode_batch(), self[half:].to_episode_batch())
            return decode_batch(self._source.spaces, steps, episodes)
        except MemoryError as error:
            hint = "read some episodes at a time: dataset[a:b].to_episode_batch()"
            raise StorageError(f"{len(self):,} episodes do not fit into memory: {error}", hint=hint) from error
        except (ValueError, KeyError, RecursionError) as error:
            raise DatasetFormatError(f"{self._source.root} contradicts itself: {error}") from error

    def _step_rows(self) -> list[pa.Table]:
        """Return the rows of `data` of these episodes, one after another."""
        starts, lengths = (self.episodes[name].to_numpy() for name in ("data_row_index", "length"))
        files = self._file_ids()
        stops = starts + lengths
        begins = np.any(files[1:] != files[:-1], axis=1) | (starts[1:] != stops[:-1])
        out = []
        for first, last in _runs(begins):
            path = self._source.data_path(tuple(files[first].tolist()))
            out += self._source.steps.read(path, int(starts[first]), int(stops[last - 1]))
        return out

    def _episode_rows(self) -> list[pa.Table]:
        """Return the whole rows of `meta/episodes` of these episodes.

        They are slices: `take` of pyarrow 26 gives wrong rows of nested fixed-size lists.
        """
        ends = np.array([file.first + file.rows for file in self._source.files])
        owners = np.searchsorted(ends, self._places, side="right")
        out = []
        for first, last in _runs((np.diff(self._places) != 1) | (np.diff(owners) != 0)):
            file = self._source.files[int(owners[first])]
            start = int(self._places[first]) - file.first
            out += self._source.episodes.read(file.path, start, start + last - first)
        return out

    def _file_ids(self) -> Array:
        """Return chunk index and file index of each episode, (N, 2)."""
        names = ("data_chunk_index", "data_file_index")
        return np.column_stack([self.episodes[name].to_numpy() for name in names])

    def _blocks(self) -> Iterator[_Block]:
        """Give the episodes that begin in one row group together."""
        files, rows = self._file_ids(), self.episodes["data_row_index"].to_numpy()
        for first, last in _runs(np.any(files[1:] != files[:-1], axis=1)) if len(self) else ():
            edges = self._source.steps.edges(self._source.data_path(tuple(files[first].tolist())))
            groups = np.searchsorted(edges, rows[first:last], side="right")
            for start, stop in _runs(np.diff(groups) != 0):
                yield _Block(self[first + start : first + stop])


def _runs(begins: Array) -> Iterator[tuple[int, int]]:
    """Give start and stop of each run of places, where `begins`, bool (n - 1,), marks the ends of runs."""
    return pairwise([0, *(np.flatnonzero(begins) + 1).tolist(), len(begins) + 1])


def _has_long_texts(table: pa.Table) -> bool:
    """Return whether a column has more text than one Arrow array can hold."""
    columns = (table[field.name] for field in table.schema if pa.types.is_string(field.type))
    return any(column.nbytes > MOST_OFFSET for column in columns)


class _Block:
    """Some episodes whose steps are decoded together, once those of one are asked for."""

    def __init__(self, view: Dataset) -> None:
        self.view = view

    @cached_property
    def facts(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.view.episodes.to_pylist()
        return rows

    @cached_property
    def batches(self) -> list[EpisodeBatch]:
        return self.view.to_episode_batch().split()


class Episode:
    """One episode: its row of `meta/episodes` at once, its steps when they are asked for.

    Attributes:
        facts: That row, by column name.
    """

    def __init__(self, block: _Block, at: int) -> None:
        self._block = block
        self._at = at
        self.facts: Mapping[str, Any] = block.facts[at]

    def __len__(self) -> int:
        """Return the number of steps."""
        return int(self.facts["length"])

    def __repr__(self) -> str:
        return f"<Episode {self.id}: {len(self)} steps, return {self.total_reward}>"

    @property
    def id(self) -> int:
        """Return its place in the dataset."""
        return int(self.facts["episode_id"])

    @property
    def number(self) -> int:
        """Return its number, which with the root seed decides its seeds."""
        return int(self.facts["episode_number"])

    @property
    def seed(self) -> int:
        """Return the seed given to `env.reset`."""
        return int(self.facts["seed"])

    @property
    def total_reward(self) -> float:
        """Return the sum of its rewards."""
        return float(self.facts["return"])

    @property
    def terminated(self) -> bool:
        """Return whether it ended by its own rules."""
        return bool(self.facts["terminated"])

    @property
    def truncated(self) -> bool:
        """Return whether it was cut off."""
        return bool(self.facts["truncated"])

    @property
    def batch(self) -> EpisodeBatch:
        """Return it as a batch of one episode.

        Raises:
            DatasetFormatError: If its file is damaged.
            StorageError: If its file cannot be read.
        """
        return self._block.batches[self._at]

    @property
    def observations(self) -> Tree:
        """Return what the policy saw at each step, tree of arrays (T, *shape)."""
        return self.batch.observations

    @property
    def actions(self) -> Tree:
        """Return the actions, tree of arrays (T, *shape)."""
        return self.batch.actions

    @property
    def rewards(self) -> Array:
        """Return the rewards, float64 (T,)."""
        return self.batch.rewards

    @property
    def last_observation(self) -> Tree:
        """Return what followed the last step, tree of arrays of the space's shapes."""
        return map_tree(lambda leaf: leaf[0], self.batch.last_observations)
