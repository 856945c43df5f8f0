"""What is committed of a dataset: of each lane the longest prefix whose files agree, and where it can be continued."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rollout_cli.dataset.commits import Commit
from rollout_cli.dataset.limits import check_episode_rows, check_group, check_inside, open_parquet
from rollout_cli.dataset.shard import CommittedShard, data_path, episodes_path, shard_place
from rollout_cli.dataset.tables import reading
from rollout_cli.errors import DatasetFormatError


@dataclass(frozen=True, slots=True)
class OpenShard:
    """A committed shard that more episodes may join.

    Attributes:
        shard: What is committed of it.
        groups: How many of its row groups are full.
        rows: How many of its rows, behind those, are in the open one.
    """

    shard: CommittedShard
    groups: int
    rows: int

    def read_rows(self, root: Path, schema: pa.Schema) -> list[pa.Table]:
        """Return the rows of the open row group as a table; none where it has none.

        Raises:
            DatasetFormatError: If the file does not hold them, or they would take too much memory.
        """
        if not self.rows:
            return []
        path = data_path(root, self.shard.place)
        with reading(path):
            file = open_parquet(root, path)
            check_group(path, file, self.groups)
            # What follows them in their row group belongs to no committed episode.
            table = file.read_row_group(self.groups).slice(0, self.rows)
        return [pa.Table.from_arrays(table.combine_chunks().columns, schema=schema)]


@dataclass(frozen=True, slots=True)
class CommittedLane:
    """What is committed of one lane.

    Attributes:
        full: Its shards that are full.
        open: The one behind them, if there is one.
        last: What the last commit states; None where there is no commit.
        episodes: Episodes in all of them.
        steps: Their steps.
        last_length: Steps of the last one; 0 where there is none.
        return_sum: The sum of their returns.
        skipped: Numbers of episodes that were left out.
    """

    full: tuple[CommittedShard, ...]
    open: OpenShard | None
    last: Commit | None
    episodes: int
    steps: int
    last_length: int
    return_sum: float
    skipped: tuple[int, ...]

    @property
    def shards(self) -> tuple[CommittedShard, ...]:
        """Return all its shards."""
        return self.full if self.open is None else (*self.full, self.open.shard)


@dataclass(frozen=True, slots=True)
class Committed:
    """What is committed of a dataset.

    Attributes:
        info: Its info.json.
        lanes: Of each lane.
        stale: Files that no commit speaks of: temporary ones, and what was put in place ahead of a commit.
    """

    info: Mapping[str, Any]
    lanes: tuple[CommittedLane, ...]
    stale: tuple[Path, ...]

    @property
    def shards(self) -> list[CommittedShard]:
        """Return the shards of all lanes."""
        return [shard for lane in self.lanes for shard in lane.shards]

    @property
    def episodes(self) -> int:
        """Return how many episodes there are."""
        return sum(lane.episodes for lane in self.lanes)

    @property
    def steps(self) -> int:
        """Return how many steps they have."""
        return sum(lane.steps for lane in self.lanes)

    @property
    def return_sum(self) -> float:
        """Return the sum of their returns."""
        return sum(lane.return_sum for lane in self.lanes)

    @property
    def skipped(self) -> list[int]:
        """Return the numbers of the episodes that were left out."""
        return [number for lane in self.lanes for number in lane.skipped]


def read_committed(root: Path, info: Mapping[str, Any]) -> Committed:
    """Return what is committed of the dataset in `root`, whose info.json is `info`.

    Raises:
        DatasetFormatError: If files contradict each other in a way that no kill leaves behind.
        StorageError: If they cannot be read.
    """
    n_lanes = int(info["lanes"])
    found = [list(_shards(root, n_lanes, lane)) for lane in range(n_lanes)]
    places = {shard.shard.place for lane in found for shard in lane}
    return Committed(info, tuple(map(_lane, found)), tuple(_stale(root, places)))


@dataclass(frozen=True, slots=True)
class _Found:
    """One shard with what its files state."""

    shard: CommittedShard
    commit: Commit
    lengths: Sequence[int]
    return_sum: float
    groups: int


def _shards(root: Path, n_lanes: int, lane: int) -> Iterator[_Found]:
    """Give the shards of a lane, in order, as far as their files agree."""
    for number in count():
        place = shard_place(n_lanes, lane, number)
        if not episodes_path(root, place).exists():
            return
        for path in (data_path(root, place), episodes_path(root, place)):
            check_inside(root, path)  # A link is no file that a kill left half written, which may be left out.
        try:
            found = _read(root, place)
        except DatasetFormatError as error:
            if episodes_path(root, shard_place(n_lanes, lane, number + 1)).exists():
                raise DatasetFormatError(
                    f"{error.message}, and committed episodes lie behind it",
                    hint=f"restore that file, or keep what lies before it: rollout repair {root}",
                ) from error
            return
        if not found.lengths:
            return
        yield found
        if found.commit.open is not None:
            return


def _read(root: Path, place: tuple[int, int]) -> _Found:
    data, episodes = data_path(root, place), episodes_path(root, place)
    with reading(episodes):
        file = open_parquet(root, episodes)
        check_episode_rows(episodes, file.metadata)
        table = file.read(columns=["length", "return"])
    try:
        commit = Commit.from_footer(file.metadata.metadata or {})
    except ValueError as error:
        raise DatasetFormatError(f"{episodes} is no episodes file of ours: {error}") from error
    with reading(data):
        metadata = open_parquet(root, data).metadata
    lengths = table["length"].to_pylist()
    steps = sum(lengths)
    if metadata.num_rows < steps:
        raise DatasetFormatError(f"{data} has {metadata.num_rows} rows, but {episodes.name} states {steps}")
    size = data.stat().st_size + episodes.stat().st_size
    full_rows = steps - (commit.open.rows if commit.open else 0)
    ends = np.cumsum([metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)])
    groups = int(np.searchsorted(ends, full_rows, side="right"))
    if full_rows != (int(ends[groups - 1]) if groups else 0):
        raise DatasetFormatError(f"{data} has row groups other than {episodes.name} states")
    shard = CommittedShard(place, len(lengths), steps, size)
    return _Found(shard, commit, lengths, float(table["return"].to_numpy().sum()), groups)


def _lane(found: Sequence[_Found]) -> CommittedLane:
    last = found[-1] if found else None
    ended = last.commit.open if last else None
    return CommittedLane(
        full=tuple(shard.shard for shard in (found[:-1] if ended else found)),
        open=OpenShard(last.shard, last.groups, ended.rows) if last and ended else None,
        last=last.commit if last else None,
        episodes=sum(shard.shard.episodes for shard in found),
        steps=sum(shard.shard.steps for shard in found),
        last_length=last.lengths[-1] if last else 0,
        return_sum=sum(shard.return_sum for shard in found),
        skipped=tuple(number for shard in found for number in shard.commit.skipped),
    )


def _stale(root: Path, places: Iterable[tuple[int, int]]) -> Iterator[Path]:
    kept = {path(root, place) for place in places for path in (data_path, episodes_path)}
    for folder in (root / "data", root / "meta" / "episodes"):
        yield from sorted(path for path in folder.glob("chunk-*/file-*.parquet") if path not in kept)
    for folder in (root / "data", root / "meta"):
        yield from sorted(folder.rglob(".*.tmp"))
    yield from root.glob(".*.tmp")
