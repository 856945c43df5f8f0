"""Conversion of chunks to the rows of both tables, and of rows to an EpisodeBatch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from rollout_cli.dataset.convert import (
    Array,
    decode,
    decode_info_table,
    encode_infos,
    joined,
    number_array,
)
from rollout_cli.dataset.schema import DatasetSchema, SpaceColumn, SpaceSchema, info_columns_of
from rollout_cli.episodes.batch import (
    EnvSpec,
    EpisodeBatch,
    StepType,
    at_ends,
    derive_step_types,
    following,
)
from rollout_cli.episodes.chunk import Chunk, episode_returns
from rollout_cli.episodes.plain import Document, Fields
from rollout_cli.episodes.spaces import Leaves

NumberedChunk = tuple[Chunk, Array]
"""Episodes and their labels: id and source of each, int64 (N, 2)."""

Encoded = tuple[pa.Table, dict[str, int]]
"""Rows, and the number of dropped info values by column."""


def step_table(schema: DatasetSchema, episodes: Sequence[NumberedChunk], *, first_step: int = 0) -> Encoded:
    """Return rows as a table of `schema.data`, and the number of dropped info values by column.

    A part of one episode, from `first_step` on, is passed as an episode: its `last_observations` follow the
    last row of the part, and its flags are false unless the episode ends with that row.
    """
    chunks = [chunk for chunk, _ in episodes]
    spaces = schema.spaces
    labels = joined([labels for _, labels in episodes])
    lengths = _joined(chunks, "lengths")
    ends = np.cumsum(lengths)
    starts = ends - lengths
    steps = np.arange(int(ends[-1]), dtype=np.int32)
    steps -= np.repeat((starts - first_step).astype(np.int32), lengths)
    flags = _joined(chunks, "terminated"), _joined(chunks, "truncated")
    types = derive_step_types(lengths, *flags)
    if first_step and types[0] == StepType.FIRST:
        types[0] = StepType.MID
    env, env_lost = encode_infos("env_info", schema.infos, [chunk.env_infos for chunk in chunks])
    agent, agent_lost = encode_infos("agent_info", schema.infos, [chunk.agent_infos for chunk in chunks])
    observations = [chunk.observations for chunk in chunks]
    columns = [
        number_array(np.repeat(labels[:, 0], lengths)),
        number_array(steps),
        *_encode_leaves(spaces.observation, observations),
        *_encode_leaves(spaces.action, [chunk.actions for chunk in chunks]),
        number_array(_joined(chunks, "rewards").astype(np.float64, copy=False)),
        *(number_array(at_ends(lengths, flag)) for flag in flags),
        number_array(types),
    ]
    if spaces.next_observation:
        last = joined_leaves([chunk.last_observations for chunk in chunks])
        follow = partial(following, ends=ends - 1)
        columns += _encode_leaves(
            spaces.next_observation, [tuple(map(follow, joined_leaves(observations), last))]
        )
    return pa.Table.from_arrays([*columns, *env, *agent], schema=schema.data), env_lost | agent_lost


def _joined(chunks: Sequence[Chunk], name: str) -> Array:
    return joined([getattr(chunk, name) for chunk in chunks])


def joined_leaves(parts: Sequence[Leaves]) -> Leaves:
    """Return the columns of all leaves, joined from consecutive parts."""
    return tuple(joined(leaf) for leaf in zip(*parts, strict=True))


def _encode_leaves(columns: Sequence[SpaceColumn], parts: Sequence[Leaves]) -> list[pa.Array]:
    leaves = zip(*parts, strict=True)
    return [column.encode(values) for column, values in zip(columns, leaves, strict=True) if column.stored]


def episode_table(
    schema: DatasetSchema,
    episodes: Sequence[NumberedChunk],
    *,
    root_seeds: Sequence[int | None],
    file: tuple[int, int],
    first_row: int,
) -> Encoded:
    """Return episodes as a table of `schema.episodes`, and the number of dropped info values by column.

    Their steps are consecutive rows of the data file `file` (chunk index and file index), from `first_row` on.
    The rewards are the only step column that is read. `root_seeds` has the root seed of each source; None
    is stored as -1.
    """
    roots = [-1 if seed is None else seed for seed in root_seeds]
    chunks = [chunk for chunk, _ in episodes]
    labels = joined([labels for _, labels in episodes])
    lengths = _joined(chunks, "lengths")
    infos, lost = encode_infos("episode_info", schema.infos, [chunk.episode_infos for chunk in chunks])
    columns = [
        labels[:, 0],
        labels[:, 1].astype(np.int32),
        _joined(chunks, "numbers"),
        np.array(roots, np.int64)[labels[:, 1]],
        lengths,
        episode_returns([chunk.rewards for chunk in chunks], lengths),
        *(_joined(chunks, name) for name in ("terminated", "truncated", "seeds", "workers", "wall_times")),
        *(np.full(len(lengths), index, np.int32) for index in file),
        first_row + np.cumsum(lengths) - lengths,
    ]
    leaves = _encode_leaves(schema.spaces.last_observation, [chunk.last_observations for chunk in chunks])
    return pa.Table.from_arrays([*map(number_array, columns), *leaves, *infos], schema=schema.episodes), lost


def decode_chunk(schema: DatasetSchema, steps: pa.Table, episodes: pa.Table) -> Chunk:
    """Return complete episodes from their rows in both tables, ready to be written unchanged.

    Arrays are writable copies, because readers cache the tables.
    """
    spaces = schema.spaces
    infos = schema.infos

    def leaves(table: pa.Table, columns: Sequence[SpaceColumn]) -> Leaves:
        return tuple(np.array(column.decode(table)) for column in columns)

    names = {
        "numbers": "episode_number",
        "seeds": "seed",
        "lengths": "length",
        "terminated": "terminated",
        "truncated": "truncated",
        "workers": "worker",
        "wall_times": "wall_time_s",
    }
    facts: Fields = {field: np.array(decode(episodes[name])) for field, name in names.items()}
    return Chunk(
        **facts,
        rewards=np.array(decode(steps["reward"])),
        observations=leaves(steps, spaces.observation),
        actions=leaves(steps, spaces.action),
        last_observations=leaves(episodes, spaces.last_observation),
        env_infos=decode_info_table("env_info", steps, infos),
        agent_infos=decode_info_table("agent_info", steps, infos),
        episode_infos=decode_info_table("episode_info", episodes, infos),
    )


def stored_form(chunk: Chunk, env_spec: EnvSpec, features: Document) -> EpisodeBatch:
    """Return complete episodes as they would be read back from a dataset with these `features`."""
    schema = DatasetSchema.of(SpaceSchema.of(env_spec), info_columns_of(features), {})
    numbered = [(chunk, np.zeros((chunk.n_episodes, 2), np.int64))]
    steps, _ = step_table(schema, numbered)
    episodes, _ = episode_table(schema, numbered, root_seeds=[0], file=(0, 0), first_row=0)
    return EpisodeBatch.from_chunks(env_spec, [decode_chunk(schema, steps, episodes)])
