"""The rows of `meta/episodes`: one an episode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rollout_cli.chunk import Chunk, value_bytes
from rollout_cli.dataset.arrays import Array, number_array
from rollout_cli.dataset.info_columns import encode_infos
from rollout_cli.dataset.schema import DatasetSchema
from rollout_cli.infos import InfoTable, concatenate_tables


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


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeRows:
    """N rows of `meta/episodes` before they are encoded, in memory of their own: nothing of their chunks is kept.

    Attributes:
        ids: Episode ids, int64 (N,).
        numbers: Episode numbers, int64 (N,).
        lengths: Steps, int64 (N,).
        returns: Sums of rewards, float64 (N,).
        terminated: As in a chunk, (N,); so are `truncated`, `seeds`, `workers` and `wall_times`.
        last: The last observations, one array a leaf, (N, *leaf.shape).
        infos: The info dictionaries of `env.reset`, N rows.
    """

    ids: Array
    numbers: Array
    lengths: Array
    returns: Array
    terminated: Array
    truncated: Array
    seeds: Array
    workers: Array
    wall_times: Array
    last: tuple[Array, ...]
    infos: InfoTable

    @classmethod
    def of(cls, facts: Sequence[EpisodeFacts]) -> EpisodeRows:
        """Return the rows of some episodes, at least one."""
        chunks = [fact.chunk for fact in facts]
        lengths = np.concatenate([fact.lengths for fact in facts])
        return cls(
            ids=np.concatenate([fact.ids for fact in facts]),
            lengths=lengths,
            returns=episode_returns(np.concatenate([part for fact in facts for part in fact.rewards]), lengths),
            last=_joined_leaves([chunk.last_observations for chunk in chunks]),
            infos=concatenate_tables([chunk.episode_infos for chunk in chunks]),
            **{name: np.concatenate([getattr(chunk, name) for chunk in chunks]) for name in ("numbers", *_OWN)},
        )

    @classmethod
    def joined(cls, rows: Sequence[EpisodeRows]) -> EpisodeRows:
        """Return all of `rows`, at least one."""
        flat = ("ids", "numbers", "lengths", "returns", *_OWN)
        return cls(
            last=_joined_leaves([one.last for one in rows]),
            infos=concatenate_tables([one.infos for one in rows]),
            **{name: np.concatenate([getattr(one, name) for one in rows]) for name in flat},
        )

    @property
    def n_bytes(self) -> int:
        """Return about how many bytes they have."""
        own = len(self.ids) * _OWN_BYTES + sum(leaf.nbytes for leaf in self.last)
        # An environment may tell as much as it likes when it is reset.
        return own + sum(int(value_bytes(column.values).sum()) for column in self.infos.columns)


_OWN = ("terminated", "truncated", "seeds", "workers", "wall_times")
_OWN_BYTES = 64


def _joined_leaves(parts: Sequence[tuple[Array, ...]]) -> tuple[Array, ...]:
    return tuple(np.concatenate(leaf) for leaf in zip(*parts, strict=True))


class EpisodeGathering:
    """Gathers rows of episodes until there are enough for a row group: each of its pages costs what many rows do."""

    def __init__(self) -> None:
        self._rows: list[EpisodeRows] = []
        self._count = self._bytes = 0

    def add(self, facts: Sequence[EpisodeFacts]) -> None:
        """Take the rows of some episodes."""
        if facts:
            rows = EpisodeRows.of(facts)
            self._rows.append(rows)
            self._count += len(rows.ids)
            self._bytes += rows.n_bytes

    @property
    def is_full(self) -> bool:
        """Return whether there are enough."""
        return self._count >= _GROUP_EPISODES or self._bytes >= _GROUP_BYTES

    def take(self) -> EpisodeRows | None:
        """Return what was gathered, which is forgotten here; None where that is nothing."""
        rows, self._rows = self._rows, []
        self._count = self._bytes = 0
        return EpisodeRows.joined(rows) if rows else None


_GROUP_EPISODES = 32_768
"""Episodes of a row group of `meta/episodes`, about, where there is no flush."""

_GROUP_BYTES = 8 << 20


def encode_episodes(
    schema: DatasetSchema, rows: EpisodeRows, *, root_seed: int, place: tuple[int, int], first_row: int
) -> tuple[pa.Table, dict[str, int]]:
    """Return the rows of some episodes as a table, and by column how many info values are not among them.

    Args:
        schema: The dataset's schema.
        rows: The episodes, whose steps follow one another in their data file.
        root_seed: The run's root seed.
        place: Chunk index and file index of their data file.
        first_row: The row of their first step in it.
    """
    count, lengths = len(rows.ids), rows.lengths
    infos, lost = encode_infos("episode_info", schema.infos.episode, [rows.infos])
    columns = [
        rows.ids,
        rows.numbers,
        np.full(count, root_seed, np.int64),
        lengths,
        rows.returns,
        *(getattr(rows, name) for name in _OWN),
        np.full(count, place[0], np.int32),
        np.full(count, place[1], np.int32),
        first_row + np.cumsum(lengths) - lengths,
    ]
    arrays = list(map(number_array, columns))
    arrays += [
        column.encode(values)
        for column, values in zip(schema.spaces.last_observation, rows.last, strict=True)
        if column.stored
    ]
    return pa.Table.from_arrays([*arrays, *infos], schema=schema.episodes), lost
