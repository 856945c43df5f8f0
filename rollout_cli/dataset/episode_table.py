"""The table of a dataset's episodes: their facts, the location of their rows, and their fields."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from gymnasium.spaces import Box

from rollout_cli.dataset.convert import decode
from rollout_cli.dataset.layout import (
    LOST_INFO,
    FileId,
    check_origin,
    file_name,
    file_origin,
    fingerprint_of,
    info_path,
    order_column,
    started_at,
)
from rollout_cli.dataset.parquet import DAMAGED_HINT, RowReader, check_table, open_parquet
from rollout_cli.dataset.record import DatasetInfo
from rollout_cli.dataset.schema import EPISODE_FIELDS, DatasetSchema, SpaceColumns, SpaceSchema, space_columns
from rollout_cli.episodes.plain import Fields
from rollout_cli.episodes.spaces import Array, Tree, map_tree, unflatten
from rollout_cli.errors import DatasetFormatError

DATA = "data"
EPISODES = "meta/episodes"
"""The folders of the steps and of the episodes."""

_REWARD_SPACE = Box(-np.inf, np.inf, (), np.float64)
_REWARD = space_columns(_REWARD_SPACE, "reward")

_UNKNOWN = -1


@dataclass(slots=True, eq=False)
class _FieldGroup:
    """A row group with its decoded fields: trees of arrays that no caller changes."""

    path: Path
    at: int
    rows: int
    nbytes: int = 0
    fields: dict[str, Tree] = field(default_factory=dict)


class EpisodeTable:
    """All episodes of a dataset, shared by all of its selections; picklable.

    Attributes:
        root: The dataset's folder.
        info: The dataset's info.json.
        schema: The dataset's columns.
        table: The columns `EPISODE_FIELDS`, one row per episode.
        columns: The columns of `table` as read-only arrays (N,), by name.
        facts: The columns of `table` as sequences of Python numbers.
        reader: The reader of the files.
    """

    def __init__(
        self,
        root: Path,
        info: DatasetInfo,
        table: pa.Table,
        files: Mapping[FileId, int],
        reader: RowReader,
    ) -> None:
        self.root = root
        self.info = info
        self.table = table
        self.reader = reader
        self.schema = DatasetSchema.from_info(info)
        self._files = files  # The number of episodes of each file.
        self._firsts = np.cumsum([0, *files.values()])
        # pyarrow's own `to_numpy` imports pandas, which takes longer than the rest.
        self.columns = {field.name: decode(table[field.name]) for field in EPISODE_FIELDS}
        # Indexing a memoryview returns Python numbers, as fast as indexing an array returns numpy's.
        self.facts: Fields = {name: column.data for name, column in self.columns.items()}
        # The row group of each episode's first row, and the row's index in that group; filled one file at a
        # time.
        n_episodes = table.num_rows
        self._groups = {at: np.full(n_episodes, _UNKNOWN, np.int32).data for at in (DATA, EPISODES)}
        self._starts = {at: np.zeros(n_episodes, np.int64).data for at in (DATA, EPISODES)}
        self._field_groups: list[tuple[Path, int, int]] = []
        self._finding = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return EpisodeTable, (self.root, self.info, self.table, self._files, self.reader)

    def places(self, folder: str, episodes: Array) -> Array:
        """Return the location of the rows of episodes in a table.

        The columns, int64 (n, 4), are chunk index and file index, first row, and one past the last row.
        """
        files = np.searchsorted(self._firsts, episodes, side="right") - 1
        if folder == DATA:
            rows, counts = (self.columns[name][episodes] for name in ("data_row_index", "length"))
        else:
            rows = episodes - self._firsts[files]
            counts = np.ones_like(episodes)
        ids = np.array([*self._files, (0, 0)], np.int64)  # The last row keeps two columns without files.
        return np.column_stack([ids[files], rows, rows + counts])

    def files(self, folder: str, places: Array) -> Iterator[tuple[Path, slice]]:
        """Yield the files of a table that contain `places`, in order, with the slice of places in each."""
        if not len(places):
            return
        for start, stop in runs(np.any(np.diff(places[:, :2], axis=0), axis=1)):
            yield self.root / folder / file_name(places[start].tolist()), slice(start, stop)

    def field(self, name: str, episode: int) -> Tree:
        """Return `reward`, `observation`, `action` or `last_observation` of an episode.

        Returns a tree of new arrays (T, *shape); T is 1 for the last observation. Only the columns of this
        field are read.

        Raises:
            DatasetFormatError: If the files are damaged, or contradict each other.
        """
        folder, length = (
            (EPISODES, 1) if name == "last_observation" else (DATA, self.facts["length"][episode])
        )
        number = self._groups[folder][episode]
        if number == _UNKNOWN:
            number = self._find_groups(folder, episode)
        group, tree = self._group_field(number, name)
        start = self._starts[folder][episode]
        stop = start + length
        if stop <= group.rows and isinstance(tree, np.ndarray):
            return tree[start:stop].copy()
        parts = [map_tree(itemgetter(slice(start, stop)), tree)]
        while stop > group.rows:
            stop = stop - group.rows
            number = number + 1
            group, tree = self._group_field(number, name)
            parts.append(map_tree(itemgetter(slice(stop)), tree))
        return map_tree(lambda *leaves: np.concatenate(leaves), *parts)

    def _group_field(self, number: int, name: str) -> tuple[_FieldGroup, Tree]:
        """Return a row group and one of its fields."""
        group = self.reader.find(number) or self.reader.kept(number, self._new_group)
        if name not in group.fields:
            spaces = self.schema.spaces
            table = self.reader.decoded(group.path, group.at, field_columns(spaces, name))
            leaves = [column.decode(table) for column in field_leaves(spaces, name)]
            group.fields[name] = field_tree(spaces, name, leaves)
            group.nbytes += table.nbytes
            self.reader.trim()
        return group, group.fields[name]

    def _new_group(self, number: int) -> _FieldGroup:
        return _FieldGroup(*self._field_groups[number])

    def _find_groups(self, folder: str, episode: int) -> int:
        """Locate the first rows of all episodes of a file; return the row group of `episode`."""
        file = int(np.searchsorted(self._firsts, episode, side="right")) - 1
        start, stop = self._firsts[file : file + 2].tolist()
        places = self.places(folder, np.arange(start, stop))
        ((path, _),) = self.files(folder, places)
        groups = self.reader.groups(path, int(places[:, 2].min()), int(places[:, 3].max()))
        firsts = np.array([first for _, first, _ in groups])
        at = np.searchsorted(firsts, places[:, 2], side="right") - 1
        np.asarray(self._starts[folder])[start:stop] = places[:, 2] - firsts[at]
        with self._finding:
            numbers = len(self._field_groups) + at
            self._field_groups += [(path, at, last - first) for at, first, last in groups]
            # Assigned last, because other threads read it first.
            np.asarray(self._groups[folder])[start:stop] = numbers
        return int(numbers[episode - start])


def field_columns(spaces: SpaceSchema, name: str) -> tuple[str, ...]:
    """Return the columns of a field, or a scalar column of the same length if no leaf has a column."""
    names = tuple(column.name for column in field_leaves(spaces, name) if column.stored)
    return names or ("length" if name == "last_observation" else "reward",)


def field_tree(spaces: SpaceSchema, name: str, leaves: Sequence[Array]) -> Tree:
    """Build the tree of a field from one array per leaf."""
    spec = spaces.env_spec
    others = {"action": spec.action_space, "reward": _REWARD_SPACE}
    return unflatten(others.get(name, spec.observation_space), leaves)


def field_leaves(spaces: SpaceSchema, name: str) -> SpaceColumns:
    """Return the leaves of a field; `reward` is a scalar that has no space."""
    leaves: SpaceColumns = _REWARD if name == "reward" else getattr(spaces, name)
    return leaves


def runs(ends: Array) -> list[tuple[int, int]]:
    """Return start and stop of each run of n items; `ends`, bool (n - 1,), marks the last item of each."""
    return list(pairwise([0, *(np.flatnonzero(ends) + 1).tolist(), len(ends) + 1]))


def read_episode_table(root: Path, info: DatasetInfo, files: Mapping[FileId, Path]) -> EpisodeTable:
    """Read the episodes of the dataset in `root` from these episodes files.

    Raises:
        DatasetFormatError: If the files contradict each other.
        StorageError: If the files cannot be read.
    """
    schema = pa.schema(EPISODE_FIELDS)
    expected = DatasetSchema.from_info(info)
    if info["features"] != expected.describe():
        raise DatasetFormatError(
            f"{info_path(root)} is damaged: its features differ from those of its spaces and infos",
            code="info-features",
            hint=LOST_INFO,
        )
    tables = [pa.Table.from_batches([], schema)]
    counts = {}
    data, episodes = ([*map(str, columns)] for columns in (expected.data, expected.episodes))
    paths = {}
    for (chunk, file), path in files.items():
        with open_parquet(path) as opened:
            check_table(path, opened, episodes)
            table = opened.read(columns=schema.names)
            footer = opened.metadata.metadata
        names = ("length", "source", "data_chunk_index", "data_file_index", "data_row_index")
        lengths, sources, chunks, numbers, rows = (decode(table[name]) for name in names)
        is_wrong = (lengths < 1) | (sources < 0) | (sources >= len(info["sources"])) | (rows < 0)
        if is_wrong.any():
            raise DatasetFormatError(
                f"{path} is damaged: a length, source or data_row_index is out of range",
                code="episode-table",
                hint=DAMAGED_HINT,
            )
        if (chunks != chunk).any() or (numbers != file).any():
            raise DatasetFormatError(
                f"{path} names the data file of another episodes file: it was moved or renamed",
                code="file-misplaced",
                hint=DAMAGED_HINT,
            )
        partition = 0 if info["partitions"] == 1 else chunk
        origin = file_origin(fingerprint_of(info), partition, table[order_column(info)][0].as_py())
        check_origin(path, footer, origin)
        paths[path] = origin, episodes
        paths[root / DATA / file_name((chunk, file))] = origin, data
        counts[chunk, file] = table.num_rows
        tables.append(table)
    reader = RowReader(root, started_at(info), paths)
    reader.check_dataset()
    return EpisodeTable(root, info, pa.concat_tables(tables).combine_chunks(), counts, reader)
