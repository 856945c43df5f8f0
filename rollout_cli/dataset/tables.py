"""Chunks as the rows of both tables, and rows as an EpisodeBatch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from rollout_cli.dataset.convert import Array, decode_infos, encode_infos, joined, number_array
from rollout_cli.dataset.schema import DatasetSchema, InfoField, InfoSchema, SpaceColumn, SpaceSchema
from rollout_cli.episodes.batch import EnvSpec, EpisodeBatch, derive_step_types
from rollout_cli.episodes.chunk import Chunk
from rollout_cli.episodes.infos import InfoTable, concatenate_tables
from rollout_cli.episodes.spaces import unflatten


@dataclass(frozen=True, slots=True)
class RowSlice:
    """Rows for the data table: whole episodes, or some rows of one.

    Attributes:
        chunk: The rows; its `lengths` count only them.
        ids: The episode ids, int64 (N,).
        following: One array a leaf, (N, *leaf.shape): the observation after each episode's last row here.
        first_step: The step number of the first row.
        ends: Whether the episodes end with these rows.
    """

    chunk: Chunk
    ids: Array
    following: tuple[Array, ...]
    first_step: int = 0
    ends: bool = True

    @classmethod
    def whole(cls, chunk: Chunk, ids: Array) -> RowSlice:
        """Return the rows of whole episodes."""
        return cls(chunk, ids, chunk.last_observations)


def step_table(schema: DatasetSchema, slices: Sequence[RowSlice]) -> tuple[pa.Table, dict[str, int]]:
    """Return rows as a table of `schema.data`, and by column how many info values are not in it."""
    chunks = [one.chunk for one in slices]
    lengths = joined([chunk.lengths for chunk in chunks])
    first_steps = joined([np.full(len(one.ids), one.first_step) for one in slices])
    observations = [chunk.observations for chunk in chunks]
    env, env_lost = _encode_infos("env_info", schema.infos.env, [chunk.env_infos for chunk in chunks])
    agent, agent_lost = _encode_infos("agent_info", schema.infos.agent, [chunk.agent_infos for chunk in chunks])
    columns = [
        number_array(np.repeat(joined([one.ids for one in slices]), lengths)),
        number_array(_step_numbers(first_steps, lengths)),
        *_encode_leaves(schema.spaces.observation, observations),
        *_encode_leaves(schema.spaces.action, [chunk.actions for chunk in chunks]),
        number_array(joined([chunk.rewards for chunk in chunks]).astype(np.float64, copy=False)),
        *map(number_array, _flags(slices, lengths, first_steps)),
    ]
    if schema.spaces.next_observation:
        following = _shifted(joined_leaves(observations), joined_leaves([one.following for one in slices]), lengths)
        columns += _encode_leaves(schema.spaces.next_observation, [following])
    return pa.Table.from_arrays([*columns, *env, *agent], schema=schema.data), env_lost | agent_lost


def _encode_infos(
    prefix: str, fields: Sequence[InfoField], tables: Sequence[InfoTable]
) -> tuple[list[pa.Array], dict[str, int]]:
    return encode_infos(prefix, {field.path: field.kind for field in fields}, concatenate_tables(tables))


def _encode_leaves(columns: Sequence[SpaceColumn], parts: Sequence[tuple[Array, ...]]) -> list[pa.Array]:
    leaves = zip(*parts, strict=True)
    return [column.encode(values) for column, values in zip(columns, leaves, strict=True) if column.stored]


def joined_leaves(parts: Sequence[tuple[Array, ...]]) -> tuple[Array, ...]:
    """Return the columns of all leaves, from parts that follow one another."""
    return tuple(joined(leaf) for leaf in zip(*parts, strict=True))


def _step_numbers(first_steps: Array, lengths: Array) -> Array:
    starts = np.cumsum(lengths) - lengths
    numbers = np.arange(int(lengths.sum()), dtype=np.int32)
    numbers -= np.repeat((starts - first_steps).astype(np.int32), lengths)
    return numbers


def _flags(slices: Sequence[RowSlice], lengths: Array, first_steps: Array) -> tuple[Array, Array, Array]:
    """Return terminated, truncated and step type of each row."""
    ends = np.cumsum(lengths)
    terminated = joined([one.chunk.terminated if one.ends else one.chunk.terminated & False for one in slices])
    truncated = joined([one.chunk.truncated if one.ends else one.chunk.truncated & False for one in slices])
    rows = []
    for flags in (terminated, truncated):
        rows.append(np.zeros(int(ends[-1]), bool))
        rows[-1][ends[flags] - 1] = True
    types = derive_step_types(lengths, terminated, truncated)
    types[(ends - lengths)[(first_steps > 0) & (types[ends - lengths] == 0)]] = 1
    return rows[0], rows[1], types


def _shifted(leaves: Sequence[Array], following: Sequence[Array], lengths: Array) -> tuple[Array, ...]:
    ends = np.cumsum(lengths) - 1
    out = []
    for leaf, last in zip(leaves, following, strict=True):
        shifted = np.empty_like(leaf)
        shifted[:-1] = leaf[1:]
        shifted[ends] = last
        out.append(shifted)
    return tuple(out)


@dataclass(frozen=True, slots=True)
class EpisodeRows:
    """Episodes for `meta/episodes`.

    Attributes:
        chunk: Their own columns; its step columns are not read.
        ids: Episode ids, int64 (N,).
        lengths: Steps of the whole episodes, int64 (N,).
        rewards: Their rewards in parts that follow one another, float64.
    """

    chunk: Chunk
    ids: Array
    lengths: Array
    rewards: tuple[Array, ...]

    @classmethod
    def whole(cls, chunk: Chunk, ids: Array) -> EpisodeRows:
        """Return the rows of the whole episodes of a chunk."""
        return cls(chunk, ids, chunk.lengths, (chunk.rewards,))


_CHUNK_COLUMNS = ("terminated", "truncated", "seeds", "workers", "wall_times")


def episode_table(
    schema: DatasetSchema, rows: Sequence[EpisodeRows], *, root_seed: int, file: tuple[int, int], first_row: int
) -> tuple[pa.Table, dict[str, int]]:
    """Return episodes as a table of `schema.episodes`, and by column how many info values are not in it.

    Args:
        schema: The dataset's schema.
        rows: The episodes, whose steps follow one another in one data file.
        root_seed: The run's root seed.
        file: Chunk index and file index of the data file.
        first_row: The row of their first step in it.
    """
    chunks = [one.chunk for one in rows]
    lengths = joined([one.lengths for one in rows])
    count = len(lengths)
    infos, lost = _encode_infos("episode_info", schema.infos.episode, [chunk.episode_infos for chunk in chunks])
    columns = [
        joined([one.ids for one in rows]),
        joined([chunk.numbers for chunk in chunks]),
        np.full(count, root_seed, np.int64),
        lengths,
        episode_returns([part for one in rows for part in one.rewards], lengths),
        *(joined([getattr(chunk, name) for chunk in chunks]) for name in _CHUNK_COLUMNS),
        np.full(count, file[0], np.int32),
        np.full(count, file[1], np.int32),
        first_row + np.cumsum(lengths) - lengths,
    ]
    leaves = _encode_leaves(schema.spaces.last_observation, [chunk.last_observations for chunk in chunks])
    return pa.Table.from_arrays([*map(number_array, columns), *leaves, *infos], schema=schema.episodes), lost


def episode_returns(rewards: Sequence[Array], lengths: Array) -> Array:
    """Return each episode's sum of rewards, float64 (N,): always the same bits for the same rewards."""
    starts = np.cumsum(lengths) - lengths
    # A copy: numpy adds unaligned values, such as views of a message, block by block, which rounds differently.
    return np.asarray(np.add.reduceat(np.concatenate([*rewards, np.zeros(0)]), starts))


def decode_batch(spaces: SpaceSchema, steps: pa.Table, episodes: pa.Table) -> EpisodeBatch:
    """Return episodes from their rows of `data` and of `meta/episodes`.

    Raises:
        ValueError: If the rows do not fit each other.
        KeyError: If a column is missing.
    """
    spec = spaces.env_spec
    return EpisodeBatch(
        env_spec=spec,
        observations=unflatten(spec.observation_space, _decode_leaves(spaces.observation, steps)),
        actions=unflatten(spec.action_space, _decode_leaves(spaces.action, steps)),
        last_observations=unflatten(spec.observation_space, _decode_leaves(spaces.last_observation, episodes)),
        rewards=_numbers(steps, "reward"),
        step_types=_numbers(steps, "step_type"),
        env_infos=decode_infos("env_info", steps),
        agent_infos=decode_infos("agent_info", steps),
        episode_infos=decode_infos("episode_info", episodes),
        lengths=_numbers(episodes, "length"),
        terminated=_numbers(episodes, "terminated"),
        truncated=_numbers(episodes, "truncated"),
        numbers=_numbers(episodes, "episode_number"),
        seeds=_numbers(episodes, "seed"),
    )


def _decode_leaves(columns: tuple[SpaceColumn, ...], table: pa.Table) -> list[Array]:
    return [_writable(column.decode(table)) for column in columns]


def _numbers(table: pa.Table, name: str) -> Array:
    return _writable(table[name].combine_chunks().to_numpy(zero_copy_only=False))


def _writable(values: Array) -> Array:
    return values if values.flags.writeable else values.copy()


def stored_form(chunk: Chunk, env_spec: EnvSpec, features: Mapping[str, Any]) -> EpisodeBatch:
    """Return whole episodes as a dataset with these columns would give them, to compare them with stored ones.

    Args:
        chunk: The episodes.
        env_spec: The dataset's spaces.
        features: The `features` of its info.json.
    """
    spaces = SpaceSchema.of(env_spec)
    schema = DatasetSchema.of(spaces, InfoSchema.from_features(features), {})
    ids = np.zeros(chunk.n_episodes, np.int64)
    steps, _ = step_table(schema, [RowSlice.whole(chunk, ids)])
    episodes, _ = episode_table(schema, [EpisodeRows.whole(chunk, ids)], root_seed=0, file=(0, 0), first_row=0)
    return decode_batch(spaces, steps, episodes)
