"""The rows of selected episodes in both tables: decoding and searching."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rollout_cli.dataset.convert import Array, decode_infos
from rollout_cli.dataset.episode_table import DATA, EPISODES, EpisodeTable, read_episode_table, runs
from rollout_cli.dataset.layout import FileId
from rollout_cli.dataset.parquet import DAMAGED_HINT, Columns
from rollout_cli.dataset.record import DatasetInfo
from rollout_cli.dataset.tables import decode_chunk
from rollout_cli.episodes.batch import EpisodeBatch
from rollout_cli.episodes.chunk import Chunk
from rollout_cli.episodes.expression import Expression, of_one_kind
from rollout_cli.episodes.infos import INFO_GROUPS, STRING, InfoArrays, all_masked, kind_type
from rollout_cli.errors import DatasetFormatError, StorageError


class Rows:
    """The rows of selected episodes of a dataset; picklable.

    Attributes:
        table: All episodes of the dataset.
        ids: The indices of the selected episodes in `table`, int64 (N,).
        places: The indices `ids` as a sequence of Python integers.
    """

    def __init__(self, table: EpisodeTable, ids: Array) -> None:
        self.table = table
        self.ids = ids
        self.places: Sequence[int] = ids.data
        self.root = table.root
        self.info = table.info
        self.spaces = table.schema.spaces

    def __reduce__(self) -> tuple[Any, ...]:
        return Rows, (self.table, self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def n_steps(self) -> int:
        """The number of steps of the episodes."""
        return int(self.column("length").sum())

    def select(self, places: Any) -> Rows:
        """Return the rows of the episodes at these places, any index of a numpy array."""
        return Rows(self.table, self.ids[places])

    def column(self, name: str) -> Array:
        """Return one of `EPISODE_FIELDS`, (N,)."""
        return np.asarray(self.table.columns[name][self.ids])

    @cached_property
    def batches(self) -> list[EpisodeBatch]:
        """One batch per episode."""
        return self.batch().split()

    def batch(self) -> EpisodeBatch:
        """Return all episodes; the errors are those of `Dataset.to_episode_batch`."""
        with self._decoding():
            return EpisodeBatch.from_chunks(self.spaces.env_spec, [self.chunk()])

    def chunk(self, most_steps: int | None = None) -> Chunk:
        """Return the episodes as a chunk, ready to be written unchanged; `most_steps` cuts a single episode.

        The errors are those of `Dataset.to_episode_batch`.
        """
        places = self._step_places()
        if most_steps is not None:
            places[:, 3] = np.minimum(places[:, 3], places[:, 2] + most_steps)
        with self._decoding():
            chunk = decode_chunk(self.table.schema, self._read(DATA, places), self.ends())
            return replace(chunk, lengths=places[:, 3] - places[:, 2])

    @contextmanager
    def _decoding(self) -> Iterator[None]:
        try:
            yield
        except MemoryError as error:
            raise StorageError(
                f"{len(self):,} episodes do not fit into memory: {error}",
                code="out-of-memory",
                hint="read fewer episodes at a time: dataset[a:b].to_episode_batch()",
            ) from error
        except (ValueError, KeyError, AttributeError, RecursionError) as error:
            file = min(self.data_files(), default=self.root)
            raise DatasetFormatError(
                f"cannot decode the rows of {file} or of its file in meta/episodes: {error}",
                code="rows-undecodable",
                hint=DAMAGED_HINT,
            ) from error

    def steps(self, columns: Columns = None) -> pa.Table:
        """Return the rows of `data`."""
        return self._read(DATA, self._step_places(), columns)

    def some_steps(self, most: int, columns: Columns = None, *, n_runs: int = 16) -> pa.Table:
        """Return the rows of `data`; if there are more than `most`, a sample of `n_runs` evenly spaced runs."""
        places = self._step_places()
        stops = np.cumsum(self.column("length"))
        total = int(stops[-1]) if len(stops) else 0
        n_runs = min(n_runs, most)
        if total <= most:
            return self._read(DATA, places, columns)
        size = most // n_runs
        starts = np.linspace(0, total - size, n_runs, dtype=np.int64)
        chosen = (starts[:, None] + np.arange(size)).reshape(-1)
        episodes = np.searchsorted(stops, chosen, side="right")
        rows = places[episodes, 3] - stops[episodes] + chosen
        return self._read(DATA, np.column_stack([places[episodes, :2], rows, rows + 1]), columns)

    def data_files(self) -> set[Path]:
        """Return the files of `data` with the episodes' steps."""
        return {path for path, _ in self.table.files(DATA, self._step_places())}

    def ends(self, columns: Columns = None) -> pa.Table:
        """Return the rows of `meta/episodes`, with last observations and infos."""
        return self._read(EPISODES, self.table.places(EPISODES, self.ids), columns)

    def step_info(self, name: str) -> Array:
        """Return an info of steps that has a column, such as `env_info.x`, (T, ...).

        It is a masked array if some steps lack the info; in an array of objects, None is a missing value.

        Raises:
            ValueError: If the column does not exist.
        """
        group, _, key = name.partition(".")
        typed = self.table.schema.infos
        names = [other for other in typed if not other.startswith("episode_info.")]
        if name not in names:
            raise ValueError(
                f"unknown info column of steps: {name!r}; choose from: {', '.join(names) or 'none'}"
            )
        values = self.info_values(group, key)
        if values is not None:
            return values
        if typed[name][1] == STRING:
            return np.full(self.n_steps, None, object)
        dtype, shape = kind_type(typed[name][1])
        return all_masked((self.n_steps, *shape), dtype)

    def info_values(self, group: str, key: str) -> Array | None:
        """Return the info `key` in the form of a batch; None if no step, or no episode, has it.

        The JSON remainder of the group is read too.
        """
        columns = tuple(
            name for name in (f"{group}.{key}", f"{group}_extra") if name in self.info["features"]
        )
        return self._infos(group, columns).get(key)

    def info_keys(self, group: str) -> Collection[str]:
        """Return the keys of the infos that at least one step or episode has."""
        typed = (name for name in self.table.schema.infos if name.startswith(f"{group}."))
        return self._infos(group, (*typed, f"{group}_extra")).keys()

    def _infos(self, group: str, columns: tuple[str, ...]) -> InfoArrays:
        with self._decoding():
            table = self.ends(columns) if group == "episode_info" else self.steps(columns)
            return decode_infos(group, table)

    def blocks(self) -> Iterator[Rows]:
        """Yield the episodes in blocks; a block has the episodes that start in one row group."""
        places = self._step_places()
        for path, part in self.table.files(DATA, places):
            groups = np.searchsorted(self.table.reader.edges(path), places[part, 2], side="right")
            for start, stop in runs(np.diff(groups) != 0):
                yield self.select(slice(part.start + start, part.start + stop))

    def matching(self, expression: str) -> Array:
        """Return a mask of the episodes that match an expression, bool (N,); only the named columns are read.

        Raises:
            UsageError: If the expression is invalid, or names an unknown column.
            DatasetFormatError: If the files are damaged.
            StorageError: If the files cannot be read.
        """
        parsed = Expression(expression)
        if not len(self):
            return np.zeros(0, bool)
        columns = self._named_columns(parsed.names)
        for name in parsed.names:
            if name not in columns:
                raise parsed.no_column(name, [*self.table.facts, *self.table.schema.infos])
        return parsed.evaluate(columns, len(self))

    def _named_columns(self, names: tuple[str, ...]) -> dict[str, Array]:
        """Return the values of columns, one per episode; infos of steps have the value of the last step."""
        columns: dict[str, Array] = {
            name: np.ma.asarray(self.column(name)) for name in names if name in self.table.facts
        }
        typed = self.table.schema.infos
        for prefix in INFO_GROUPS:
            wanted = {name for name in names if name.startswith(f"{prefix}.")}
            stored = (*sorted(wanted & typed.keys()), f"{prefix}_extra")  # With values of other types.
            if not wanted:
                continue
            table = self.ends(stored) if prefix == "episode_info" else self._last_steps(stored)
            with self._decoding():
                infos = {f"{prefix}.{key}": values for key, values in decode_infos(prefix, table).items()}
            for name in wanted & {*infos, *typed}:
                values = of_one_kind(name, infos.get(name, np.full(len(self), None, object)))
                columns[name] = np.ma.asarray(values)
        return columns

    def _last_steps(self, columns: tuple[str, ...]) -> pa.Table:
        """Return the last row of `data` of each episode."""
        tables = []
        for block in self.blocks():
            ends = np.cumsum(block.column("length")) - 1
            tables.append(block.steps(columns).take(pa.array(ends)))
        return pa.concat_tables(tables)

    def _step_places(self) -> Array:
        """Return the places of the episodes' rows in `data`, for `_read`."""
        return self.table.places(DATA, self.ids)

    def _read(self, folder: str, places: Array, columns: Columns = None) -> pa.Table:
        """Return the rows of a table in the ranges `places`.

        The result consists of slices, because `take` of pyarrow 26 returns wrong rows of nested fixed-size lists.
        """
        if not len(places):
            schema = self.table.schema.data if folder == DATA else self.table.schema.episodes
            return schema.empty_table().select(columns or schema.names)
        tables = []
        for path, part in self.table.files(folder, places):
            starts = places[part, 2]
            stops = places[part, 3]
            for first, last in runs(starts[1:] != stops[:-1]):
                tables += self.table.reader.read(path, int(starts[first]), int(stops[last - 1]), columns)
        return pa.concat_tables(tables)


def rows_of(root: Path, info: DatasetInfo, files: Mapping[FileId, Path]) -> Rows:
    """Return the rows of the dataset in `root` from these episodes files.

    Raises:
        DatasetFormatError: If the files contradict each other.
        StorageError: If the files cannot be read.
    """
    table = read_episode_table(root, info, files)
    return Rows(table, np.arange(table.table.num_rows))
