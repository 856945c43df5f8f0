"""Chunk: flat columns of many episodes, so that none has a cost of its own.

ChunkRef stands for a chunk that lies elsewhere: it has what is needed to order episodes and to cut segments.
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
"""A chunk with more bytes travels in pieces of about this size, or of one episode each."""

_STEP_FIELDS = ("observations", "actions", "rewards", "env_infos", "agent_infos")
_EPISODE_ARRAYS = ("numbers", "seeds", "lengths", "terminated", "truncated", "workers", "wall_times")
_EPISODE_FIELDS = (*_EPISODE_ARRAYS, "last_observations", "episode_infos")


def sum_of(rewards: Array) -> float:
    """Return the sum of rewards, or of returns: nan of inf and -inf, and inf where a float is too small."""
    with np.errstate(all="ignore"):
        return float(rewards.sum())


class _Episodes:
    """What chunks and references to them have in common."""

    __slots__ = ()

    numbers: Array
    lengths: Array

    @property
    def n_episodes(self) -> int:
        """How many episodes the chunk holds."""
        return len(self.numbers)

    @property
    def n_steps(self) -> int:
        """How many rows the chunk holds."""
        return int(self.lengths.sum())


@dataclass(frozen=True, slots=True, eq=False)
class Chunk(_Episodes):
    """N episodes in T rows; T is the sum of `lengths`."""

    numbers: Array  # Episode numbers, int64 (N,), rising.
    seeds: Array  # Those given to `env.reset`, int64 (N,); -1 where an environment began by itself.
    lengths: Array  # Rows of each episode, int64 (N,).
    terminated: Array  # bool (N,).
    truncated: Array  # bool (N,); both may be true.
    workers: Array  # Which worker ran it, int32 (N,).
    wall_times: Array  # Seconds from its reset to its last step, float64 (N,).
    observations: Leaves  # One array a leaf of the space, (T, *leaf.shape); so are actions.
    actions: Leaves
    rewards: Array  # float64 (T,).
    last_observations: Leaves  # What followed each episode's last step, (N, *leaf.shape).
    env_infos: InfoTable  # Of `env.step`, T rows.
    agent_infos: InfoTable  # Of the policy, T rows.
    episode_infos: InfoTable  # Of `env.reset`, N rows.

    @property
    def return_sum(self) -> float:
        """The sum of its rewards."""
        return sum_of(self.rewards)

    @property
    def n_bytes(self) -> int:
        """The bytes of its observations, actions and rewards, near enough to account for memory."""
        columns = (*self.observations, *self.actions, self.rewards, *self.last_observations)
        return sum(column.nbytes for column in columns)

    @property
    def variable_bytes(self) -> Array:
        """Bytes per episode that do not depend on its length, int64 (N,): those of strings and infos."""
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
        """Return the chunk: it is here."""
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

        The episode's facts stay, but where rows follow, these have not ended it.
        """
        fields: Fields = {name: _cut(getattr(self, name), start, stop) for name in _STEP_FIELDS}
        if stop < self.n_steps:
            fields["last_observations"] = _cut(self.observations, stop, stop + 1)
            fields |= dict.fromkeys(("terminated", "truncated"), np.zeros(1, bool))
        return replace(self, lengths=np.array([stop - start], np.int64), **fields)

    def truncated_at(self, limit: int) -> Chunk:
        """Return a chunk of one whole episode as it would be under a limit of so many steps, in views."""
        if self.n_steps < limit:
            return self
        return replace(self.rows(0, limit), truncated=np.ones(1, bool))


@dataclass(frozen=True, slots=True, eq=False)
class ChunkRef(_Episodes):
    """A chunk that lies elsewhere; it is picklable if `source` is."""

    numbers: Array  # These are a Chunk's.
    lengths: Array
    variable_bytes: Array
    n_bytes: int
    source: Callable[[], Chunk]  # Loads the chunk that this one was cut from.
    start: int = 0  # The place of its first episode in that.
    whole_sum: float | None = None  # The sum of its rewards; None where it was cut.

    @property
    def return_sum(self) -> float:
        """The sum of its rewards."""
        return self.load().return_sum if self.whole_sum is None else self.whole_sum

    def load(self) -> Chunk:
        """Return the chunk; raises what its source does."""
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
    """Return the nominal bytes of each of N values of a kind, int64 (N,): those of `plain_bytes`."""
    if values.dtype != object:
        return np.full(len(values), 8 * int(np.prod(values.shape[1:], dtype=np.int64)))
    plain: Iterable[Any] = map(json.loads, values) if kind == JSON else values
    return np.fromiter(map(plain_bytes, plain), np.int64)


def concatenate(chunks: Sequence[Chunk]) -> Chunk:
    """Return the episodes of `chunks` in sequence."""
    if not chunks:
        raise ValueError("there is no chunk to concatenate")
    if len(chunks) == 1:
        return chunks[0]
    return Chunk(**{name: _joined(chunks, name) for name in (*_EPISODE_FIELDS, *_STEP_FIELDS)})


def in_order(chunk: Chunk) -> Chunk:
    """Return a chunk's episodes in the order of their numbers."""
    order = np.argsort(chunk.numbers)
    runs = np.split(order, np.flatnonzero(np.diff(order) != 1) + 1)
    return concatenate([chunk.episodes(int(run[0]), int(run[-1]) + 1) for run in runs])


def episode_returns(rewards: Sequence[Array], lengths: Array) -> Array:
    """Return each episode's sum of rewards, float64 (N,): always the same bits for the same rewards."""
    starts = np.cumsum(lengths) - lengths
    # A copy: numpy adds unaligned values, such as views of a message, block by block, which rounds
    # differently.
    with np.errstate(all="ignore"):  # As in `sum_of`: rewards have warnings of ours.
        return np.asarray(np.add.reduceat(np.concatenate([*rewards, np.zeros(0)]), starts))


def for_transport(chunk: Chunk, limit: int = MESSAGE_BYTES) -> list[Chunk]:
    """Return `chunk` in pieces of at most `limit` bytes, or of one episode."""
    if chunk.n_bytes <= limit or chunk.n_episodes == 1:
        return [chunk]
    middle = chunk.n_episodes // 2
    first_half = chunk.episodes(0, middle)
    second_half = chunk.episodes(middle, chunk.n_episodes)
    return for_transport(first_half, limit) + for_transport(second_half, limit)


def without_infos(chunk: Chunk, patterns: Sequence[str]) -> Chunk:
    """Return a chunk without the infos whose keys match a pattern; its tables count them as dropped.

    A pattern is a dotted path (`episode.t`), or a glob of one (`*_time`), and stands for all that lies below
    it too. It means the infos of steps, policies and resets alike, unless it begins with the name of one:
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
    """Return the patterns that match none of the dropped infos, by names such as `env_info.episode.t`."""
    unmatched = [*patterns]
    for name in dropped:
        group, _, path = name.partition(".")
        unmatched = [pattern for pattern in unmatched if not _matches(pattern, group, path)]
    return unmatched


@lru_cache(maxsize=4096)
def _matches(pattern: str, group: str, name: str) -> bool:
    globs = (pattern, f"{pattern}.*")
    return any(fnmatchcase(path, glob) for path in (name, f"{group}.{name}") for glob in globs)
