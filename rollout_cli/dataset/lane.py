"""Lane: the episodes of one lane, in number order, cut into row groups and shards and written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rollout_cli.chunk import Chunk
from rollout_cli.dataset.columns import Array
from rollout_cli.dataset.cuts import Cut, CutLimits, Cutter, group_edges, nominal_bytes
from rollout_cli.dataset.episodes import EpisodeFacts, encode_episodes, episode_returns
from rollout_cli.dataset.files import FileStore
from rollout_cli.dataset.schema import DatasetSchema
from rollout_cli.dataset.shard import CommittedShard, Place, Shard
from rollout_cli.dataset.stats import TableStats
from rollout_cli.dataset.steps import Piece, encode_steps


@dataclass(frozen=True, slots=True)
class LaneSetting:
    """What all lanes of a dataset share.

    Attributes:
        files: Where they write.
        root: The dataset's folder.
        root_seed: The run's root seed.
        schema: The dataset's schema.
        limits: Cut limits of one lane.
        committed: Called with each shard once it is in place.
        lost: Called with the info values, by column, that found no place.
    """

    files: FileStore
    root: Path
    root_seed: int
    schema: DatasetSchema
    limits: CutLimits
    committed: Callable[[CommittedShard], None]
    lost: Callable[[dict[str, int]], None]


class Lane:
    """Writes the chunks of one lane; keeps at most an open row group and one waiting part in memory.

    Args:
        setting: What all lanes share.
        place: Gives chunk index and file index of the lane's first, second, … shard.
    """

    def __init__(self, setting: LaneSetting, place: Callable[[int], Place]) -> None:
        self.stats = TableStats()
        self._setting = setting
        self._place = place
        self._cutter = Cutter(setting.limits)
        self._shard: Shard | None = None
        self._shards = 0
        self._shard_rows = 0
        self._pieces: list[Piece] = []
        self._facts: list[EpisodeFacts] = []
        self._long = _LongEpisode()
        self._settled: int | None = None
        self._next_number = 0

    def write(self, chunk: Chunk, ids: Array) -> None:
        """Take the next episodes, or the next part of one.

        Args:
            chunk: Whole episodes in number order, or a part.
            ids: Their episode ids, int64 (N,).
        """
        if self._settled is None:
            self._settled = int(chunk.numbers[0])
        if chunk.part is None:
            self._write_whole(chunk, ids)
        else:
            self._write_part(chunk, ids)

    def finish(self) -> None:
        """Write and commit what is open; an episode whose last part never came is not part of the dataset."""
        self._close_shard()

    def discard(self) -> None:
        """Throw away what was not committed."""
        if self._shard is not None:
            shard, self._shard = self._shard, None
            shard.discard()

    def _write_whole(self, chunk: Chunk, ids: Array) -> None:
        nominal = self._nominal(chunk).tolist()
        start = 0
        for at, length in enumerate(chunk.lengths.tolist()):
            cut = self._cutter.place(length, nominal[at])
            groups = self._setting.limits.groups_needed(length, nominal[at])
            if cut is Cut.NONE and groups == 1:
                continue
            self._add_episodes(chunk, ids, start, at)
            self._cut(cut)
            start = at
            if groups > 1:
                self._add_long(chunk.episodes(at, at + 1), ids[at : at + 1], groups)
                start = at + 1
        self._add_episodes(chunk, ids, start, chunk.n_episodes)

    def _write_part(self, chunk: Chunk, ids: Array) -> None:
        """A part waits for the next one: the observation after its last row is that one's first."""
        assert chunk.part is not None
        waiting = self._long.waiting
        if waiting is not None:
            self._add_part(waiting, ids, tuple(leaf[:1] for leaf in chunk.observations))
        self._long.waiting = chunk
        if chunk.part.is_last:
            self._add_part(chunk, ids, chunk.last_observations)
            self._end_long(chunk, ids)

    def _add_part(self, chunk: Chunk, ids: Array, after: tuple[Array, ...]) -> None:
        assert chunk.part is not None
        if chunk.part.index == 0:
            length, nominal = chunk.part.episode_length, int(self._nominal(chunk)[0])
            self._cut(self._cutter.place(length, nominal))
            self._long.begin(length, self._setting.limits.groups_needed(length, nominal), self._shard_rows)
        self._add_long_rows(chunk, ids, chunk.part.first_step, after)

    def _add_long(self, chunk: Chunk, ids: Array, groups: int) -> None:
        self._long.begin(chunk.n_steps, groups, self._shard_rows)
        self._add_long_rows(chunk, ids, 0, chunk.last_observations)
        self._end_long(chunk, ids)

    def _add_long_rows(self, chunk: Chunk, ids: Array, first_step: int, after: tuple[Array, ...]) -> None:
        """Add rows of one episode, closing its row groups at their edges; the last one stays open."""
        long = self._long
        long.rewards.append(chunk.rewards)
        start = 0
        while start < chunk.n_steps:
            stop = min(long.edges[0] - first_step, chunk.n_steps)
            follows = after if stop == chunk.n_steps else tuple(leaf[stop : stop + 1] for leaf in chunk.observations)
            ends = first_step + stop == long.length
            self._add(Piece(chunk.rows(start, stop), ids, follows, first_step + start, ends))
            start = stop
            if first_step + stop == long.edges[0] and not ends:
                del long.edges[0]
                self._close_group()

    def _end_long(self, chunk: Chunk, ids: Array) -> None:
        length = np.array([self._long.length], np.int64)
        returns = episode_returns(np.concatenate(self._long.rewards), length)
        row = np.array([self._long.first_row], np.int64)
        self._add_facts(EpisodeFacts(chunk, ids, length, returns, row))
        self._long = _LongEpisode()

    def _add_episodes(self, chunk: Chunk, ids: Array, start: int, stop: int) -> None:
        if start == stop:
            return
        chunk, ids = chunk.episodes(start, stop), ids[start:stop]
        rows = self._shard_rows + np.cumsum(chunk.lengths) - chunk.lengths
        self._add(Piece(chunk, ids, chunk.last_observations))
        self._add_facts(EpisodeFacts(chunk, ids, chunk.lengths, episode_returns(chunk.rewards, chunk.lengths), rows))

    def _add(self, piece: Piece) -> None:
        self._pieces.append(piece)
        self._shard_rows += piece.chunk.n_steps

    def _add_facts(self, facts: EpisodeFacts) -> None:
        self._facts.append(facts)
        self._next_number = int(facts.chunk.numbers[-1]) + 1

    def _nominal(self, chunk: Chunk) -> Array:
        spaces = self._setting.schema.spaces
        return nominal_bytes(chunk, row_bytes=spaces.step_bytes, episode_bytes=spaces.episode_bytes)

    def _cut(self, cut: Cut) -> None:
        if cut is Cut.SHARD:
            self._close_shard()
        elif cut is Cut.GROUP:
            self._close_group()

    def _close_group(self) -> None:
        if not self._pieces:
            return
        shard = self._open_shard()
        table, lost = encode_steps(self._setting.schema, self._pieces)
        shard.write_steps(table)
        self.stats.update(table)
        self._setting.lost(lost)
        self._pieces = []
        if self._facts:
            self._write_facts(shard)

    def _write_facts(self, shard: Shard) -> None:
        table, lost = encode_episodes(
            self._setting.schema,
            self._facts,
            root_seed=self._setting.root_seed,
            place=self._place(self._shards),
        )
        shard.write_episodes(table)
        self._setting.lost(lost)
        self._facts = []

    def _open_shard(self) -> Shard:
        if self._shard is None:
            place = self._place(self._shards)
            self._shard = Shard(self._setting.files, self._setting.root, place, self._setting.schema)
        return self._shard

    def _close_shard(self) -> None:
        self._close_group()
        if self._shard is None:
            return
        assert self._settled is not None
        committed = self._shard.commit((self._settled, self._next_number))
        self._shard = None
        self._shards += 1
        self._shard_rows = 0
        self._settled = self._next_number
        self._setting.committed(committed)


class _LongEpisode:
    """The episode whose rows come one stretch after another: a split one, or one in parts."""

    def __init__(self) -> None:
        self.waiting: Chunk | None = None
        self.rewards: list[Array] = []
        self.edges: list[int] = []
        self.length = 0
        self.first_row = 0

    def begin(self, length: int, groups: int, first_row: int) -> None:
        """Take the episode's facts, known before its first row."""
        self.length = length
        self.edges = group_edges(length, groups)
        self.first_row = first_row
