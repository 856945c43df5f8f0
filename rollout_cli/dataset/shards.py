"""LaneShards: the shards of one lane, one after another; row groups are encoded into the open one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollout_cli.dataset.episodes import EpisodeFacts, encode_episodes
from rollout_cli.dataset.files import FileStore
from rollout_cli.dataset.schema import DatasetSchema
from rollout_cli.dataset.shard import CommittedShard, Place, Shard
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

    An encoder calls `write` and `commit`; nothing else may be called before it has finished or stopped.

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

    def write(self, pieces: Sequence[Piece], facts: Sequence[EpisodeFacts]) -> None:
        """Encode a row group into the open shard.

        Args:
            pieces: Its rows.
            facts: The episodes that end in it.
        """
        shard = self._open_shard()
        table, lost = encode_steps(self._setting.schema, pieces)
        shard.write_steps(table)
        self.stats.update(table)
        self._setting.lost(lost)
        if facts:
            self._write_facts(shard, facts)

    def commit(self, settles: tuple[int, int]) -> None:
        """Put the open shard in place.

        Args:
            settles: The first episode number that it settles, and one past the last.
        """
        assert self._shard is not None
        committed = self._shard.commit(settles)
        self._shard = None
        self._shards += 1
        self._setting.committed(committed)

    def discard(self) -> None:
        """Throw away what was not committed."""
        if self._shard is not None:
            shard, self._shard = self._shard, None
            shard.discard()

    def _write_facts(self, shard: Shard, facts: Sequence[EpisodeFacts]) -> None:
        table, lost = encode_episodes(
            self._setting.schema,
            facts,
            root_seed=self._setting.root_seed,
            place=self._place(self._shards),
            first_row=shard.steps,
        )
        shard.write_episodes(table)
        self._setting.lost(lost)

    def _open_shard(self) -> Shard:
        if self._shard is None:
            place = self._place(self._shards)
            self._shard = Shard(self._setting.files, self._setting.root, place, self._setting.schema)
        return self._shard
