"""Reading a dataset: lazily, one episode or any selection of them at a time."""

from __future__ import annotations

import shlex
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
import pyarrow as pa

from rollout_cli.dataset.convert import Array
from rollout_cli.dataset.fingerprint import Origin, check_origin, file_origin
from rollout_cli.dataset.layout import FileId, file_name, read_info, table_files
from rollout_cli.dataset.parquet import open_parquet, reading
from rollout_cli.dataset.schema import EPISODE_FIELDS, DatasetSchema, SpaceSchema, env_spec_of
from rollout_cli.dataset.tables import decode_batch, decode_chunk
from rollout_cli.episodes.batch import EnvSpec, EpisodeBatch, Tree
from rollout_cli.episodes.chunk import Chunk
from rollout_cli.episodes.spaces import map_tree
from rollout_cli.errors import DatasetFormatError, StorageError
from rollout_cli.remote import folder_of

CACHE_BYTES = 256 << 20
"""Row groups that stay in memory for the next reads, so that random access does not decode one for each episode."""


def load(path: Path | str) -> Dataset:
    """Open the dataset in the folder `path`, a path or a URI; only the table of its episodes is read.

    It warns (`UserWarning`) where there are fewer episodes than info.json states, as after files were lost.

    Raises:
        DatasetFormatError: If there is no dataset of this format, or it contradicts itself.
        StorageError: If it cannot be read.
    """
    root = folder_of(path)
    # Listed before info.json is read: a run names its fingerprint there before it commits the first file.
    files = table_files(root / "meta" / "episodes")
    dataset = dataset_of(root, read_info(root), files)
    stated = dataset.info.get("episodes")
    if isinstance(stated, int) and len(dataset) < stated:
        text = f"{root} has {len(dataset):,} episodes, but its info.json states {stated:,}"
        warnings.warn(f"{text}; see: rollout verify {shlex.quote(str(root))}", UserWarning, stacklevel=2)
    return dataset


def dataset_of(root: Path, info: Mapping[str, Any], files: Mapping[FileId, Path]) -> Dataset:
    """Return the dataset in `root` as far as these episodes files go; the errors are those of `load`."""
    spaces = SpaceSchema.of(env_spec_of(info))
    table, places, origins = _read_episodes(root, info, files)
    return Dataset(_Source(root, info, spaces, table, places, RowReader(origins)), np.arange(table.num_rows))


def _read_episodes(
    root: Path, info: Mapping[str, Any], files: Mapping[FileId, Path]
) -> tuple[pa.Table, Array, dict[Path, Origin]]:
    """Read the episodes files.

    Returns:
        The columns `EPISODE_FIELDS` of all episodes, the places of their rows as `_rows` takes them, and by path the
        origin of each episodes file and of its data file.
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
                raise DatasetFormatError(f"{path} lacks values of type {field.type} in the column {field.name}")
        named = (table["data_chunk_index"].to_numpy(), chunk), (table["data_file_index"].to_numpy(), file)
        if any((indices != index).any() for indices, index in named):
            raise DatasetFormatError(f"{path} names another data file than its own: it is in another file's place")
        partition = 0 if info.get("partitions") == 1 else chunk
        origin = file_origin(info.get("run"), partition, table["episode_number"][0].as_py())
        check_origin(path, footer, origin)
        origins |= dict.fromkeys((path, root / "data" / file_name((chunk, file))), origin)
        rows = np.arange(table.num_rows)
        places.append(np.stack(np.broadcast_arrays(chunk, file, rows, rows + 1), axis=1))
        tables.append(table.select(schema.names).cast(schema))
    return pa.concat_tables(tables).combine_chunks(), np.concatenate(places), origins


class RowReader:
    """Reads ranges of rows of Parquet files, and keeps the row groups read last. A pickled one begins anew.

    Each file must have its origin in `origins`, and is checked against it whenever it is opened: a run may have
    replaced the dataset meanwhile. It may have more rows than before, of episodes that a run has added.
    """

    def __init__(self, origins: Mapping[Path, Origin]) -> None:
        self._origins = origins
        self._edges: dict[Path, list[int]] = {}
        self._groups: OrderedDict[tuple[Path, int], pa.Table] = OrderedDict()

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

    def read(self, path: Path, start: int, stop: int) -> list[pa.Table]:
        """Return rows `start` to `stop - 1` of the file `path`, as slices of row groups."""
        edges = self.edges(path)
        if not 0 <= start < stop <= edges[-1]:
            raise DatasetFormatError(f"{path} has {edges[-1]} rows, but meta/episodes states rows {start} to {stop}")
        return [
            self._group(path, group).slice(max(start - first, 0), min(stop, last) - max(start, first))
            for group, (first, last) in enumerate(pairwise(edges))
            if first < stop and start < last
        ]

    def _group(self, path: Path, group: int) -> pa.Table:
        key = (path, group)
        if key not in self._groups:
            start, stop = self._edges[path][group : group + 2]
            with self._opened(path) as (file, edges):
                if edges[group : group + 1] != [start] or edges[group + 1 : group + 2] < [stop]:
                    raise DatasetFormatError(f"{path} was replaced while it was read", hint="load the dataset again")
                self._groups[key] = file.read_row_group(group)
            while len(self._groups) > 1 and sum(table.nbytes for table in self._groups.values()) > CACHE_BYTES:
                self._groups.popitem(last=False)
        self._groups.move_to_end(key)
        return self._groups[key]


class _Source(NamedTuple):
    """All views of one dataset share this."""

    root: Path
    info: Mapping[str, Any]
    spaces: SpaceSchema
    table: pa.Table
    places: Array
    reader: RowReader


class Dataset:
    """The episodes of a dataset, or of a selection of them.

    `len(dataset)` counts episodes and `dataset[i]` is an `Episode`. `dataset[a:b]`, `dataset[[3, 1]]` and
    `dataset[mask]`, with a bool array of one value an episode, are each a `Dataset` that shares everything with this
    one. Iterating decodes a row group at a time; an episode kept from it keeps that row group in memory. A dataset can
    be pickled; each process then reads by itself.
    """

    def __init__(self, source: _Source, ids: Array) -> None:
        self._source, self._ids = source, ids

    def __len__(self) -> int:
        return len(self._ids)

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
        if isinstance(at, int | np.integer):
            return Episode(Dataset(self._source, self._ids[[int(at)]]), 0)
        if not isinstance(at, slice):
            at = np.array(at, dtype=None if np.size(at) else np.int64)  # numpy takes an empty list for floats.
            if at.ndim != 1 or at.dtype.kind not in "biu":
                raise TypeError(f"a dataset is indexed by integers, a slice or a mask, not by {at!r}")
        return Dataset(self._source, self._ids[at])

    def __iter__(self) -> Iterator[Episode]:
        for block in self._blocks():
            for at in range(len(block)):
                yield Episode(block, at)

    def __reduce__(self) -> tuple[Any, ...]:
        return Dataset, (self._source, self._ids)

    def __repr__(self) -> str:
        return f"<Dataset {self.path}: {len(self)} episodes>"

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
        return self._source.table.take(pa.array(self._ids))

    @cached_property
    def _facts(self) -> list[dict[str, Any]]:
        return list(self.episodes.to_pylist())

    @cached_property
    def _batches(self) -> list[EpisodeBatch]:
        return self.to_episode_batch().split()

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
            steps = self._rows("data", self._data_places())
            return decode_batch(self._source.spaces, steps, self._rows("meta/episodes", self._source.places[self._ids]))
        except MemoryError as error:
            hint = "read some episodes at a time: dataset[a:b].to_episode_batch()"
            raise StorageError(f"{len(self):,} episodes do not fit into memory: {error}", hint=hint) from error
        except (ValueError, KeyError, RecursionError) as error:
            raise DatasetFormatError(f"{self.path} contradicts itself: {error}") from error

    def chunks(self) -> Iterator[Chunk]:
        """Read the episodes, in their order, as chunks that a writer writes as they are here: a row group at a time.

        Raises:
            DatasetFormatError: If the files are damaged, or contradict each other.
        """
        schema = DatasetSchema.from_info(self.info)
        for block in self._blocks():
            yield block._chunk(schema)  # noqa: SLF001 - it is one of this class

    def _chunk(self, schema: DatasetSchema, most_steps: int | None = None) -> Chunk:
        """Return these episodes as a chunk; of a single one perhaps no more than its first steps."""
        episodes, places = self._rows("meta/episodes", self._source.places[self._ids]), self._data_places()
        if most_steps is not None:
            places[:, 3] = np.minimum(places[:, 3], places[:, 2] + most_steps)
        try:
            chunk = decode_chunk(schema, self._rows("data", places), episodes)
            return replace(chunk, lengths=places[:, 3] - places[:, 2])
        except (ValueError, KeyError) as error:
            raise DatasetFormatError(f"{self.path} contradicts itself: {error}") from error

    def _data_places(self) -> Array:
        """Return the places of the episodes' rows in `data`, as `_rows` takes them."""
        names = ("data_chunk_index", "data_file_index", "data_row_index", "length")
        chunk, file, row, length = (self.episodes[name].to_numpy() for name in names)
        return np.column_stack([chunk, file, row, row + length])

    def _rows(self, folder: str, places: Array) -> pa.Table:
        """Return rows of the files of `folder` (`data` or `meta/episodes`), one range an episode.

        They are slices, for `take` of pyarrow 26 gives wrong rows of nested fixed-size lists. The columns of `places`,
        int64 (N, 4), are chunk index, file index, first row, and one past the last row.
        """
        out = []
        for first, last in _runs(np.any(np.diff(places[:, :2], axis=0), axis=1) | (places[1:, 2] != places[:-1, 3])):
            chunk, file, start, _ = places[first].tolist()
            path = self.path / folder / file_name((chunk, file))
            out += self._source.reader.read(path, start, int(places[last - 1, 3]))
        return pa.concat_tables(out)

    def _blocks(self) -> Iterator[Dataset]:
        """Give the episodes that begin in one row group together."""
        places = self._data_places()
        for first, last in _runs(np.any(np.diff(places[:, :2], axis=0), axis=1)) if len(self) else ():
            chunk, file, *_ = places[first].tolist()
            edges = self._source.reader.edges(self.path / "data" / file_name((chunk, file)))
            groups = np.searchsorted(edges, places[first:last, 2], side="right")
            for start, stop in _runs(np.diff(groups) != 0):
                yield self[first + start : first + stop]


def _runs(ends: Array) -> Iterator[tuple[int, int]]:
    """Give start and stop of each run of n items; `ends`, bool (n - 1,), marks the last of each run."""
    return pairwise([0, *(np.flatnonzero(ends) + 1).tolist(), len(ends) + 1])


class Episode:
    """One episode: its row of `meta/episodes` at once, its steps when they are asked for.

    Attributes:
        facts: That row, by column name.
        id: Its place in the dataset.
        number: Its number, which with the root seed decides its seeds.
        seed: The seed given to `env.reset`.
        total_reward: The sum of its rewards.
        terminated: Whether it ended by its own rules.
        truncated: Whether it was cut off.
    """

    def __init__(self, block: Dataset, at: int) -> None:
        # All episodes of a block are decoded together, once the steps of one are asked for.
        self._block, self._at = block, at
        self.facts: Mapping[str, Any] = block._facts[at]  # noqa: SLF001 - one class in two parts
        self.id: int = self.facts["episode_id"]
        self.number: int = self.facts["episode_number"]
        self.seed: int = self.facts["seed"]
        self.total_reward: float = self.facts["return"]
        self.terminated: bool = self.facts["terminated"]
        self.truncated: bool = self.facts["truncated"]

    def __len__(self) -> int:
        return int(self.facts["length"])

    def __repr__(self) -> str:
        return f"<Episode {self.id}: {len(self)} steps, return {self.total_reward}>"

    def beginning(self, most_steps: int) -> Chunk:
        """Read its first steps, at most so many, as a chunk of one episode; the others are not read."""
        place = self._block[self._at : self._at + 1]
        return place._chunk(DatasetSchema.from_info(place.info), most_steps)  # noqa: SLF001 - as above

    @property
    def batch(self) -> EpisodeBatch:
        """Return it as a batch of one episode; the errors are those of `Dataset.to_episode_batch`."""
        return self._block._batches[self._at]  # noqa: SLF001 - as above

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
