"""Segments: the unit of memory, flush and commit of a dataset.

A segment is one data file and the episodes file that commits it. A flush writes the open one as a full one is written,
and a later write replaces it, from the tables that the flush wrote, exactly as a resumed process does from its files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from rollout_cli.dataset.commits import SegmentId, SegmentRecord, Written
from rollout_cli.dataset.convert import Array
from rollout_cli.dataset.files import FileStore
from rollout_cli.dataset.parquet import TableFile
from rollout_cli.dataset.schema import DatasetSchema, is_big
from rollout_cli.dataset.stats import Place, TableStats, find_anomalies, merge_stats, table_stats
from rollout_cli.dataset.tables import NumberedChunk, episode_table, joined_leaves, step_table
from rollout_cli.episodes.chunk import Chunk, episode_variable_bytes
from rollout_cli.episodes.infos import concatenate_tables
from rollout_cli.errors import UsageError

MOST_SEGMENT_BYTES = 1 << 30
LEAST_SHARE = 4 << 20
"""Nominal bytes of a segment that each of several partitions has at least."""
GROUP_BYTES = 64 << 20
"""Nominal bytes of a row group of an episode that is a segment by itself."""


@dataclass(frozen=True, slots=True)
class SizeLimits:
    """The rows and nominal bytes that a segment may reach, and the rows of its row groups.

    A segment ends before the episode that would pass them, and then the counters start at zero, so cuts depend on the
    episodes alone. `segment_bytes` is divided among the partitions.

    Raises:
        UsageError: If `segment_bytes` is not positive, or over 1 GiB.
    """

    segment_rows: int = 1_048_576
    segment_bytes: int = 128 << 20
    group_rows: int = 131_072

    def __post_init__(self) -> None:
        if not 0 < self.segment_bytes <= MOST_SEGMENT_BYTES:
            raise UsageError(
                f"segments of {self.segment_bytes:,} bytes were asked for",
                hint=f"give a size from 1 to {MOST_SEGMENT_BYTES:,} bytes: a segment is held in memory",
            )

    def for_partitions(self, n_partitions: int) -> SizeLimits:
        """Return the limits of one of `n_partitions` partitions."""
        share = max(self.segment_bytes // n_partitions, LEAST_SHARE)
        return replace(self, segment_bytes=min(share, self.segment_bytes))

    def count_fitting(self, lengths: Array, sizes: Array, *, rows: int, nominal: int) -> int:
        """Return how many of the next episodes join a segment.

        Args:
            lengths: The steps of these episodes, int64 (N,).
            sizes: Their nominal bytes, int64 (N,).
            rows: Rows of the segment so far.
            nominal: Its nominal bytes so far.
        """
        if rows + int(lengths.sum()) <= self.segment_rows and nominal + int(sizes.sum()) <= self.segment_bytes:
            return len(lengths)
        by_rows = np.searchsorted(np.cumsum(lengths), self.segment_rows - rows, side="right")
        by_bytes = np.searchsorted(np.cumsum(sizes), self.segment_bytes - nominal, side="right")
        return int(min(by_rows, by_bytes))

    def is_over(self, length: int, nominal: int) -> bool:
        """Return whether an episode, or a segment, passes the limits."""
        return length > self.segment_rows or nominal > self.segment_bytes

    def group_edges(self, length: int, nominal: int) -> list[int]:
        """Return the steps at which the row groups of a long episode end, rising to `length`."""
        wanted = max(-(-length // self.group_rows), -(-nominal // GROUP_BYTES), 1)
        groups = min(length, wanted)
        return [length * (at + 1) // groups for at in range(groups)]


def nominal_bytes(chunk: Chunk, schema: DatasetSchema) -> Array:
    """Return the bytes of each episode before any encoding, int64 (N,); of a part, those of its whole episode.

    They depend on the episodes alone: not on how they were cut into chunks, or how well they compress.
    """
    if chunk.part is not None:
        own = chunk.part.episode_length * schema.step_bytes + chunk.part.variable_bytes
        return np.array([own + schema.episode_bytes], np.int64)
    return np.asarray(chunk.lengths * schema.step_bytes + episode_variable_bytes(chunk) + schema.episode_bytes)


@dataclass(frozen=True, slots=True)
class SegmentSettings:
    """The settings that all segments of a dataset share.

    Attributes:
        files: The disk.
        root: The dataset's folder.
        root_seed: The run's root seed.
        schema: The dataset's schema.
        limits: The limits of one partition.
        before_commit: Called when the files of a segment are written and before they get their names.
        committed: Called with each committed segment, by the thread that wrote it.
    """

    files: FileStore
    root: Path
    root_seed: int
    schema: DatasetSchema
    limits: SizeLimits
    before_commit: Callable[[], None]
    committed: Callable[[Written], None]

    def new_file(self, segment: SegmentId, kind: str) -> TableFile:
        """Return the data file (`kind` is `data`) or the episodes file (`episodes`) of a segment, to be written."""
        # In the dataset's own folder: with --overwrite, `data` and `meta` are the old dataset's until the first commit.
        path = self.root / ".{}-{:05}-{:05}.parquet.tmp".format(kind, *segment.file)
        return TableFile(self.files, path, self.schema.data if kind == "data" else self.schema.episodes)


@dataclass(frozen=True, slots=True)
class SegmentJob:
    """Everything that decides the files of one segment.

    Attributes:
        segment: Which one.
        before: Its last write, whose rows come first; None where it was not written yet.
        episodes: The whole episodes after those; empty for a `LongEpisode`.
        start: The first episode number that it covers.
        nominal: Its nominal bytes.
    """

    segment: SegmentId
    before: Written | None
    episodes: Sequence[NumberedChunk]
    start: int
    nominal: int


def write_segment(settings: SegmentSettings, job: SegmentJob) -> Written:
    """Write and commit a segment: the data file, then the episodes file, whose name commits it.

    Raises:
        StorageError: If the disk fails.
    """
    schema, before = settings.schema, job.before
    steps, dropped = step_table(schema, job.episodes)
    episodes, dropped_of_episodes = _episode_table(settings, job, job.episodes)
    dropped = _added(dropped, dropped_of_episodes)
    if before is not None and before.tables is not None:
        steps, episodes = (_appended(*pair) for pair in zip(before.tables, (steps, episodes), strict=True))
        dropped = _added(before.record.dropped_infos, dropped)
    stats = table_stats(steps)
    with settings.new_file(job.segment, "data") as data:
        data.write(steps, group_rows=settings.limits.group_rows)
        anomalies = find_anomalies(steps, stats, schema)
        written = _commit(settings, job, data, episodes, stats=stats, anomalies=anomalies, dropped=dropped)
    return replace(written, tables=(steps, episodes))


def _episode_table(
    settings: SegmentSettings, job: SegmentJob, episodes: Sequence[NumberedChunk]
) -> tuple[pa.Table, dict[str, int]]:
    first_row = 0 if job.before is None else job.before.record.steps
    root_seed, file = settings.root_seed, job.segment.file
    return episode_table(settings.schema, episodes, root_seed=root_seed, file=file, first_row=first_row)


def _appended(before: pa.Table, rows: pa.Table) -> pa.Table:
    """Return rows behind others, each column contiguous but those with big rows, whose pages are cut row by row."""
    table = pa.concat_tables([before, rows])
    columns = [column if is_big(column.type) else column.combine_chunks() for column in table.columns]
    return pa.Table.from_arrays(columns, schema=before.schema)


def _added(counts: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    return dict(Counter(counts) + Counter(more))


def _commit(
    settings: SegmentSettings,
    job: SegmentJob,
    data: TableFile,
    episodes: pa.Table,
    *,
    stats: TableStats,
    anomalies: Mapping[str, Place],
    dropped: Mapping[str, int],
) -> Written:
    """Write the episodes file, and give both files their names."""
    files, root, segment = settings.files, settings.root, job.segment
    numbers, lengths, returns = (episodes[name].to_numpy() for name in ("episode_number", "length", "return"))
    stop = int(numbers[-1]) + 1
    record = SegmentRecord(
        start=job.start,
        stop=stop,
        # Within a partition numbers rise, so a missing one was skipped.
        skipped=tuple(np.setdiff1d(np.arange(job.start, stop), numbers).tolist()),
        episodes=episodes.num_rows,
        steps=int(lengths.sum()),
        last_length=int(lengths[-1]),
        return_sum=float(returns.sum()),
        nominal=job.nominal,
        is_long=not job.episodes,
        stats=stats,
        anomalies=anomalies,
        dropped_infos=dropped,
    )
    with settings.new_file(segment, "episodes") as file:
        file.write(episodes, group_rows=settings.limits.group_rows)
        size = data.finish() + file.finish(record.footer())
        settings.before_commit()
        for written_file, target in ((data, segment.data_path(root)), (file, segment.episodes_path(root))):
            files.make_folder(target.parent)
            files.move(written_file.path, target)
    written = Written(segment, record, size)
    settings.committed(written)
    return written


class LongEpisode:
    """An episode over the limits: a segment of its own, streamed row group by row group into its data file.

    All verbs but the constructor run in the thread that writes. `ids` is the episode's id, int64 (1,), and `length` its
    steps.
    """

    def __init__(self, settings: SegmentSettings, job: SegmentJob, ids: Array, length: int) -> None:
        self._settings, self._job, self._ids, self._length = settings, job, ids, length
        self._edges = settings.limits.group_edges(length, job.nominal)
        # The parts behind the last row group, and that group's end.
        self._parts: list[Chunk] = []
        self._written = self._rows = 0
        self._rewards: list[Array] = []
        self._stats: list[TableStats] = []
        self._anomalies: dict[str, Place] = {}
        self._dropped: dict[str, int] = {}
        self._data: TableFile | None = None

    def add(self, chunk: Chunk) -> None:
        """Take the next part, or the whole episode, and write the row groups that it completes."""
        if self._data is None:
            self._data = self._settings.new_file(self._job.segment, "data")
        self._parts.append(chunk)
        # A copy: a view would keep the memory of each part until the episode ends.
        self._rewards.append(chunk.rewards.copy())
        self._rows += chunk.n_steps
        # The observation after a group's last row is in the row after it, or the episode's last observation.
        while self._edges and (self._rows > self._edges[0] or self._rows == self._length):
            self._write_group(self._data, self._edges.pop(0))

    def commit(self) -> Written:
        """Commit the segment, once all parts came."""
        assert self._data is not None
        rewards, length = np.concatenate(self._rewards), np.array([self._length], np.int64)
        facts = replace(self._parts[0], lengths=length, rewards=rewards)
        episodes, dropped = _episode_table(self._settings, self._job, [(facts, self._ids)])
        stats, dropped = merge_stats(self._stats), _added(self._dropped, dropped)
        with self._data as data:
            written = _commit(
                self._settings, self._job, data, episodes, stats=stats, anomalies=self._anomalies, dropped=dropped
            )
        self._data = None
        return written

    def discard(self) -> None:
        """Remove the file of an episode that will not be committed."""
        if self._data is not None:
            self._data.discard()

    def _write_group(self, data: TableFile, stop: int) -> None:
        """Write the rows up to step `stop`, and keep the rest."""
        chunk = _joined_rows(self._parts)
        start, schema = self._written, self._settings.schema
        rows, rest = chunk.rows(0, stop - start), chunk.rows(stop - start, chunk.n_steps)
        if stop < self._length:
            following, no = tuple(leaf[:1] for leaf in rest.observations), np.zeros(1, bool)
            rows = replace(rows, last_observations=following, terminated=no, truncated=no)
        table, dropped = step_table(schema, [(rows, self._ids)], first_step=start)
        data.write(table, group_rows=table.num_rows)
        stats = table_stats(table, first_row=start)
        self._anomalies = find_anomalies(table, stats, schema) | self._anomalies
        self._stats.append(stats)
        self._dropped = _added(self._dropped, dropped)
        self._parts, self._written = [rest], stop


def _joined_rows(parts: Sequence[Chunk]) -> Chunk:
    """Return the rows of parts of one episode as one chunk; the episode's own columns are those of the last part."""
    if len(parts) == 1:
        return replace(parts[0], part=None)
    rewards = np.concatenate([part.rewards for part in parts])
    return replace(
        parts[-1],
        part=None,
        lengths=np.array([len(rewards)], np.int64),
        observations=joined_leaves([part.observations for part in parts]),
        actions=joined_leaves([part.actions for part in parts]),
        rewards=rewards,
        env_infos=concatenate_tables([part.env_infos for part in parts]),
        agent_infos=concatenate_tables([part.agent_infos for part in parts]),
    )
