"""Reading a dataset: lazily, one episode or any selection of them at a time."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, overload

import numpy as np
import pyarrow as pa

from rollout_cli.dataset.convert import Array
from rollout_cli.dataset.expression import matching
from rollout_cli.dataset.layout import read_info, table_files
from rollout_cli.dataset.rows import Rows, rows_of
from rollout_cli.episodes.batch import EnvSpec, EpisodeBatch, Tree
from rollout_cli.episodes.chunk import Chunk
from rollout_cli.episodes.spaces import map_tree
from rollout_cli.remote import folder_of


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
    dataset = Dataset(rows_of(root, read_info(root), files))
    stated = dataset.info.get("episodes")
    if isinstance(stated, int) and len(dataset) < stated:
        text = f"{root} has {len(dataset):,} episodes, but its info.json states {stated:,}"
        warnings.warn(f"{text}; see: rollout verify {shlex.quote(str(root))}", UserWarning, stacklevel=2)
    return dataset


class Dataset:
    """The episodes of a dataset, or of a selection of them.

    `len(dataset)` counts episodes and `dataset[i]` is an `Episode`. `dataset[a:b]`, `dataset[[3, 1]]` and
    `dataset[mask]`, with a bool array of one value an episode, are each a `Dataset` that shares everything
    with this one. Iterating decodes a row group at a time; an episode kept from it keeps that row group in
    memory. A dataset can be pickled; each process then reads by itself.
    """

    def __init__(self, rows: Rows) -> None:
        self.rows = rows  # What the package itself reads by.

    def __len__(self) -> int:
        return len(self.rows)

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
            return Episode(self.rows.select([int(at)]), 0)
        if not isinstance(at, slice):
            # numpy takes an empty list for floats.
            at = np.array(at, dtype=None if np.size(at) else np.int64)
            if at.ndim != 1 or at.dtype.kind not in "biu":
                raise TypeError(f"a dataset is indexed by integers, a slice or a mask, not by {at!r}")
        return Dataset(self.rows.select(at))

    def __iter__(self) -> Iterator[Episode]:
        for block in self.rows.blocks():
            for place in range(len(block)):
                yield Episode(block, place)

    def __repr__(self) -> str:
        return f"<Dataset {self.path}: {len(self)} episodes>"

    def filter(self, expression: str) -> Dataset:
        """Return a view of the episodes of which an expression is true, such as `return >= 400`.

        docs/editing.md has the language. Only the columns that it names are read.

        Raises:
            UsageError: If it is not of the language, or names a column that there is not.
        """
        return self[matching(expression, self.rows)]

    @property
    def path(self) -> Path:
        """The dataset's folder."""
        return self.rows.root

    @property
    def info(self) -> Mapping[str, Any]:
        """The dataset's info.json."""
        return self.rows.info

    @property
    def env_spec(self) -> EnvSpec:
        """The environment's spaces and limit."""
        return self.rows.spaces.env_spec

    @property
    def episodes(self) -> pa.Table:
        """The rows of `meta/episodes`, one an episode, without last observations and infos."""
        return self.rows.episodes

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


class Episode:
    """One episode: its row of `meta/episodes` at once, its steps when they are asked for.

    Attributes:
        facts: That row, by column name.
        id: Its place in the dataset.
        source: The place of the run that it is of, in the `sources` of info.json.
        number: Its number, which with the root seed decides its seeds.
        seed: The seed given to `env.reset`.
        total_reward: The sum of its rewards.
        terminated: Whether it ended by its own rules.
        truncated: Whether it was cut off.
    """

    def __init__(self, block: Rows, place: int) -> None:
        # A field of all episodes of a block is decoded together, once that of one episode is asked for.
        self._block, self._place = block, place
        self.facts = block.facts[place]
        self.id: int = self.facts["episode_id"]
        self.source: int = self.facts["source"]
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
        return self._block.select([self._place]).chunk(most_steps)

    @property
    def batch(self) -> EpisodeBatch:
        """The episode as a batch of one; the errors are those of `Dataset.to_episode_batch`."""
        return self._block.batches[self._place]

    @property
    def observations(self) -> Tree:
        """What the policy saw at each step, tree of arrays (T, *shape)."""
        return self._block.values("observation")[self._place]

    @property
    def actions(self) -> Tree:
        """The actions, tree of arrays (T, *shape)."""
        return self._block.values("action")[self._place]

    @property
    def rewards(self) -> Array:
        """The rewards, float64 (T,)."""
        rewards: Array = self._block.values("reward")[self._place]
        return rewards

    @property
    def last_observation(self) -> Tree:
        """What followed the last step, tree of arrays of the space's shapes."""
        return map_tree(itemgetter(0), self._block.values("last_observation")[self._place])
