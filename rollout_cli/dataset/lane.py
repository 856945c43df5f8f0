"""Lane: the episodes of one lane, in number order, cut into row groups and shards and handed to an encoder."""

from __future__ import annotations

from functools import partial

import numpy as np

from rollout_cli.chunk import Chunk
from rollout_cli.dataset.columns import Array
from rollout_cli.dataset.commits import OpenEnd, Settling
from rollout_cli.dataset.committed import CommittedLane
from rollout_cli.dataset.cuts import Cut, CutLimits, CutState, Cutter, group_edges, nominal_bytes
from rollout_cli.dataset.encoding import Encoder
from rollout_cli.dataset.episodes import EpisodeFacts
from rollout_cli.dataset.schema import SpaceSchema
from rollout_cli.dataset.shards import LaneShards
from rollout_cli.dataset.steps import Piece


class Lane:
    """Cuts the chunks of one lane; keeps at most an open row group and one waiting part in memory.

    It looks at nothing but lengths and nominal bytes, of all episodes of a chunk at once: all else is done a row group
    at a time, by the encoder.

    Args:
        shards: Where its row groups go.
        encoder: Who encodes them.
        spaces: The columns of the environment's spaces.
        limits: Cut limits of one lane.
        first_number: The lane's first number; None where that is the number of its first episode.
    """

    def __init__(
        self,
        shards: LaneShards,
        encoder: Encoder,
        spaces: SpaceSchema,
        limits: CutLimits,
        first_number: int | None = None,
    ) -> None:
        self._shards = shards
        self._encoder = encoder
        self._spaces = spaces
        self._limits = limits
        self._cutter = Cutter(limits)
        self._settling = Settling(first_number)
        self._pieces: list[Piece] = []
        self._facts: list[EpisodeFacts] = []
        self._long = _LongEpisode()
        # Rows of the open row group that are committed: the encoder has them.
        self._held_rows = 0
        self._shard_is_open = False
        self._has_news = False

    def go_on(self, lane: CommittedLane) -> None:
        """Go on after what is committed of the lane."""
        if lane.last is None:
            return
        self._encoder.submit(partial(self._shards.restore, lane))
        self._settling.go_on(lane.last)
        if lane.last.open is not None:
            self._held_rows = lane.last.open.rows
            self._cutter = Cutter(self._limits, lane.last.open.cuts)
            self._shard_is_open = True

    def write(self, chunk: Chunk, ids: Array) -> None:
        """Take the next episodes, or the next part of one.

        Args:
            chunk: Whole episodes in number order, or a part.
            ids: Their episode ids, int64 (N,).
        """
        self._has_news = True
        if chunk.part is None:
            self._write_whole(chunk, ids)
        else:
            self._write_part(chunk, ids)

    def flush(self) -> None:
        """Have all that is open committed, and go on; while parts of an episode are missing, do nothing."""
        if self._has_news and not self._long.is_open:
            self._commit_open()
            self._encoder.submit(self._shards.reopen)

    def finish(self) -> None:
        """Have all that is open committed; an episode whose last part never came is not stated."""
        if self._has_news:
            self._commit_open()
        self._encoder.submit(self._shards.finish)

    def _write_whole(self, chunk: Chunk, ids: Array) -> None:
        start = 0
        for placement in self._cutter.place(chunk.lengths, self._nominal(chunk)):
            at = placement.at
            self._add_episodes(chunk, ids, start, at)
            self._cut(placement.cut)
            start = at
            if placement.groups > 1:
                self._add_long(chunk.episodes(at, at + 1), ids[at : at + 1], placement.groups)
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
            before = self._end()
            length, nominal = chunk.part.episode_length, self._nominal(chunk)
            for placement in self._cutter.place(np.array([length], np.int64), nominal):
                self._cut(placement.cut)
                before = OpenEnd(0, CutState()) if placement.cut is Cut.SHARD else before
            self._long.begin(length, self._limits.groups_needed(length, int(nominal[0])))
            self._long.before = before
        self._add_long_rows(chunk, ids, chunk.part.first_step, after)

    def _add_long(self, chunk: Chunk, ids: Array, groups: int) -> None:
        self._long.begin(chunk.n_steps, groups)
        self._add_long_rows(chunk, ids, 0, chunk.last_observations)
        self._end_long(chunk, ids)

    def _add_long_rows(self, chunk: Chunk, ids: Array, first_step: int, after: tuple[Array, ...]) -> None:
        """Add rows of one episode, closing its row groups at their edges; the last one stays open."""
        long = self._long
        # A copy: a view would keep the whole message of each part until the episode ends.
        long.rewards.append(chunk.rewards.copy())
        start = 0
        while start < chunk.n_steps:
            stop = min(long.edges[0] - first_step, chunk.n_steps)
            follows = after if stop == chunk.n_steps else tuple(leaf[stop : stop + 1] for leaf in chunk.observations)
            ends = first_step + stop == long.length
            self._pieces.append(Piece(chunk.rows(start, stop), ids, follows, first_step + start, ends))
            start = stop
            if first_step + stop == long.edges[0] and not ends:
                del long.edges[0]
                self._close_group()

    def _end_long(self, chunk: Chunk, ids: Array) -> None:
        self._add_facts(EpisodeFacts(chunk, ids, np.array([self._long.length], np.int64), tuple(self._long.rewards)))
        self._long = _LongEpisode()

    def _add_episodes(self, chunk: Chunk, ids: Array, start: int, stop: int) -> None:
        if start == stop:
            return
        chunk, ids = chunk.episodes(start, stop), ids[start:stop]
        self._pieces.append(Piece(chunk, ids, chunk.last_observations))
        self._add_facts(EpisodeFacts(chunk, ids, chunk.lengths, (chunk.rewards,)))

    def _add_facts(self, facts: EpisodeFacts) -> None:
        self._facts.append(facts)
        self._settling.add(facts.chunk.numbers)

    def _nominal(self, chunk: Chunk) -> Array:
        return nominal_bytes(chunk, row_bytes=self._spaces.step_bytes, episode_bytes=self._spaces.episode_bytes)

    def _cut(self, cut: Cut) -> None:
        if cut is Cut.SHARD:
            self._close_shard()
        elif cut is Cut.GROUP:
            self._close_group()

    def _close_group(self) -> None:
        if not (self._pieces or self._held_rows):
            return
        self._encoder.submit(partial(self._shards.write, *self._take()))
        self._held_rows = 0

    def _close_shard(self) -> None:
        self._close_group()
        if not self._shard_is_open:
            return
        self._shard_is_open = False
        self._encoder.submit(partial(self._shards.commit, self._settling.commit(None)))
        self._settling.close()

    def _commit_open(self) -> None:
        if not (self._pieces or self._shard_is_open):
            return
        end = self._end()
        commit = self._settling.commit(self._long.before or end)
        self._encoder.submit(partial(self._shards.flush, *self._take(), commit))
        self._held_rows = end.rows
        self._has_news = False

    def _end(self) -> OpenEnd:
        """Return how the shard ends here, between two episodes."""
        return OpenEnd(self._held_rows + sum(piece.chunk.n_steps for piece in self._pieces), self._cutter.state)

    def _take(self) -> tuple[list[Piece], list[EpisodeFacts]]:
        """Return what came since the last row group or flush."""
        taken = self._pieces, self._facts
        self._pieces, self._facts = [], []
        self._shard_is_open = True
        return taken


class _LongEpisode:
    """The episode whose rows come one stretch after another: a split one, or one in parts."""

    def __init__(self) -> None:
        self.waiting: Chunk | None = None
        self.rewards: list[Array] = []
        self.edges: list[int] = []
        self.length = 0
        # How the shard ended before it: all that is settled while parts of it are missing.
        self.before: OpenEnd | None = None

    @property
    def is_open(self) -> bool:
        """Return whether rows of it came, and not all of them."""
        return self.waiting is not None

    def begin(self, length: int, groups: int) -> None:
        """Take the episode's facts, known before its first row."""
        self.length = length
        self.edges = group_edges(length, groups)
