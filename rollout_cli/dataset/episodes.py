"""The rows of `meta/episodes`: one an episode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rollout_cli.chunk import Chunk
from rollout_cli.dataset.columns import Array
from rollout_cli.dataset.info_columns import encode_infos
from rollout_cli.dataset.schema import DatasetSchema
from rollout_cli.infos import concatenate_tables


@dataclass(frozen=True, slots=True)
class EpisodeFacts:
    """What is recorded of some episodes beside their steps.

    Attributes:
        chunk: Their own columns; its step columns are not looked at.
        ids: Episode ids, int64 (N,).
        lengths: Steps of the whole episodes, int64 (N,).
        returns: Sums of their rewards, float64 (N,).
        rows: Their first rows in the data file, int64 (N,).
    """

    chunk: Chunk
    ids: Array
    lengths: Array
    returns: Array
    rows: Array


def episode_returns(rewards: Array, lengths: Array) -> Array:
    """Return each episode's sum of rewards, float64 (N,): always the same bits for the same rewards."""
    starts = np.cumsum(lengths) - lengths
    # Not `np.sum`: it adds unaligned values (views of a message) block by block, which rounds otherwise; measured.
    return np.asarray(np.add.reduceat(rewards, starts))


def encode_episodes(
    schema: DatasetSchema, facts: Sequence[EpisodeFacts], *, root_seed: int, place: tuple[int, int]
) -> tuple[pa.Table, dict[str, int]]:
    """Return the rows of some episodes, and by column how many info values found no place.

    Args:
        schema: The dataset's schema.
        facts: The episodes.
        root_seed: The run's root seed.
        place: Chunk index and file index of their data file.
    """
    chunks = [fact.chunk for fact in facts]
    count = sum(len(fact.ids) for fact in facts)
    infos, lost = encode_infos(schema.infos.episode, concatenate_tables([chunk.episode_infos for chunk in chunks]))
    last = [np.concatenate(leaf) for leaf in zip(*(chunk.last_observations for chunk in chunks), strict=True)]
    columns = [
        np.concatenate([fact.ids for fact in facts]),
        np.concatenate([chunk.numbers for chunk in chunks]),
        np.full(count, root_seed, np.int64),
        np.concatenate([fact.lengths for fact in facts]),
        np.concatenate([fact.returns for fact in facts]),
        *(np.concatenate([getattr(chunk, name) for chunk in chunks]) for name in _OWN),
        np.full(count, place[0], np.int32),
        np.full(count, place[1], np.int32),
        np.concatenate([fact.rows for fact in facts]),
    ]
    names = schema.episodes.names[: len(columns)]
    arrays = [pa.array(values, schema.episodes.field(name).type) for name, values in zip(names, columns, strict=True)]
    arrays += [
        column.encode(values)
        for column, values in zip(schema.spaces.last_observation, last, strict=True)
        if column.stored
    ]
    table = pa.Table.from_arrays([*arrays, *infos], schema=schema.episodes)
    return table, {f"episode_info.{key}": number for key, number in lost.items()}


_OWN = ("terminated", "truncated", "seeds", "workers", "wall_times")
