"""Chunk: the columns of many short episodes, or of one part of a long one.

It travels from a worker's recorder to the sampler, and on to the dataset's writer or into an EpisodeBatch. Every column
is flat, so that no cost is paid for each short episode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from rollout_cli.episodes.infos import InfoTable, concatenate_tables

Array = npt.NDArray[Any]

PART_BYTES = 16 << 20
"""An episode with more bytes of observations and actions than this travels in parts of about this size."""


@dataclass(frozen=True, slots=True)
class Part:
    """Which part of one long episode a chunk holds.

    Attributes:
        index: 0 for the part with the first step.
        count: How many parts the episode has.
        first_step: The step number of the part's first row.
        episode_length: Steps of the whole episode.
        variable_bytes: Bytes of the whole episode's texts and info values, see `episode_variable_bytes`.
    """

    index: int
    count: int
    first_step: int
    episode_length: int
    variable_bytes: int

    @property
    def is_last(self) -> bool:
        """Return whether the episode ends with this part."""
        return self.index == self.count - 1


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """N episodes in T rows; T is the sum of `lengths`.

    Attributes:
        numbers: Episode numbers, int64 (N,), rising.
        seeds: The seeds given to `env.reset`, int64 (N,); -1 where an environment began the episode by itself.
        lengths: Rows of each episode in this chunk, int64 (N,); of a part, the part's rows.
        terminated: Whether the episode's last step terminated it, bool (N,).
        truncated: Whether its last step truncated it, bool (N,); both may be true.
        workers: Which worker ran it, int32 (N,).
        wall_times: Seconds from its reset to its last step, float64 (N,).
        observations: One array a leaf of the observation space, (T, *leaf.shape).
        actions: One array a leaf of the action space, (T, *leaf.shape).
        rewards: float64 (T,).
        last_observations: One array a leaf, (N, *leaf.shape): what followed the episode's last step.
        env_infos: The info dictionaries of `env.step`, T rows.
        agent_infos: The info dictionaries of the policy, T rows.
        episode_infos: The info dictionaries of `env.reset`, N rows.
        part: Set where this is one part of a long episode (then N is 1).
    """

    numbers: Array
    seeds: Array
    lengths: Array
    terminated: Array
    truncated: Array
    workers: Array
    wall_times: Array
    observations: tuple[Array, ...]
    actions: tuple[Array, ...]
    rewards: Array
    last_observations: tuple[Array, ...]
    env_infos: InfoTable
    agent_infos: InfoTable
    episode_infos: InfoTable
    part: Part | None = None

    @property
    def n_episodes(self) -> int:
        """Return how many episodes the chunk holds (1 for a part)."""
        return len(self.numbers)

    @property
    def n_steps(self) -> int:
        """Return how many rows the chunk holds."""
        return len(self.rewards)

    @property
    def n_bytes(self) -> int:
        """Return the bytes of its observations, actions and rewards, near enough to account for memory."""
        return sum(column.nbytes for column in (*self.step_columns, *self.last_observations))

    @property
    def step_columns(self) -> tuple[Array, ...]:
        """Return the columns with a row a step: the observations' leaves, the actions' and the rewards."""
        return (*self.observations, *self.actions, self.rewards)

    def __reduce__(self) -> tuple[Any, ...]:
        # A tuple of the fields pickles faster than the dictionary that a dataclass with slots gives by default.
        return Chunk, tuple(getattr(self, name) for name in self.__slots__)

    def episodes(self, start: int, stop: int) -> Chunk:
        """Return the chunk's episodes at places `start` to `stop - 1`, as views."""
        if (start, stop) == (0, self.n_episodes):
            return self
        edges = [0, *np.cumsum(self.lengths).tolist()]
        return replace(
            self.rows(edges[start], edges[stop]),
            **{name: getattr(self, name)[start:stop] for name in _EPISODE_FIELDS},
            last_observations=tuple(column[start:stop] for column in self.last_observations),
            episode_infos=self.episode_infos.slice(start, stop),
        )

    def rows(self, start: int, stop: int) -> Chunk:
        """Return rows `start` to `stop - 1` of a chunk of one episode, as views; its episode's own facts stay."""
        return replace(
            self,
            lengths=np.array([stop - start], np.int64),
            observations=tuple(column[start:stop] for column in self.observations),
            actions=tuple(column[start:stop] for column in self.actions),
            rewards=self.rewards[start:stop],
            env_infos=self.env_infos.slice(start, stop),
            agent_infos=self.agent_infos.slice(start, stop),
        )

    def parts(self, limit: int = PART_BYTES) -> list[Chunk]:
        """Return a chunk of one episode as parts of about `limit` bytes, or as itself where it is smaller."""
        count = min(-(-self.n_bytes // limit), self.n_steps)
        if count <= 1:
            return [self]
        edges = [self.n_steps * at // count for at in range(count + 1)]
        variable = variable_bytes(self)
        return [
            replace(self.rows(start, stop), part=Part(at, count, start, self.n_steps, variable))
            for at, (start, stop) in enumerate(pairwise(edges))
        ]


_EPISODE_FIELDS = ("numbers", "seeds", "lengths", "terminated", "truncated", "workers", "wall_times")
_LEAF_FIELDS = ("observations", "actions", "last_observations")
_INFO_FIELDS = ("env_infos", "agent_infos", "episode_infos")


def episode_variable_bytes(chunk: Chunk) -> Array:
    """Return the bytes that each episode's length does not tell, int64 (N,): those of its texts and info values.

    They depend on the episodes alone, not on how these were cut into chunks.
    """
    out = np.zeros(chunk.n_episodes, np.int64)
    episodes = np.repeat(np.arange(chunk.n_episodes), chunk.lengths)
    for column in (*chunk.observations, *chunk.actions):
        if column.dtype == object:
            np.add.at(out, episodes, _value_bytes(column))
    for info in (*chunk.env_infos.columns, *chunk.agent_infos.columns):
        np.add.at(out, episodes if info.rows is None else episodes[info.rows], _value_bytes(info.values))
    return out


def _value_bytes(values: Array) -> Array:
    """Return the bytes of each of N values, int64 (N,); of a text, which is an object, those of its UTF-8."""
    if values.dtype == object:
        return np.array([len(text.encode("utf-8", "surrogatepass")) for text in values], np.int64)
    return np.full(len(values), values.dtype.itemsize * int(np.prod(values.shape[1:], dtype=np.int64)))


def variable_bytes(chunk: Chunk) -> int:
    """Return the bytes of all texts and info values in the step columns of `chunk`."""
    return int(episode_variable_bytes(chunk).sum())


def concatenate(chunks: Sequence[Chunk]) -> Chunk:
    """Return the episodes of `chunks` after one another; the parts of one episode become that episode again.

    Raises:
        ValueError: If there is no chunk.
    """
    if not chunks:
        raise ValueError("there is no chunk to concatenate")
    if len(chunks) == 1 and chunks[0].part is None:
        return chunks[0]
    # An episode's own columns are taken from its last part alone.
    whole = [chunk for chunk in chunks if chunk.part is None or chunk.part.is_last]
    lengths = [[chunk.part.episode_length] if chunk.part else chunk.lengths for chunk in whole]
    fields: dict[str, Any] = {name: np.concatenate([getattr(c, name) for c in whole]) for name in _EPISODE_FIELDS}
    fields["lengths"] = np.concatenate(lengths).astype(np.int64)
    for name in _LEAF_FIELDS:
        sources = whole if name == "last_observations" else chunks
        columns = zip(*(getattr(chunk, name) for chunk in sources), strict=True)
        fields[name] = tuple(np.concatenate(column) for column in columns)
    for name in _INFO_FIELDS:
        sources = whole if name == "episode_infos" else chunks
        fields[name] = concatenate_tables([getattr(chunk, name) for chunk in sources])
    return Chunk(rewards=np.concatenate([chunk.rewards for chunk in chunks]), part=None, **fields)


def for_transport(chunk: Chunk) -> list[Chunk]:
    """Return `chunk` in pieces of about `PART_BYTES` at most: itself, some episodes at a time, or parts of one."""
    if chunk.n_bytes <= PART_BYTES:
        return [chunk]
    if chunk.n_episodes == 1:
        return chunk.parts()
    middle = chunk.n_episodes // 2
    return [*for_transport(chunk.episodes(0, middle)), *for_transport(chunk.episodes(middle, chunk.n_episodes))]
