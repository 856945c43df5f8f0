"""The table of a dataset's episodes: facts as columns, where their rows lie, and an episode's fields."""

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
"""The folders of the two tables."""

_REWARD_SPACE = Box(-np.inf, np.inf, (), np.float64)
_REWARD = space_columns(_REWARD_SPACE, "reward")

_UNKNOWN = -1


@dataclass(slots=True, eq=False)
class _FieldGroup:
    """A row group, and those of its fields that were read: trees of arrays that nobody changes."""

    path: Path
    at: int
    rows: int
    nbytes: int = 0
    fields: dict[str, Tree] = field(default_factory=dict)


class EpisodeTable:
    """All episodes of a dataset, which all selections of it share. It can be pickled.

    Attributes:
        root: The folder.
        info: Its info.json.
        schema: Its columns.
        table: The columns `EPISODE_FIELDS`, one row an episode.
        columns: Each of these as an array (N,), by name, which cannot be written to.
        facts: The same as sequences, which give Python's own numbers.
        reader: What reads the files.
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
        self._files = files  # How many episodes each has.
        self._firsts = np.cumsum([0, *files.values()])
        # `to_numpy` of pyarrow would import pandas, which takes longer than the rest.
        self.columns = {field.name: decode(table[field.name]) for field in EPISODE_FIELDS}
        # What a view of memory gives are Python's own numbers, as fast as numpy gives its own.
        self.facts: Fields = {name: column.data for name, column in self.columns.items()}
        # Where each episode begins in a table, which is found for a file at a time: the number of the row
        # group, and the row in it.
        n_episodes = table.num_rows
        self._groups = {at: np.full(n_episodes, _UNKNOWN, np.int32).data for at in (DATA, EPISODES)}
        self._starts = {at: np.zeros(n_episodes, np.int64).data for at in (DATA, EPISODES)}
        self._field_groups: list[tuple[Path, int, int]] = []
        self._finding = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return EpisodeTable, (self.root, self.info, self.table, self._files, self.reader)

    def places(self, folder: str, episodes: Array) -> Array:
        """Return where the rows of episodes lie in a table.

        The columns, int64 (n, 4), are chunk index and file index, first row, and one past the last row.
        """
        files = np.searchsorted(self._firsts, episodes, side="right") - 1
        if folder == DATA:
            rows, counts = (self.columns[name][episodes] for name in ("data_row_index", "length"))
        else:
            rows = episodes - self._firsts[files]
            counts = np.ones_like(episodes)
        ids = np.array([*self._files, (0, 0)], np.int64)  # The last one is no file, but gives two columns.
        return np.column_stack([ids[files], rows, rows + counts])

    def files(self, folder: str, places: Array) -> Iterator[tuple[Path, slice]]:
        """Yield the files of a table that have `places`, in their order, and which of the places each has."""
        if not len(places):
            return
        for start, stop in runs(np.any(np.diff(places[:, :2], axis=0), axis=1)):
            yield self.root / folder / file_name(places[start].tolist()), slice(start, stop)

    def field(self, name: str, episode: int) -> Tree:
        """Return `reward`, `observation`, `action` or `last_observation` of an episode.

        It is a tree of new arrays (T, *shape), where T is 1 for the last observation. No column of another
        field is read.

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
        """Find where all episodes of a file begin; return the row group of one."""
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
            # Last: another thread looks at it first.
            np.asarray(self._groups[folder])[start:stop] = numbers
        return int(numbers[episode - start])


def field_columns(spaces: SpaceSchema, name: str) -> tuple[str, ...]:
    """Return the columns of a field; where no leaf has one, that of a fact which has as many rows."""
    names = tuple(column.name for column in field_leaves(spaces, name) if column.stored)
    return names or ("length" if name == "last_observation" else "reward",)


def field_tree(spaces: SpaceSchema, name: str, leaves: Sequence[Array]) -> Tree:
    """Put one array a leaf of a field together."""
    spec = spaces.env_spec
    others = {"action": spec.action_space, "reward": _REWARD_SPACE}
    return unflatten(others.get(name, spec.observation_space), leaves)


def field_leaves(spaces: SpaceSchema, name: str) -> SpaceColumns:
    """Return the leaves of a field: of `reward`, which is no space's value, one number."""
    leaves: SpaceColumns = _REWARD if name == "reward" else getattr(spaces, name)
    return leaves


def runs(ends: Array) -> list[tuple[int, int]]:
    """Return start and stop of each run of n items; `ends`, bool (n - 1,), marks the last of each run."""
    return list(pairwise([0, *(np.flatnonzero(ends) + 1).tolist(), len(ends) + 1]))


def read_episode_table(root: Path, info: DatasetInfo, files: Mapping[FileId, Path]) -> EpisodeTable:
    """Read the episodes of the dataset in `root` as far as these episodes files go.

    Raises:
        DatasetFormatError: If the dataset contradicts itself.
        StorageError: If it cannot be read.
    """
    schema = pa.schema(EPISODE_FIELDS)
    whole = DatasetSchema.from_info(info)
    if info["features"] != whole.describe():
        raise DatasetFormatError(
            f"{info_path(root)} is damaged: its features are not those of its spaces and infos",
            code="info-features",
            hint=LOST_INFO,
        )
    tables = [pa.Table.from_batches([], schema)]
    counts = {}
    data, episodes = ([*map(str, columns)] for columns in (whole.data, whole.episodes))
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
                f"{path} names another data file than its own: it is in another file's place",
                code="file-misplaced",
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
