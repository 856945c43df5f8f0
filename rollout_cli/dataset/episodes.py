"""The rows of `meta/episodes`: one an episode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rollout_cli.chunk import Chunk
from rollout_cli.dataset.arrays import Array, number_array
from rollout_cli.dataset.info_columns import encode_infos
from rollout_cli.dataset.schema import DatasetSchema


@dataclass(frozen=True, slots=True)
class EpisodeFacts:
    """What is recorded of some episodes beside their steps.

    Attributes:
        chunk: Their own columns; its step columns are not looked at.
        ids: Episode ids, int64 (N,).
        lengths: Steps of the whole episodes, int64 (N,).
        rewards: Their rewards, in stretches of any length, float64.
    """

    chunk: Chunk
    ids: Array
    lengths: Array
    rewards: tuple[Array, ...]


def episode_returns(rewards: Array, lengths: Array) -> Array:
    """Return each episode's sum of rewards, float64 (N,): always the same bits for the same rewards."""
    starts = np.cumsum(lengths) - lengths
    # Not `np.sum`: it adds unaligned values (views of a message) block by block, which rounds otherwise; measured.
    return np.asarray(np.add.reduceat(rewards, starts))


def encode_episodes(
    schema: DatasetSchema, facts: Sequence[EpisodeFacts], *, root_seed: int, place: tuple[int, int], first_row: int
) -> tuple[pa.Table, dict[str, int]]:
    """Return the rows of some episodes, and by column how many info values are not among them.

    Args:
        schema: The dataset's schema.
        facts: The episodes, whose steps follow one another in their data file.
        root_seed: The run's root seed.
        place: Chunk index and file index of their data file.
        first_row: The row of their first step in it.
    """
    chunks = [fact.chunk for fact in facts]
    lengths = np.concatenate([fact.lengths for fact in facts])
    rewards = np.concatenate([part for fact in facts for part in fact.rewards])
    own = [np.concatenate([getattr(chunk, name) for chunk in chunks]) for name in _OWN]
    infos, lost = encode_infos("episode_info", schema.infos.episode, [chunk.episode_infos for chunk in chunks])
    last = [np.concatenate(leaf) for leaf in zip(*(chunk.last_observations for chunk in chunks), strict=True)]
    columns = [
        np.concatenate([fact.ids for fact in facts]),
        np.concatenate([chunk.numbers for chunk in chunks]),
        np.full(len(lengths), root_seed, np.int64),
        lengths,
        episode_returns(rewards, lengths),
        *own,
        np.full(len(lengths), place[0], np.int32),
        np.full(len(lengths), place[1], np.int32),
        first_row + np.cumsum(lengths) - lengths,
    ]
    arrays = list(map(number_array, columns))
    arrays += [
        column.encode(values)
        for column, values in zip(schema.spaces.last_observation, last, strict=True)
        if column.stored
    ]
    return pa.Table.from_arrays([*arrays, *infos], schema=schema.episodes), lost


_OWN = ("terminated", "truncated", "seeds", "workers", "wall_times")
