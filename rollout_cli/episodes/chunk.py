"""Chunk, the flat columns of many episodes, and ChunkRef, a reference to a chunk in another process.

A chunk avoids a fixed cost per episode. A reference has the facts for ordering episodes and cutting segments.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

import numpy as np

from rollout_cli.episodes.infos import INFO_GROUPS, JSON, STRING, InfoTable, concatenate_tables
from rollout_cli.episodes.plain import Fields, plain_bytes
from rollout_cli.episodes.spaces import Array, Leaves

MESSAGE_BYTES = 16 << 20
"""A chunk with more bytes is sent in pieces of at most this size, or of one episode."""

_STEP_FIELDS = ("observations", "actions", "rewards", "env_infos", "agent_infos")
_EPISODE_ARRAYS = ("numbers", "seeds", "lengths", "terminated", "truncated", "workers", "wall_times")
_EPISODE_FIELDS = (*_EPISODE_ARRAYS, "last_observations", "episode_infos")


def sum_of(rewards: Array) -> float:
    """Return the sum of rewards or returns, without warnings: nan for inf and -inf, and inf for an overflow."""
    with np.errstate(all="ignore"):
        return float(rewards.sum())


class _Episodes:
    """The common base class of Chunk and ChunkRef."""

    __slots__ = ()

    numbers: Array
    lengths: Array

    @property
    def n_episodes(self) -> int:
        """The number of episodes."""
        return len(self.numbers)

    @property
    def n_steps(self) -> int:
        """The number of rows."""
        return int(self.lengths.sum())


@dataclass(frozen=True, slots=True, eq=False)
class Chunk(_Episodes):
    """N episodes in T rows; T is the sum of `lengths`."""

    numbers: Array  # Episode numbers, int64 (N,), ascending.
    seeds: Array  # Seeds passed to `env.reset`, int64 (N,); -1 if the environment reset itself.
    lengths: Array  # Rows of each episode, int64 (N,).
    terminated: Array  # bool (N,).
    truncated: Array  # bool (N,); both may be true.
    workers: Array  # The worker that ran the episode, int32 (N,).
    wall_times: Array  # Seconds from the reset to the last step, float64 (N,).
    observations: Leaves  # One array per leaf of the space, (T, *leaf.shape); likewise the actions.
    actions: Leaves
    rewards: Array  # float64 (T,).
    last_observations: Leaves  # The observation after each episode's last step, (N, *leaf.shape).
    env_infos: InfoTable  # Of `env.step`, T rows.
    agent_infos: InfoTable  # Of the policy, T rows.
    episode_infos: InfoTable  # Of `env.reset`, N rows.

    @property
    def return_sum(self) -> float:
        """The sum of the rewards."""
        return sum_of(self.rewards)

    @property
    def n_bytes(self) -> int:
        """The bytes of observations, actions and rewards, which approximate the memory of the chunk."""
        columns = (*self.observations, *self.actions, self.rewards, *self.last_observations)
        return sum(column.nbytes for column in columns)

    @property
    def variable_bytes(self) -> Array:
        """The bytes of strings and infos per episode, which do not follow from its length, int64 (N,)."""
        n_bytes = np.zeros(self.n_episodes, np.int64)
        episodes = np.arange(self.n_episodes)
        infos = (*self.env_infos.columns, *self.agent_infos.columns)
        for rows, leaves, columns in (
            (np.repeat(episodes, self.lengths), (*self.observations, *self.actions), infos),
            (episodes, self.last_observations, self.episode_infos.columns),
        ):
            for leaf in leaves:
                if leaf.dtype == object:
                    np.add.at(n_bytes, rows, _value_bytes(leaf, STRING))
            for info in columns:
                np.add.at(n_bytes, rows[info.row_numbers()], _value_bytes(info.values, info.kind))
        return n_bytes

    def load(self) -> Chunk:
        """Return the chunk itself."""
        return self

    def episodes(self, start: int, stop: int) -> Chunk:
        """Return the chunk's episodes at places `start` to `stop - 1`, as views."""
        if (start, stop) == (0, self.n_episodes):
            return self
        fields = {name: _cut(getattr(self, name), start, stop) for name in _EPISODE_FIELDS}
        first_row = int(self.lengths[:start].sum())
        return replace(self.rows(first_row, first_row + int(fields["lengths"].sum())), **fields)

    def rows(self, start: int, stop: int) -> Chunk:
        """Return rows `start` to `stop - 1` of a chunk of one episode, as views.

        The episode's facts stay the same, but if more rows follow, it is neither terminated nor truncated.
        """
        fields: Fields = {name: _cut(getattr(self, name), start, stop) for name in _STEP_FIELDS}
        if stop < self.n_steps:
            fields["last_observations"] = _cut(self.observations, stop, stop + 1)
            fields |= dict.fromkeys(("terminated", "truncated"), np.zeros(1, bool))
        return replace(self, lengths=np.array([stop - start], np.int64), **fields)

    def truncated_at(self, limit: int) -> Chunk:
        """Return a chunk of one complete episode, truncated after `limit` steps, as views."""
        if self.n_steps < limit:
            return self
        return replace(self.rows(0, limit), truncated=np.ones(1, bool))


@dataclass(frozen=True, slots=True, eq=False)
class ChunkRef(_Episodes):
    """A reference to a chunk in another process; it is picklable if `source` is."""

    numbers: Array  # The first four fields equal those of the chunk.
    lengths: Array
    variable_bytes: Array
    n_bytes: int
    source: Callable[[], Chunk]  # Loads the complete chunk.
    start: int = 0  # The index of the first episode in the complete chunk.
    whole_sum: float | None = None  # The sum of the rewards; None for a part of a chunk.

    @property
    def return_sum(self) -> float:
        """The sum of the rewards."""
        return self.load().return_sum if self.whole_sum is None else self.whole_sum

    def load(self) -> Chunk:
        """Return the chunk; errors of `source` are raised."""
        return self.source().episodes(self.start, self.start + self.n_episodes)

    def episodes(self, start: int, stop: int) -> ChunkRef:
        """Return the chunk's episodes at places `start` to `stop - 1`."""
        if (start, stop) == (0, self.n_episodes):
            return self
        fields = {name: getattr(self, name)[start:stop] for name in ("numbers", "lengths", "variable_bytes")}
        n_bytes = self.n_bytes * int(fields["lengths"].sum()) // self.n_steps
        return replace(self, **fields, n_bytes=n_bytes, start=self.start + start, whole_sum=None)


AnyChunk = Chunk | ChunkRef


def _cut(field: Any, start: int, stop: int) -> Any:
    if isinstance(field, InfoTable):
        return field.slice(start, stop)
    if isinstance(field, tuple):
        return tuple(column[start:stop] for column in field)
    return field[start:stop]


def _joined(chunks: Sequence[Chunk], name: str) -> Any:
    fields: list[Any] = [getattr(chunk, name) for chunk in chunks]
    if isinstance(fields[0], InfoTable):
        return concatenate_tables(fields)
    if isinstance(fields[0], tuple):
        return tuple(map(np.concatenate, zip(*fields, strict=True)))
    return np.concatenate(fields)


def _value_bytes(values: Array, kind: str) -> Array:
    """Return the nominal bytes (`plain_bytes`) of N values of a kind, int64 (N,)."""
    if values.dtype != object:
        return np.full(len(values), 8 * int(np.prod(values.shape[1:], dtype=np.int64)))
    plain: Iterable[Any] = map(json.loads, values) if kind == JSON else values
    return np.fromiter(map(plain_bytes, plain), np.int64)


def concatenate(chunks: Sequence[Chunk]) -> Chunk:
    """Return one chunk with the episodes of all `chunks`, in order."""
    if not chunks:
        raise ValueError("no chunks to concatenate, expected at least one")
    if len(chunks) == 1:
        return chunks[0]
    return Chunk(**{name: _joined(chunks, name) for name in (*_EPISODE_FIELDS, *_STEP_FIELDS)})


def in_order(chunk: Chunk) -> Chunk:
    """Return a chunk with its episodes sorted by number."""
    order = np.argsort(chunk.numbers)
    runs = np.split(order, np.flatnonzero(np.diff(order) != 1) + 1)
    return concatenate([chunk.episodes(int(run[0]), int(run[-1]) + 1) for run in runs])


def episode_returns(rewards: Sequence[Array], lengths: Array) -> Array:
    """Return the sum of rewards of each episode, float64 (N,), bit for bit equal for equal rewards."""
    starts = np.cumsum(lengths) - lengths
    # A copy: numpy sums unaligned values, such as views of a message, in blocks, which changes the rounding.
    with np.errstate(all="ignore"):  # This package has its own warnings about rewards.
        return np.asarray(np.add.reduceat(np.concatenate([*rewards, np.zeros(0)]), starts))


def for_transport(chunk: Chunk, limit: int = MESSAGE_BYTES) -> list[Chunk]:
    """Split `chunk` into pieces of at most `limit` bytes, or of one episode."""
    if chunk.n_bytes <= limit or chunk.n_episodes == 1:
        return [chunk]
    middle = chunk.n_episodes // 2
    first_half = chunk.episodes(0, middle)
    second_half = chunk.episodes(middle, chunk.n_episodes)
    return for_transport(first_half, limit) + for_transport(second_half, limit)


def without_infos(chunk: Chunk, patterns: Sequence[str]) -> Chunk:
    """Return a chunk without the infos that match a pattern; its tables count them as dropped.

    A pattern is a dotted path (`episode.t`) or a glob pattern (`*_time`), and also matches nested values. It
    applies to the infos of steps, policies and resets, unless it has the prefix of one group, as in
    `env_info.episode.t`.
    """
    kept: Fields = {
        f"{group}s": _without(patterns, group, getattr(chunk, f"{group}s")) for group in INFO_GROUPS
    }
    return replace(chunk, **kept)


def _without(patterns: Sequence[str], group: str, table: InfoTable) -> InfoTable:
    kept = []
    dropped = dict(table.dropped_rows)
    for column in table.columns:
        name = ".".join(column.path)
        if any(_matches(pattern, group, name) for pattern in patterns):
            dropped[name] = np.sort(np.append(dropped.get(name, np.zeros(0, np.int64)), column.row_numbers()))
        else:
            kept.append(column)
    if len(kept) == len(table.columns):
        return table
    return InfoTable(table.n_rows, tuple(kept), dropped)


def unmatched_patterns(patterns: Sequence[str], dropped: Iterable[str]) -> list[str]:
    """Return the patterns that match no dropped info; `dropped` has names such as `env_info.episode.t`."""
    unmatched = [*patterns]
    for name in dropped:
        group, _, path = name.partition(".")
        unmatched = [pattern for pattern in unmatched if not _matches(pattern, group, path)]
    return unmatched


@lru_cache(maxsize=4096)
def _matches(pattern: str, group: str, name: str) -> bool:
    globs = (pattern, f"{pattern}.*")
    return any(fnmatchcase(path, glob) for path in (name, f"{group}.{name}") for glob in globs)
