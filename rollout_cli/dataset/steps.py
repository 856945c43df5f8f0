"""The rows of `data`: pieces of chunks joined into flat columns, and those as an Arrow table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rollout_cli.chunk import Chunk
from rollout_cli.dataset.arrays import Array, number_array
from rollout_cli.dataset.features import SpaceColumn
from rollout_cli.dataset.info_columns import encode_infos
from rollout_cli.dataset.schema import DatasetSchema
from rollout_cli.episode_batch import StepType, derive_step_types


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of a row group: whole episodes, or some rows of one.

    Attributes:
        chunk: The rows; its `lengths` count only them.
        ids: The episode ids, int64 (N,).
        after: One array a leaf, (N, *leaf.shape): the observation that followed each episode's last row here.
        first_step: The step number of the first row.
        ends: Whether the episodes end with these rows.
    """

    chunk: Chunk
    ids: Array
    after: tuple[Array, ...]
    first_step: int = 0
    ends: bool = True


def encode_steps(schema: DatasetSchema, pieces: Sequence[Piece]) -> tuple[pa.Table, dict[str, int]]:
    """Return the rows of `pieces` as a table of `schema.data`, and by column how many info values are not in it.

    Each column is one contiguous array, since Parquet's pages would otherwise end where the pieces do; but for columns
    whose rows are big, which are costly to join.
    """
    chunks = [piece.chunk for piece in pieces]
    lengths = np.concatenate([chunk.lengths for chunk in chunks])
    observations = [chunk.observations for chunk in chunks]
    env, env_lost = encode_infos("env_info", schema.infos.env, [chunk.env_infos for chunk in chunks])
    agent, agent_lost = encode_infos("agent_info", schema.infos.agent, [chunk.agent_infos for chunk in chunks])
    columns = [
        number_array(np.repeat(np.concatenate([piece.ids for piece in pieces]), lengths)),
        number_array(_step_numbers(pieces, lengths)),
        *_encode(schema.spaces.observation, observations),
        *_encode(schema.spaces.action, [chunk.actions for chunk in chunks]),
        number_array(np.concatenate([chunk.rewards for chunk in chunks]).astype(np.float64, copy=False)),
        *map(number_array, _flags(pieces, lengths)),
    ]
    if schema.spaces.next_observation:
        following = _shifted(_leaves(observations), _leaves([piece.after for piece in pieces]), lengths)
        columns += _encode(schema.spaces.next_observation, [following])
    return pa.Table.from_arrays([*columns, *env, *agent], schema=schema.data), env_lost | agent_lost


def _encode(columns: Sequence[SpaceColumn], parts: Sequence[tuple[Array, ...]]) -> list[pa.Array]:
    leaves = zip(*parts, strict=True)
    return [column.encode_pieces(pieces) for column, pieces in zip(columns, leaves, strict=True) if column.stored]


def _leaves(parts: Sequence[tuple[Array, ...]]) -> tuple[Array, ...]:
    return tuple(np.concatenate(leaf) for leaf in zip(*parts, strict=True))


def _first_steps(pieces: Sequence[Piece]) -> Array:
    return np.concatenate([np.full(len(piece.ids), piece.first_step) for piece in pieces])


def _step_numbers(pieces: Sequence[Piece], lengths: Array) -> Array:
    starts = np.cumsum(lengths) - lengths
    numbers = np.arange(int(lengths.sum()), dtype=np.int32)
    numbers += np.repeat((_first_steps(pieces) - starts).astype(np.int32), lengths)
    return numbers


def _flags(pieces: Sequence[Piece], lengths: Array) -> tuple[Array, Array, Array]:
    """Return terminated, truncated and step type of each row."""
    ends = np.cumsum(lengths)
    out = []
    for name in ("terminated", "truncated"):
        flags = np.zeros(int(ends[-1]), bool)
        flags[ends - 1] = np.concatenate([getattr(piece.chunk, name) & piece.ends for piece in pieces])
        out.append(flags)
    step_types = derive_step_types(lengths, out[0][ends - 1], out[1][ends - 1])
    # Rows from within an episode: their first one is no first step.
    resumed = (ends - lengths)[_first_steps(pieces) > 0]
    step_types[resumed[step_types[resumed] == StepType.FIRST]] = StepType.MID
    return out[0], out[1], step_types


def _shifted(leaves: Sequence[Array], after: Sequence[Array], lengths: Array) -> tuple[Array, ...]:
    ends = np.cumsum(lengths) - 1
    out = []
    for leaf, last in zip(leaves, after, strict=True):
        following = np.empty_like(leaf)
        following[:-1] = leaf[1:]
        following[ends] = last
        out.append(following)
    return tuple(out)
