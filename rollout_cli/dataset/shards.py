"""LaneShards: the shards of one lane, one after another; row groups are encoded into the open one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from rollout_cli.dataset.commits import Commit
from rollout_cli.dataset.committed import CommittedLane
from rollout_cli.dataset.copying import row_groups
from rollout_cli.dataset.episodes import EpisodeFacts, EpisodeGathering, encode_episodes
from rollout_cli.dataset.files import FileStore
from rollout_cli.dataset.schema import DatasetSchema
from rollout_cli.dataset.shard import CommittedShard, Place, Shard, data_path
from rollout_cli.dataset.stats import TableStats
from rollout_cli.dataset.steps import Piece, encode_steps


@dataclass(frozen=True, slots=True)
class ShardSetting:
    """What the shards of all lanes of a dataset share.

    Attributes:
        files: Where they are written.
        root: The dataset's folder.
        root_seed: The run's root seed.
        schema: The dataset's schema.
        committed: Called with each shard once it is in place.
        lost: Called with the info values, by column, that are not in the dataset.
    """

    files: FileStore
    root: Path
    root_seed: int
    schema: DatasetSchema
    committed: Callable[[CommittedShard], None]
    lost: Callable[[Mapping[str, int]], None]


class LaneShards:
    """Writes the row groups of one lane, in order.

    A row group that a flush has committed is open still: its rows are held, encoded, until it is full. The file that
    holds it is then written anew, from its full row groups on.

    An encoder calls all verbs but `discard`; nothing else may be called before it has finished or stopped.

    Args:
        setting: What all lanes share.
        place: Gives chunk index and file index of the lane's first, second, … shard.
    """

    def __init__(self, setting: ShardSetting, place: Callable[[int], Place]) -> None:
        self.stats = TableStats()
        self._setting = setting
        self._place = place
        self._shard: Shard | None = None
        self._shards = 0
        # Of the open shard's version that is in place: how many row groups are full; None where it has none.
        self._full_groups: int | None = None
        self._groups = 0
        self._held: list[pa.Table] = []
        # Episodes of the open shard that are not in its episodes file yet.
        self._episodes = EpisodeGathering()

    def restore(self, lane: CommittedLane) -> None:
        """Go on after what is committed of the lane, and count it."""
        root, schema = self._setting.root, self._setting.schema.data
        for shard in lane.full:
            self._count(row_groups(root, data_path(root, shard.place), schema))
        self._shards = len(lane.full)
        if lane.open is not None:
            self._full_groups = lane.open.groups
            path = data_path(root, lane.open.shard.place)
            self._count(row_groups(root, path, schema, self._full_groups))
            self._held = lane.open.read_rows(root, schema)

    def write(self, pieces: Sequence[Piece], facts: Sequence[EpisodeFacts]) -> None:
        """Encode a row group into the open shard.

        Args:
            pieces: Its rows, behind those that are held.
            facts: The episodes that end in it and are not committed.
        """
        table = self._with_held(pieces)
        shard = self._open_shard()
        shard.write_steps(table)
        self._groups += 1
        self._held = []
        self.stats.update(table)
        self._episodes.add(facts)
        if self._episodes.is_full:
            self._write_episodes(shard)

    def commit(self, commit: Commit) -> None:
        """Put the open shard in place, full.

        Args:
            commit: What it settles.
        """
        self._publish(commit)
        self._full_groups, self._groups = None, 0
        self._shards += 1

    def flush(self, pieces: Sequence[Piece], facts: Sequence[EpisodeFacts], commit: Commit) -> None:
        """Put the open shard in place as it is; its row group stays open.

        Args:
            pieces: The rows that came to the open row group since the last flush.
            facts: The episodes that end with these rows.
            commit: What is settled.
        """
        shard = self._open_shard()
        if pieces or self._held:
            table = self._with_held(pieces)
            shard.write_steps(table)
            self._held = [table]
        self._episodes.add(facts)
        self._publish(commit)
        self._full_groups = self._groups

    def reopen(self) -> None:
        """Begin the next version of the shard that was flushed."""
        self._open_shard()

    def finish(self) -> None:
        """Count what is held: no row will be added to the lane."""
        self._count(self._held)
        self._held = []
        self.discard()  # A version that was begun after the last flush.

    def discard(self) -> None:
        """Throw away what was not committed."""
        if self._shard is not None:
            shard, self._shard = self._shard, None
            shard.discard()

    def _count(self, tables: Iterable[pa.Table]) -> None:
        for table in tables:
            self.stats.update(table)

    def _with_held(self, pieces: Sequence[Piece]) -> pa.Table:
        if not pieces:
            (table,) = self._held
            return table
        table, lost = encode_steps(self._setting.schema, pieces)
        self._setting.lost(lost)
        return pa.concat_tables([*self._held, table]).combine_chunks() if self._held else table

    def _publish(self, commit: Commit) -> None:
        shard = self._open_shard()
        self._write_episodes(shard)
        committed = shard.commit(commit)
        self._shard = None
        self._setting.committed(committed)

    def _write_episodes(self, shard: Shard) -> None:
        rows = self._episodes.take()
        if rows is None:
            return
        table, lost = encode_episodes(
            self._setting.schema,
            rows,
            root_seed=self._setting.root_seed,
            place=self._place(self._shards),
            first_row=shard.steps,
        )
        shard.write_episodes(table)
        self._setting.lost(lost)

    def _open_shard(self) -> Shard:
        if self._shard is None:
            shard = (self._setting.files, self._setting.root, self._place(self._shards), self._setting.schema)
            if self._full_groups is None:
                self._shard = Shard(*shard)
            else:
                self._shard = Shard.continuing(*shard, self._full_groups)
            self._groups = self._full_groups or 0
        return self._shard
