"""The rows of `data`: pieces of chunks joined into flat columns, and those as an Arrow table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rollout_cli.chunk import Chunk
from rollout_cli.dataset.arrays import Array, joined, number_array
from rollout_cli.dataset.features import SpaceColumn
from rollout_cli.dataset.info_columns import encode_infos
from rollout_cli.dataset.schema import DatasetSchema
from rollout_cli.episode_batch import derive_step_types


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
    lengths = joined([chunk.lengths for chunk in chunks])
    first_steps = _first_steps(pieces)
    observations = [chunk.observations for chunk in chunks]
    env, env_lost = encode_infos("env_info", schema.infos.env, [chunk.env_infos for chunk in chunks])
    agent, agent_lost = encode_infos("agent_info", schema.infos.agent, [chunk.agent_infos for chunk in chunks])
    columns = [
        number_array(np.repeat(joined([piece.ids for piece in pieces]), lengths)),
        number_array(_step_numbers(first_steps, lengths)),
        *_encode(schema.spaces.observation, observations),
        *_encode(schema.spaces.action, [chunk.actions for chunk in chunks]),
        number_array(joined([chunk.rewards for chunk in chunks]).astype(np.float64, copy=False)),
        *map(number_array, _flags(pieces, lengths, first_steps)),
    ]
    if schema.spaces.next_observation:
        following = _shifted(_leaves(observations), _leaves([piece.after for piece in pieces]), lengths)
        columns += _encode(schema.spaces.next_observation, [following])
    return pa.Table.from_arrays([*columns, *env, *agent], schema=schema.data), env_lost | agent_lost


def _encode(columns: Sequence[SpaceColumn], parts: Sequence[tuple[Array, ...]]) -> list[pa.Array]:
    leaves = zip(*parts, strict=True)
    return [column.encode_pieces(pieces) for column, pieces in zip(columns, leaves, strict=True) if column.stored]


def _leaves(parts: Sequence[tuple[Array, ...]]) -> tuple[Array, ...]:
    return tuple(joined(leaf) for leaf in zip(*parts, strict=True))


def _first_steps(pieces: Sequence[Piece]) -> Array | None:
    """Return the step number of each episode's first row here; None where all of them begin here."""
    if not any(piece.first_step for piece in pieces):
        return None
    return np.concatenate([np.full(len(piece.ids), piece.first_step) for piece in pieces])


def _step_numbers(first_steps: Array | None, lengths: Array) -> Array:
    starts = np.cumsum(lengths) - lengths
    numbers = np.arange(int(lengths.sum()), dtype=np.int32)
    numbers -= np.repeat((starts if first_steps is None else starts - first_steps).astype(np.int32), lengths)
    return numbers


def _flags(pieces: Sequence[Piece], lengths: Array, first_steps: Array | None) -> tuple[Array, Array, Array]:
    """Return terminated, truncated and step type of each row."""
    ends = np.cumsum(lengths)
    terminated, truncated = (
        np.concatenate([own if piece.ends else own & False for piece, own in zip(pieces, flags, strict=True)])
        for flags in ([piece.chunk.terminated for piece in pieces], [piece.chunk.truncated for piece in pieces])
    )
    rows = []
    for flags in (terminated, truncated):
        rows.append(np.zeros(int(ends[-1]), bool))
        rows[-1][ends[flags] - 1] = True
    return rows[0], rows[1], derive_step_types(lengths, terminated, truncated, first_steps)


def _shifted(leaves: Sequence[Array], after: Sequence[Array], lengths: Array) -> tuple[Array, ...]:
    ends = np.cumsum(lengths) - 1
    out = []
    for leaf, last in zip(leaves, after, strict=True):
        following = np.empty_like(leaf)
        following[:-1] = leaf[1:]
        following[ends] = last
        out.append(following)
    return tuple(out)
