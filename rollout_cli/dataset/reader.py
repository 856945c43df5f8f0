"""Reading a dataset: lazily, an episode or a slice at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np
import pyarrow as pa

from rollout_cli.dataset.columns import Array
from rollout_cli.dataset.decoding import decode_batch
from rollout_cli.dataset.layout import read_info
from rollout_cli.dataset.limits import check_space
from rollout_cli.dataset.schema import SpaceSchema
from rollout_cli.dataset.shard import data_path
from rollout_cli.dataset.space_json import space_from_json
from rollout_cli.dataset.tables import EpisodeFile, RowReader, read_episodes
from rollout_cli.episode_batch import EnvSpec, EpisodeBatch, Tree
from rollout_cli.errors import DatasetFormatError
from rollout_cli.spaces import map_tree


def load(path: Path | str) -> Dataset:
    """Open the dataset in the folder `path`; only the numbers of its episodes are read.

    Raises:
        DatasetFormatError: If there is no dataset of this format, or it contradicts itself.
        StorageError: If it cannot be read.
    """
    root = Path(path)
    info = read_info(root)
    spaces = SpaceSchema.of(env_spec_of(info))
    source = _Source(root, info, spaces, *read_episodes(root), RowReader(root), RowReader(root))
    return Dataset(source, range(source.table.num_rows))


def env_spec_of(info: Mapping[str, Any]) -> EnvSpec:
    """Return the environment's spaces and limit, as info.json has them.

    Raises:
        DatasetFormatError: If they are not there, or no spaces.
    """
    try:
        spaces, limit = info["spaces"], info["max_episode_length"]
        check_space(spaces)
        return EnvSpec(space_from_json(spaces["observation"]), space_from_json(spaces["action"]), limit)
    except KeyError as error:
        raise DatasetFormatError(f"info.json has no {error}") from error
    except (TypeError, RecursionError) as error:
        raise DatasetFormatError(f"info.json has spaces that are none: {error}") from error


@dataclass(frozen=True)
class _Source:
    """What all views of one dataset share."""

    root: Path
    info: Mapping[str, Any]
    spaces: SpaceSchema
    table: pa.Table
    files: list[EpisodeFile]
    steps: RowReader
    own_rows: RowReader


class Dataset:
    """The episodes of a dataset, or of a slice of it, in the order of their ids.

    `len(dataset)` counts episodes, `dataset[i]` is an `Episode`, `dataset[a:b]` a `Dataset` that shares all with this
    one.
    """

    def __init__(self, source: _Source, places: range) -> None:
        self._source = source
        self._places = places

    def __len__(self) -> int:
        """Return the number of episodes."""
        return len(self._places)

    @overload
    def __getitem__(self, at: int) -> Episode: ...
    @overload
    def __getitem__(self, at: slice) -> Dataset: ...
    def __getitem__(self, at: int | slice) -> Episode | Dataset:
        """Return one episode, or a view of some."""
        if isinstance(at, slice):
            return Dataset(self._source, self._places[at])
        place = self._places[at]
        return Episode(Dataset(self._source, range(place, place + 1)))

    def __iter__(self) -> Iterator[Episode]:
        """Give each episode in turn."""
        return (self[at] for at in range(len(self)))

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
        return self._source.table.take(pa.array(self._places, pa.int64()))

    def to_episode_batch(self) -> EpisodeBatch:
        """Read all these episodes into memory.

        Dtypes, shapes and trees are those of the spaces; infos that some steps lack are masked arrays.

        Raises:
            ValueError: If there is no episode.
            DatasetFormatError: If the files do not hold what they say.
        """
        if not len(self):
            raise ValueError("there is no episode to read")
        steps = self._steps()
        own = self._own_rows()
        try:
            return decode_batch(self._source.spaces, steps, own)
        except (ValueError, KeyError, RecursionError) as error:
            raise DatasetFormatError(f"{self._source.root} does not hold what it says: {error}") from error

    def _steps(self) -> pa.Table:
        """Return the rows of `data` of these episodes, one after another."""
        names = ("data_chunk_index", "data_file_index", "data_row_index", "length")
        columns = (self.episodes[name].to_pylist() for name in names)
        runs: list[list[int]] = []
        for chunk, file, row, length in zip(*columns, strict=True):
            if runs and runs[-1][:2] == [chunk, file] and runs[-1][3] == row:
                runs[-1][3] += length
            else:
                runs.append([chunk, file, row, row + length])
        root, steps = self._source.root, self._source.steps
        return pa.concat_tables(
            [steps.read(data_path(root, (chunk, file)), start, stop) for chunk, file, start, stop in runs]
        )

    def _own_rows(self) -> pa.Table:
        """Return the whole rows of `meta/episodes` of these episodes."""
        wanted = np.sort(self._places)
        tables = []
        for file in self._source.files:
            inside = wanted[(wanted >= file.first) & (wanted < file.first + file.rows)]
            if len(inside):
                first, last = int(inside[0]), int(inside[-1])
                rows = self._source.own_rows.read(file.path, first - file.first, last + 1 - file.first)
                tables.append(rows.take(pa.array(inside - first)))
        table = pa.concat_tables(tables)
        # The files were read forwards; a view may go backwards.
        return table if self._places.step > 0 else table.take(pa.array(range(len(self))[::-1]))


class Episode:
    """One episode: its facts at once, its steps when they are asked for.

    Attributes:
        facts: Its row of `meta/episodes`, by column name.
    """

    def __init__(self, view: Dataset) -> None:
        self._view = view
        self.facts: Mapping[str, Any] = view.episodes.to_pylist()[0]

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

    @cached_property
    def batch(self) -> EpisodeBatch:
        """Return it as a batch of one episode."""
        return self._view.to_episode_batch()

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
