"""The table of a dataset's episodes: facts as columns, where their rows lie, and an episode's fields."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rollout_cli.dataset.layout import (
    FileId,
    Origin,
    check_origin,
    file_name,
    file_origin,
    fingerprint_of,
    order_column,
)
from rollout_cli.dataset.parquet import RowReader, open_parquet, reading
from rollout_cli.dataset.schema import EPISODE_FIELDS, SpaceColumn, SpaceSchema, spec_from_info
from rollout_cli.dataset.tables import decode_numbers
from rollout_cli.episodes.spaces import Array, Tree, map_tree, unflatten
from rollout_cli.errors import DatasetFormatError

DATA, EPISODES = "data", "meta/episodes"
"""The folders of the two tables."""

_UNKNOWN = -1


class _FieldGroup:
    """A row group, and those of its fields that were read: trees of arrays that nobody changes."""

    __slots__ = ("at", "fields", "first", "last", "nbytes", "number", "path")

    def __init__(self, number: int, path: Path, at: int, first: int, last: int) -> None:
        self.number, self.path, self.at = number, path, at
        self.first, self.last = first, last  # The rows at which it begins and ends.
        self.fields: dict[str, Tree] = {}
        self.nbytes = 0


class EpisodeTable:
    """All episodes of a dataset, which all selections of it share. It can be pickled.

    Attributes:
        root: The folder.
        info: Its info.json.
        spaces: The columns of the spaces.
        table: The columns `EPISODE_FIELDS`, one row an episode.
        facts: The values of these columns, by name: Python's own numbers.
        reader: What reads the files.
    """

    def __init__(
        self,
        root: Path,
        info: Mapping[str, Any],
        table: pa.Table,
        files: Mapping[FileId, int],
        reader: RowReader,
    ) -> None:
        self.root, self.info, self.table, self.reader = root, info, table, reader
        self.spaces = SpaceSchema.of(spec_from_info(info))
        self._files = files  # How many episodes each has.
        self._firsts = np.cumsum([0, *files.values()])
        self._columns = {field.name: np.asarray(table[field.name].to_numpy()) for field in EPISODE_FIELDS}
        # What a view of memory gives are Python's own numbers, as fast as numpy gives its own.
        self.facts = {name: memoryview(column.data) for name, column in self._columns.items()}
        self._rows, self._lengths = self.facts["data_row_index"], self.facts["length"]
        # By table, the row group that was read last: the next field is often of it.
        self._recent = dict.fromkeys((DATA, EPISODES), _FieldGroup(_UNKNOWN, root, 0, 0, 0))
        # By table, the row group in which an episode begins; found for a file at a time.
        self._groups = {
            folder: np.full(table.num_rows, _UNKNOWN, np.int32).data for folder in (DATA, EPISODES)
        }
        self._group_places: list[tuple[Path, int, int, int]] = []
        self._finding = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return EpisodeTable, (self.root, self.info, self.table, self._files, self.reader)

    def column(self, name: str) -> Array:
        """Return one of `EPISODE_FIELDS`, (N,); it cannot be written to."""
        return self._columns[name]

    def places(self, folder: str, episodes: Array) -> Array:
        """Return where the rows of episodes lie in a table.

        The columns, int64 (n, 4), are chunk index and file index, first row, and one past the last row.
        """
        files = np.searchsorted(self._firsts, episodes, side="right") - 1
        if folder == DATA:
            rows, counts = (self.column(name)[episodes] for name in ("data_row_index", "length"))
        else:
            rows, counts = episodes - self._firsts[files], np.ones_like(episodes)
        ids = np.array([*self._files, (0, 0)], np.int64)  # The last one is no file, but gives two columns.
        return np.column_stack([ids[files], rows, rows + counts])

    def field(self, name: str, episode: int) -> Tree:
        """Return `reward`, `observation`, `action` or `last_observation` of an episode.

        It is a tree of new arrays (T, *shape), where T is 1 for the last observation. No column of another
        field is read.

        Raises:
            DatasetFormatError: If the files are damaged, or contradict each other.
        """
        if name == "last_observation":
            folder, row, end = EPISODES, episode, episode + 1
        else:
            folder, row = DATA, self._rows[episode]
            end = row + self._lengths[episode]
        number = self._groups[folder][episode]
        if number == _UNKNOWN:
            number = self._find_groups(folder, episode)
        group = self._recent[folder]
        parts: list[Tree] = []
        while True:
            if group.number != number:
                group = self._recent[folder] = self.reader.kept(number, self._new_group)
            tree = group.fields.get(name)
            if tree is None:
                tree = self._read_field(group, name)
            if end <= group.last and not parts and isinstance(tree, np.ndarray):
                return tree[row - group.first : end - group.first].copy()
            parts.append(map_tree(itemgetter(slice(row - group.first, end - group.first)), tree))
            if end <= group.last:
                return map_tree(lambda *leaves: np.concatenate(leaves), *parts)
            row, number = group.last, number + 1

    def _new_group(self, number: int) -> _FieldGroup:
        return _FieldGroup(number, *self._group_places[number])

    def _read_field(self, group: _FieldGroup, name: str) -> Tree:
        table = self.reader.decoded(group.path, group.at, field_columns(self.spaces, name))
        group.fields[name] = tree = decode_field(self.spaces, name, table)
        group.nbytes += table.nbytes
        self.reader.trim()
        return tree

    def _find_groups(self, folder: str, episode: int) -> int:
        """Find the row groups of all episodes of a file; return that in which one begins."""
        file = int(np.searchsorted(self._firsts, episode, side="right")) - 1
        start, stop = self._firsts[file : file + 2].tolist()
        places = self.places(folder, np.arange(start, stop))
        path = self.root / folder / file_name((int(places[0, 0]), int(places[0, 1])))
        groups = self.reader.groups(path, int(places[:, 2].min()), int(places[:, 3].max()))
        # The rows of `meta/episodes` are numbered as episodes are.
        offset = 0 if folder == DATA else start
        begins = np.searchsorted([first for _, first, _ in groups], places[:, 2], side="right") - 1
        with self._finding:
            numbers = len(self._group_places) + begins
            self._group_places += [(path, at, first + offset, last + offset) for at, first, last in groups]
            np.asarray(self._groups[folder])[start:stop] = numbers
        return int(numbers[episode - start])


def field_columns(spaces: SpaceSchema, name: str) -> tuple[str, ...]:
    """Return the columns of a field; where no leaf has one, that of a fact which has as many rows."""
    names = tuple(column.name for column in field_leaves(spaces, name) if column.stored)
    return names or ("length" if name == "last_observation" else "reward",)


def decode_field(spaces: SpaceSchema, name: str, table: pa.Table) -> Tree:
    """Return a field, tree of arrays (T, *shape), from its columns; some cannot be written to."""
    if name == "reward":
        return decode_numbers(table, name)
    spec = spaces.env_spec
    space = spec.action_space if name == "action" else spec.observation_space
    return unflatten(space, [column.decode(table) for column in field_leaves(spaces, name)])


def field_leaves(spaces: SpaceSchema, name: str) -> tuple[SpaceColumn, ...]:
    """Return the leaves of a field that is the value of a space; none of `reward`."""
    leaves: tuple[SpaceColumn, ...] = () if name == "reward" else getattr(spaces, name)
    return leaves


def runs(ends: Array) -> list[tuple[int, int]]:
    """Return start and stop of each run of n items; `ends`, bool (n - 1,), marks the last of each run."""
    return list(pairwise([0, *(np.flatnonzero(ends) + 1).tolist(), len(ends) + 1]))


def read_episode_table(root: Path, info: Mapping[str, Any], files: Mapping[FileId, Path]) -> EpisodeTable:
    """Read the episodes of the dataset in `root` as far as these episodes files go.

    Raises:
        DatasetFormatError: If the dataset contradicts itself.
        StorageError: If it cannot be read.
    """
    schema = pa.schema(EPISODE_FIELDS)
    tables, counts = [schema.empty_table()], {}
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
        origins |= dict.fromkeys((path, root / DATA / file_name((chunk, file))), origin)
        counts[chunk, file] = table.num_rows
        tables.append(table.select(schema.names).cast(schema))
    return EpisodeTable(root, info, pa.concat_tables(tables).combine_chunks(), counts, RowReader(origins))
