"""The dataset reader: lazy access to single episodes and to selections."""

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

_INTEGERS = (int, np.integer)  # A constant: a union would be rebuilt for each episode.


def load(path: AnyPath, *, verify: bool = False) -> Dataset:
    """Open a dataset; only the table of episodes is read.

    Warns with a `UserWarning` if there are fewer episodes than info.json states, e.g. after files were
    deleted.

    Args:
        path: The dataset's folder, a path or a URI.
        verify: True to read and check all files, as `rollout verify` does.

    Raises:
        DatasetFormatError: If the folder is not a dataset of this format, or the dataset contradicts itself.
        StorageError: If the dataset cannot be read.

    Example:
        >>> rollout_cli.load("data")
        <Dataset data: 3 episodes>
    """
    root = folder_of(path)
    # Listed before info.json is read: a run writes its fingerprint there before it commits the first file.
    files = table_files(episodes_folder(root))
    dataset = Dataset(rows_of(root, read_info(root), files))
    stated = dataset.info["episodes"]
    if len(dataset) < stated:
        if files != table_files(episodes_folder(root)):  # A run has added episodes in between, and ended.
            return load(path, verify=verify)
        text = f"{root} has {len(dataset):,} episodes, expected {stated:,} by info.json"
        warnings.warn(f"{text}; check it with: rollout verify {shell_word(root)}", UserWarning, stacklevel=2)
    if verify:
        require_valid(dataset)
    return dataset


def require_valid(dataset: Dataset) -> None:
    """Raise `DatasetFormatError` if the files of these episodes contradict the dataset's own records."""
    report = verify_dataset(dataset.path, read=dataset.rows.data_files())
    if report.faults:
        folder = shell_word(report.path)
        raise DatasetFormatError(
            f"{report.path} is damaged: {report.faults[0]}",
            code="dataset-damaged",
            hint=f"list the faults with `rollout verify {folder}`, keep the valid part with `rollout repair "
            f"{folder}`, or read it unchecked with {{verify=False}}",
        )


class Dataset:
    """The episodes of a dataset, or a selection of them.

    `len(dataset)` counts episodes, and `dataset[i]` is an `Episode`. `dataset[a:b]`, `dataset[[3, 1]]` and
    `dataset[mask]` (a bool array with one value per episode) are views of type `Dataset`. Iteration decodes
    one row group at a time. A dataset can be pickled; each process then reads the files itself.

    Example:
        >>> dataset = rollout_cli.load("data")
        >>> dataset[0].observations.shape, dataset.filter("length >= 20")
        ((37, 4), <Dataset data: 1 episodes>)
        >>> dataset.to_episode_batch().returns.tolist()
        [37.0, 18.0, 12.0]
    """

    def __init__(self, rows: Rows) -> None:
        self.rows = rows  # For use within the package.

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, at: int | np.integer[Any]) -> Episode: ...
    @overload
    def __getitem__(self, at: slice | Sequence[int] | Array) -> Dataset: ...
    def __getitem__(self, at: Index) -> Episode | Dataset:
        """Return one episode, or a view of several.

        Raises:
            IndexError: If an index is out of range, or a mask has the wrong length.
            TypeError: If `at` is not an integer, a slice, integers or a mask, or has masked values.
        """
        if isinstance(at, _INTEGERS):
            try:
                return Episode(self.rows.table, self.rows.places[int(at)])
            except IndexError:
                raise IndexError(
                    f"episode {at} is out of range: the dataset has {len(self)} episodes"
                ) from None
        if not isinstance(at, slice):
            refuse_masked(at)
            # numpy makes a float array of an empty list.
            at = np.array(at, dtype=None if np.size(at) else np.int64)
            if at.ndim != 1 or at.dtype.kind not in "biu":
                raise TypeError(f"expected integers, a slice or a mask as the index of a dataset, not {at!r}")
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
        """Return a view of the episodes that match an expression, such as `return >= 400`.

        docs/editing.md describes the language. Only the named columns are read.

        Raises:
            UsageError: If the expression is invalid, or names an unknown column.
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
        """The environment's spaces and time limit."""
        return self.rows.spaces.env_spec

    @property
    def episodes(self) -> pa.Table:
        """The table `meta/episodes`, one row per episode, without last observations and infos."""
        return self.rows.table.table.take(pa.array(self.rows.ids))

    def to_episode_batch(self) -> EpisodeBatch:
        """Read these episodes into memory.

        Dtypes, shapes and trees are those of the spaces; infos that some steps lack are masked arrays.

        Raises:
            ValueError: If the dataset has no episodes.
            DatasetFormatError: If the files are damaged, or contradict each other.
            StorageError: If the files cannot be read, or do not fit into memory.
        """
        if not len(self):
            raise ValueError("cannot make an EpisodeBatch of no episodes")
        return self.rows.batch()

    def sample_episodes(self, n: int, seed: int | None = None) -> Dataset:
        """Sample `n` different episodes at random, the same ones for the same `seed`.

        Raises:
            ValueError: If the dataset has fewer episodes.
        """
        if not 0 <= n <= len(self):
            raise ValueError(f"cannot sample {n} of {len(self)} episodes")
        return self[np.random.default_rng(seed).choice(len(self), n, replace=False)]

    def transitions(self, columns: Names = None, infos: Sequence[str] = ()) -> Transitions:
        """Read the steps into memory, with their next observations, for random batches.

        Args:
            columns: Some of `observations`, `actions`, `rewards`, `next_observations`, `terminated` and
                `truncated`; None for all.
            infos: Infos of steps that have a column, such as `env_info.x`; these are their names in a batch.

        Raises:
            ValueError: If a column or info does not exist.
            DatasetFormatError: If the files are damaged, or contradict each other.
            StorageError: If the files cannot be read, or do not fit into memory.
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
        """Read the steps into memory, for random batches of windows within episodes.

        Args:
            length: The number of steps of a window.
            stride: The number of steps between the starts of two windows.
            pad: With `after`, a window starts at every `stride`-th step and is padded after the episode's end.
                With `before`, a window ends at every `stride`-th step and is padded before the episode's start.
                With None, windows are not padded, and episodes shorter than a window have none.
            returns_to_go: True to add `returns_to_go`, float64 (B, length): the sum of the rewards from each
                step to the end of its episode.
            columns: Some of `observations`, `actions` and `rewards`; None for all.

        Raises:
            ValueError: If `length`, `stride`, `pad` or a column name is invalid.
            DatasetFormatError: If the files are damaged, or contradict each other.
            StorageError: If the files cannot be read, or do not fit into memory.
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
        """Read all steps once, in batches of `n` like those of `transitions`; the last one may be smaller.

        About 64 MiB of steps are in memory at one time, and at most one row group more.

        Args:
            n: The number of steps of a batch.
            shuffle: A seed. Row groups come in random order, and all steps in memory are shuffled. None keeps
                the order of the episodes.
            columns: As for `transitions`.
            infos: As for `transitions`.

        Raises:
            ValueError: If `n` is less than 1, or a column or info does not exist.
            DatasetFormatError: If the files are damaged, or contradict each other.
            StorageError: If the files cannot be read.
        """
        if n < 1:
            raise ValueError(f"a batch has {n} steps, expected at least 1")
        return stream_batches(self.rows, n, shuffle, columns, infos)


class Episode:
    """One episode. Its row of `meta/episodes` is in memory; its steps are read on access.

    `len(episode)` is its number of steps T. Arrays are writable and belong to this object. Reading steps
    raises the errors of `Dataset.to_episode_batch`.

    Example:
        >>> episode = rollout_cli.load("data")[1]
        >>> len(episode), episode.rewards.shape, episode.last_observation.shape
        (18, (18,), (4,))
        >>> episode.number, episode.total_reward, episode.terminated
        (1, 18.0, True)
    """

    __slots__ = ("_at", "_block", "_fields", "_place", "_table")

    def __init__(self, table: EpisodeTable, at: int, block: Rows | None = None, place: int = 0) -> None:
        self._table = table
        self._at = at
        # All episodes of a block are decoded when the batch of one is accessed.
        self._block = block
        self._place = place
        self._fields: dict[str, Tree] = {}  # The fields that were accessed.

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
        """Its index in the dataset."""
        return int(self._fact("episode_id"))

    @property
    def source(self) -> int:
        """The index of its run in the `sources` of info.json."""
        return int(self._fact("source"))

    @property
    def number(self) -> int:
        """Its episode number, which decides its seeds together with the root seed."""
        return int(self._fact("episode_number"))

    @property
    def seed(self) -> int:
        """The seed passed to `env.reset`."""
        return int(self._fact("seed"))

    @property
    def total_reward(self) -> float:
        """The sum of its rewards."""
        return float(self._fact("return"))

    @property
    def terminated(self) -> bool:
        """True if it ended in a terminal state."""
        return bool(self._fact("terminated"))

    @property
    def truncated(self) -> bool:
        """True if it was cut off, e.g. by a time limit."""
        return bool(self._fact("truncated"))

    @property
    def observations(self) -> Tree:
        """The observation before each step, tree of arrays (T, *shape)."""
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
        """The observation after the last step, tree of arrays of the space's shapes."""
        return map_tree(itemgetter(0), self._field("last_observation"))

    @property
    def next_observations(self) -> Tree:
        """The observation after each step, tree of arrays (T, *shape)."""
        return map_tree(partial(following, ends=[-1]), self.observations, self._field("last_observation"))

    def _field(self, name: str) -> Tree:
        if name not in self._fields:
            self._fields[name] = self._table.field(name, self._at)
        return self._fields[name]

    @property
    def env_infos(self) -> Arrays:
        """The infos of `env.step` by key, arrays (T, ...) that are read on access."""
        return EpisodeInfos(self, "env_info")

    @property
    def agent_infos(self) -> Arrays:
        """The infos of the policy by key, arrays (T, ...) that are read on access."""
        return EpisodeInfos(self, "agent_info")

    @property
    def episode_infos(self) -> Arrays:
        """The infos of `env.reset` by key, arrays (1, ...) that are read on access."""
        return EpisodeInfos(self, "episode_info")

    @property
    def batch(self) -> EpisodeBatch:
        """The episode as an `EpisodeBatch`; the errors are those of `Dataset.to_episode_batch`."""
        return self.rows.batch() if self._block is None else self._block.batches[self._place]

    @property
    def rows(self) -> Rows:
        """The episode's rows, for use within the package."""
        return Rows(self._table, np.array([self._at]))


class EpisodeInfos(Mapping[str, Array]):
    """The infos of one group of an episode; values are read one at a time, the keys all at once."""

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
