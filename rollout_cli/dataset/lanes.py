"""Lanes: all lanes of a dataset, once its columns are decided."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from rollout_cli.chunk import Chunk
from rollout_cli.dataset.columns import Array
from rollout_cli.dataset.committed import Committed
from rollout_cli.dataset.cuts import CutLimits
from rollout_cli.dataset.encoding import Encoder
from rollout_cli.dataset.flushing import FlushTimer
from rollout_cli.dataset.lane import Lane
from rollout_cli.dataset.shard import shard_place
from rollout_cli.dataset.shards import LaneShards, ShardSetting
from rollout_cli.dataset.stats import TableStats


class Lanes:
    """Cuts and commits the episodes of each lane; one encoder does the work of all.

    Args:
        setting: What their shards share.
        encoder: Who encodes and commits.
        limits: Cut limits of the whole dataset.
        n_lanes: How many there are.
        first_numbers: The first number of each; None for those of the first episodes that come.
    """

    def __init__(
        self,
        setting: ShardSetting,
        encoder: Encoder,
        *,
        limits: CutLimits,
        n_lanes: int,
        first_numbers: Sequence[int] | None,
    ) -> None:
        self._encoder = encoder
        self._shards = [LaneShards(setting, partial(shard_place, n_lanes, lane)) for lane in range(n_lanes)]
        of_one = limits.for_lanes(n_lanes)
        firsts: Sequence[int | None] = first_numbers or [None] * n_lanes
        self._lanes = [
            Lane(shards, encoder, setting.schema.spaces, of_one, first)
            for shards, first in zip(self._shards, firsts, strict=True)
        ]

    def go_on(self, committed: Committed) -> None:
        """Begin each lane behind what is committed of it."""
        for lane, before in zip(self._lanes, committed.lanes, strict=True):
            lane.go_on(before)

    def write(self, chunk: Chunk, ids: Array, lane: int) -> None:
        """Take the next episodes of a lane, or the next part of one, with their ids."""
        self._lanes[lane].write(chunk, ids)

    def flush(self, timer: FlushTimer) -> None:
        """Have all that is there committed, and go on."""
        timer.ask()
        self._encoder.submit(timer.begin)
        for lane in self._lanes:
            lane.flush()
        self._encoder.submit(timer.end)

    def finish(self) -> TableStats:
        """Commit all that was written, and return the statistics of it; nothing may follow."""
        for lane in self._lanes:
            lane.finish()
        self._encoder.finish()
        stats = TableStats()
        for shards in self._shards:
            stats.merge(shards.stats)
        return stats

    def discard(self) -> None:
        """Throw away what was not committed, once the encoder has stopped; all of it, even where a removal fails."""
        with ExitStack() as stack:
            for shards in self._shards:
                stack.callback(shards.discard)
