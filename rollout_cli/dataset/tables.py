"""Chunks as the rows of both tables, and rows as an EpisodeBatch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from rollout_cli.dataset.convert import Array, decode_infos, encode_infos, joined, number_array
from rollout_cli.dataset.schema import DatasetSchema, InfoField, InfoSchema, SpaceColumn, SpaceSchema
from rollout_cli.episodes.batch import EnvSpec, EpisodeBatch, StepType, derive_step_types
from rollout_cli.episodes.chunk import Chunk
from rollout_cli.episodes.infos import InfoTable, concatenate_tables
from rollout_cli.episodes.spaces import unflatten

NumberedChunk = tuple[Chunk, Array]
"""Whole episodes as a chunk, and the id of each, int64 (N,)."""


def step_table(
    schema: DatasetSchema, episodes: Sequence[NumberedChunk], *, first_step: int = 0
) -> tuple[pa.Table, dict[str, int]]:
    """Return rows as a table of `schema.data`, and by column how many info values are not in it.

    Some rows of one episode are given as an episode whose `last_observations` are those after its last row here, and
    whose flags are false unless it ends with that row.

    Args:
        schema: The dataset's schema.
        episodes: The rows.
        first_step: The step number of the first row; over 0 only with rows of one episode.
    """
    chunks = [chunk for chunk, _ in episodes]
    lengths, ids = joined([chunk.lengths for chunk in chunks]), joined([ids for _, ids in episodes])
    starts = np.cumsum(lengths) - lengths
    steps = np.arange(int(lengths.sum()), dtype=np.int32)
    steps -= np.repeat((starts - first_step).astype(np.int32), lengths)
    observations = [chunk.observations for chunk in chunks]
    env, env_lost = _encode_infos("env_info", schema.infos.env, [chunk.env_infos for chunk in chunks])
    agent, agent_lost = _encode_infos("agent_info", schema.infos.agent, [chunk.agent_infos for chunk in chunks])
    columns = [
        number_array(np.repeat(ids, lengths)),
        number_array(steps),
        *_encode_leaves(schema.spaces.observation, observations),
        *_encode_leaves(schema.spaces.action, [chunk.actions for chunk in chunks]),
        number_array(joined([chunk.rewards for chunk in chunks]).astype(np.float64, copy=False)),
        *map(number_array, _flags(chunks, lengths, is_first=first_step == 0)),
    ]
    if schema.spaces.next_observation:
        following = joined_leaves([chunk.last_observations for chunk in chunks])
        shifted = [_shifted(*pair, starts) for pair in zip(joined_leaves(observations), following, strict=True)]
        columns += _encode_leaves(schema.spaces.next_observation, [tuple(shifted)])
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


def _flags(chunks: Sequence[Chunk], lengths: Array, *, is_first: bool) -> tuple[Array, Array, Array]:
    """Return terminated, truncated and step type of each row."""
    ends = np.cumsum(lengths)
    flags = joined([chunk.terminated for chunk in chunks]), joined([chunk.truncated for chunk in chunks])
    rows = np.zeros((2, int(ends[-1])), bool)
    for row, flag in zip(rows, flags, strict=True):
        row[ends[flag] - 1] = True
    types = derive_step_types(lengths, *flags)
    if not is_first and types[0] == StepType.FIRST:
        types[0] = StepType.MID
    return rows[0], rows[1], types


def _shifted(values: Array, last: Array, starts: Array) -> Array:
    """Return the value after each row: that of the next row, or at an episode's end its `last` one."""
    shifted = np.empty_like(values)
    shifted[:-1] = values[1:]
    shifted[np.append(starts[1:], len(values)) - 1] = last
    return shifted


def episode_table(
    schema: DatasetSchema, episodes: Sequence[NumberedChunk], *, root_seed: int, file: tuple[int, int], first_row: int
) -> tuple[pa.Table, dict[str, int]]:
    """Return episodes as a table of `schema.episodes`, and by column how many info values are not in it.

    Args:
        schema: The dataset's schema.
        episodes: The episodes, whose steps follow one another in one data file. Of their step columns only the rewards
            are read.
        root_seed: The run's root seed.
        file: Chunk index and file index of the data file.
        first_row: The row of their first step in it.
    """
    chunks = [chunk for chunk, _ in episodes]
    lengths = joined([chunk.lengths for chunk in chunks])
    infos, lost = _encode_infos("episode_info", schema.infos.episode, [chunk.episode_infos for chunk in chunks])
    facts = ("terminated", "truncated", "seeds", "workers", "wall_times")
    columns = [
        joined([ids for _, ids in episodes]),
        joined([chunk.numbers for chunk in chunks]),
        np.full(len(lengths), root_seed, np.int64),
        lengths,
        episode_returns([chunk.rewards for chunk in chunks], lengths),
        *(joined([getattr(chunk, name) for chunk in chunks]) for name in facts),
        np.full(len(lengths), file[0], np.int32),
        np.full(len(lengths), file[1], np.int32),
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
    """Return whole episodes as a dataset with these spaces and `features` would give them, to compare both."""
    spaces = SpaceSchema.of(env_spec)
    schema = DatasetSchema.of(spaces, InfoSchema.from_features(features), {})
    numbered = [(chunk, np.zeros(chunk.n_episodes, np.int64))]
    steps, _ = step_table(schema, numbered)
    episodes, _ = episode_table(schema, numbered, root_seed=0, file=(0, 0), first_row=0)
    return decode_batch(spaces, steps, episodes)
