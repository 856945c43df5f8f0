"""Reading a dataset: lazily, one episode or any selection of them at a time."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, overload

import numpy as np
import pyarrow as pa

from rollout_cli.dataset.batches import (
    Batch,
    Index,
    Names,
    Padding,
    Transitions,
    Windows,
    refuse_masked,
    stream_batches,
)
from rollout_cli.dataset.episode_table import EpisodeTable
from rollout_cli.dataset.layout import AnyPath, episodes_folder, read_info, table_files
from rollout_cli.dataset.record import DatasetInfo
from rollout_cli.dataset.rows import Rows, rows_of
from rollout_cli.dataset.verify import verify_dataset
from rollout_cli.episodes.batch import EnvSpec, EpisodeBatch, Tree, following
from rollout_cli.episodes.notebook import html_table
from rollout_cli.episodes.plain import Document
from rollout_cli.episodes.spaces import Array, Arrays, map_tree
from rollout_cli.errors import DatasetFormatError
from rollout_cli.sources.remote import folder_of
from rollout_cli.sources.untrusted import shell_word

_INTEGERS = (int, np.integer)  # A union would be made anew for each episode.


def load(path: AnyPath, *, verify: bool = False) -> Dataset:
    """Open the dataset in the folder `path`, a path or a URI; only the table of its episodes is read.

    With `verify` all of its files are read and checked, as by `rollout verify`. It warns (`UserWarning`)
    where there are fewer episodes than info.json states, as after files were lost.

    Raises:
        DatasetFormatError: If there is no dataset of this format, or it contradicts itself.
        StorageError: If it cannot be read.
    """
    root = folder_of(path)
    # Listed before info.json is read: a run names its fingerprint there before it commits the first file.
    files = table_files(episodes_folder(root))
    dataset = Dataset(rows_of(root, read_info(root), files))
    stated = dataset.info["episodes"]
    if len(dataset) < stated:
        if files != table_files(episodes_folder(root)):  # A run has gone on meanwhile, and ended.
            return load(path, verify=verify)
        text = f"{root} has {len(dataset):,} episodes, but its info.json states {stated:,}"
        warnings.warn(f"{text}; see: rollout verify {shell_word(root)}", UserWarning, stacklevel=2)
    if verify:
        require_valid(dataset)
    return dataset


def require_valid(dataset: Dataset) -> None:
    """Raise `DatasetFormatError` unless the files of these episodes hold what the dataset states of them."""
    report = verify_dataset(dataset.path, read=dataset.rows.data_files())
    if report.faults:
        folder = shell_word(report.path)
        raise DatasetFormatError(
            f"{report.path} is damaged: {report.faults[0]}",
            code="dataset-damaged",
            hint=f"list the faults with `rollout verify {folder}`, keep the valid part with `rollout repair "
            f"{folder}`, or read it as it is with {{verify=False}}",
        )


class Dataset:
    """The episodes of a dataset, or of a selection of them.

    `len(dataset)` counts episodes and `dataset[i]` is an `Episode`. `dataset[a:b]`, `dataset[[3, 1]]` and
    `dataset[mask]`, with a bool array of one value an episode, are each a `Dataset` that shares everything
    with this one. Iterating decodes a row group at a time. A dataset can be pickled; each process then reads
    by itself.
    """

    def __init__(self, rows: Rows) -> None:
        self.rows = rows  # What the package itself reads by.

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, at: int | np.integer[Any]) -> Episode: ...
    @overload
    def __getitem__(self, at: slice | Sequence[int] | Array) -> Dataset: ...
    def __getitem__(self, at: Index) -> Episode | Dataset:
        """Return one episode, or a view of some.

        Raises:
            IndexError: If there is no such episode, or a mask has another length.
            TypeError: If `at` is not an integer, a slice, integers, or a mask, or is masked itself.
        """
        if isinstance(at, _INTEGERS):
            try:
                return Episode(self.rows.table, self.rows.places[int(at)])
            except IndexError:
                raise IndexError(f"there is no episode {at}: the dataset has {len(self)}") from None
        if not isinstance(at, slice):
            refuse_masked(at)
            # numpy takes an empty list for floats.
            at = np.array(at, dtype=None if np.size(at) else np.int64)
            if at.ndim != 1 or at.dtype.kind not in "biu":
                raise TypeError(f"a dataset is indexed by integers, a slice or a mask, not by {at!r}")
        return Dataset(self.rows.select(at))

    def __iter__(self) -> Iterator[Episode]:
        for block in self.rows.blocks():
            for place, episode in enumerate(block.ids.tolist()):
                yield Episode(block.table, episode, block, place)

    def __repr__(self) -> str:
        return f"<Dataset {self.path}: {len(self)} episodes>"

    def _repr_html_(self) -> str:
        features = self.info["features"]
        sources = self.info["sources"]
        facts = {
            "path": self.path,
            "status": self.info["status"],
            "environment": ", ".join({str(source.get("env_source", {}).get("spec")) for source in sources}),
            "policy": ", ".join({str(source.get("policy", {}).get("spec")) for source in sources}),
            "episodes": f"{len(self):,}",
            "steps": f"{self.rows.n_steps:,}",
            "observation": self.env_spec.observation_space,
            "action": self.env_spec.action_space,
            "infos": ", ".join(name for name in features if "_info." in name),
        }
        if len(self):
            facts["mean return"] = f"{self.rows.column('return').mean():.6g}"
        return html_table("Dataset", facts)

    def filter(self, expression: str) -> Dataset:
        """Return a view of the episodes of which an expression is true, such as `return >= 400`.

        docs/editing.md has the language. Only the columns that it names are read.

        Raises:
            UsageError: If it is not of the language, or names a column that there is not.
        """
        return self[self.rows.matching(expression)]

    @property
    def path(self) -> Path:
        """The dataset's folder."""
        return self.rows.root

    @property
    def info(self) -> DatasetInfo:
        """The dataset's info.json."""
        return self.rows.info

    @property
    def env_spec(self) -> EnvSpec:
        """The environment's spaces and limit."""
        return self.rows.spaces.env_spec

    @property
    def episodes(self) -> pa.Table:
        """The rows of `meta/episodes`, one an episode, without last observations and infos."""
        return self.rows.table.table.take(pa.array(self.rows.ids))

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
        return self.rows.batch()

    def sample_episodes(self, n: int, seed: int | None = None) -> Dataset:
        """Draw `n` different episodes at random, always the same ones for the same `seed`.

        Raises:
            ValueError: If there are fewer.
        """
        if not 0 <= n <= len(self):
            raise ValueError(f"{n} episodes were asked for, and there are {len(self)}")
        return self[np.random.default_rng(seed).choice(len(self), n, replace=False)]

    def transitions(self, columns: Names = None, infos: Sequence[str] = ()) -> Transitions:
        """Read the steps into memory, each with the observation that followed it, for random batches.

        Args:
            columns: Some of `observations`, `actions`, `rewards`, `next_observations`, `terminated` and
                `truncated`; all for None.
            infos: Infos of steps that have a column, such as `env_info.x`; a batch has them by these names.

        Raises:
            ValueError: If there is no such column or info.
            DatasetFormatError: If the files are damaged, or contradict each other.
            StorageError: If they cannot be read, or do not fit into memory.
        """
        return Transitions(self.rows, columns, infos)

    def windows(
        self,
        length: int,
        stride: int = 1,
        *,
        pad: Padding = "after",
        returns_to_go: bool = False,
        columns: Names = None,
    ) -> Windows:
        """Read the steps into memory, for random batches of windows that stay within an episode.

        Args:
            length: The steps of a window.
            stride: The steps between the beginnings of two windows.
            pad: `after`: a window begins at every `stride`-th step, and is padded after the episode's end.
                `before`: one ends at every `stride`-th step, and is padded before the episode's beginning.
                None: no window is padded, and shorter episodes have none.
            returns_to_go: Whether batches have `returns_to_go`, float64 (B, length): the sum of the rewards
                from each step to the end of its episode.
            columns: Some of `observations`, `actions` and `rewards`; all for None.

        Raises:
            ValueError: If `length` or `stride` is less than 1, or there is no such padding or column.
            DatasetFormatError: If the files are damaged, or contradict each other.
            StorageError: If they cannot be read, or do not fit into memory.
        """
        return Windows(
            self.rows, length, stride=stride, pad=pad, returns_to_go=returns_to_go, columns=columns
        )

    def iter_batches(
        self,
        n: int,
        shuffle: int | None = None,
        columns: Names = None,
        infos: Sequence[str] = (),
    ) -> Iterator[Batch]:
        """Read all steps once, in batches of `n` as `transitions` has them; the last one has the rest.

        About 64 MiB of steps are in memory at one time, and at most a row group more.

        Args:
            n: The steps of a batch.
            shuffle: A seed: row groups come in random order, and the steps of as many of them as are in
                memory at one time are shuffled among one another. None keeps the order of the episodes.
            columns: As those of `transitions`.
            infos: Likewise.

        Raises:
            ValueError: If `n` is less than 1, or there is no such column or info.
            DatasetFormatError: If the files are damaged, or contradict each other.
            StorageError: If they cannot be read.
        """
        if n < 1:
            raise ValueError(f"a batch of {n} steps was asked for: give 1 or more")
        return stream_batches(self.rows, n, shuffle, columns, infos)


class Episode:
    """One episode: its row of `meta/episodes` at once, its steps when they are asked for.

    Arrays are the episode's own, and may be written to.
    """

    __slots__ = ("_at", "_block", "_fields", "_place", "_table")

    def __init__(self, table: EpisodeTable, at: int, block: Rows | None = None, place: int = 0) -> None:
        self._table = table
        self._at = at
        # The episodes of a block are made into batches together, once that of one is asked for.
        self._block = block
        self._place = place
        self._fields: dict[str, Tree] = {}  # Those that were asked for.

    def __len__(self) -> int:
        return int(self._fact("length"))

    def __repr__(self) -> str:
        return f"<Episode {self.id}: {len(self)} steps, return {self.total_reward}>"

    def _repr_html_(self) -> str:
        return html_table(f"Episode {self.id}", self.facts)

    @property
    def facts(self) -> Document:
        """The episode's row of `meta/episodes`, by column name."""
        return MappingProxyType({name: values[self._at] for name, values in self._table.facts.items()})

    def _fact(self, name: str) -> Any:
        return self._table.facts[name][self._at]

    @property
    def id(self) -> int:
        """Its place in the dataset."""
        return int(self._fact("episode_id"))

    @property
    def source(self) -> int:
        """The place of the run that it is of, in the `sources` of info.json."""
        return int(self._fact("source"))

    @property
    def number(self) -> int:
        """Its number, which with the root seed decides its seeds."""
        return int(self._fact("episode_number"))

    @property
    def seed(self) -> int:
        """The seed given to `env.reset`."""
        return int(self._fact("seed"))

    @property
    def total_reward(self) -> float:
        """The sum of its rewards."""
        return float(self._fact("return"))

    @property
    def terminated(self) -> bool:
        """Whether it ended by its own rules."""
        return bool(self._fact("terminated"))

    @property
    def truncated(self) -> bool:
        """Whether it was cut off."""
        return bool(self._fact("truncated"))

    @property
    def observations(self) -> Tree:
        """What the policy saw at each step, tree of arrays (T, *shape)."""
        return self._field("observation")

    @property
    def actions(self) -> Tree:
        """The actions, tree of arrays (T, *shape)."""
        return self._field("action")

    @property
    def rewards(self) -> Array:
        """The rewards, float64 (T,)."""
        return np.asarray(self._field("reward"))

    @property
    def last_observation(self) -> Tree:
        """What followed the last step, tree of arrays of the space's shapes."""
        return map_tree(itemgetter(0), self._field("last_observation"))

    @property
    def next_observations(self) -> Tree:
        """What followed each step, tree of arrays (T, *shape)."""
        return map_tree(partial(following, ends=[-1]), self.observations, self._field("last_observation"))

    def _field(self, name: str) -> Tree:
        if name not in self._fields:
            self._fields[name] = self._table.field(name, self._at)
        return self._fields[name]

    @property
    def env_infos(self) -> Arrays:
        """The infos of `env.step`, by key: arrays (T, ...), each read when it is asked for."""
        return EpisodeInfos(self, "env_info")

    @property
    def agent_infos(self) -> Arrays:
        """The infos of the policy, likewise."""
        return EpisodeInfos(self, "agent_info")

    @property
    def episode_infos(self) -> Arrays:
        """The infos of `env.reset`, by key: arrays (1, ...), likewise."""
        return EpisodeInfos(self, "episode_info")

    @property
    def batch(self) -> EpisodeBatch:
        """The episode as a batch of one; the errors are those of `Dataset.to_episode_batch`."""
        return self.rows.batch() if self._block is None else self._block.batches[self._place]

    @property
    def rows(self) -> Rows:
        """What the package itself reads by."""
        return Rows(self._table, np.array([self._at]))


class EpisodeInfos(Mapping[str, Array]):
    """The infos of one group of an episode; a value is read without the others, keys are read with all."""

    def __init__(self, episode: Episode, group: str) -> None:
        self._episode = episode
        self._group = group

    def __getitem__(self, key: str) -> Array:
        values = self._episode.rows.info_values(self._group, key)
        if values is None:
            raise KeyError(key)
        return values

    def __iter__(self) -> Iterator[str]:
        return iter(self._episode.rows.info_keys(self._group))

    def __len__(self) -> int:
        return len(self._episode.rows.info_keys(self._group))

    def __repr__(self) -> str:
        return f"<EpisodeInfos {self._group}: {', '.join(self)}>"
