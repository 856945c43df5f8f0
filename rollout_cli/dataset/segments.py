"""Segments: a dataset's unit of memory, flush and commit, and the cutting of a partition into segments.

A segment is one data file and the episodes file that commits it. A flush writes the open segment like a full
one. A later write reads it back, exactly as a resumed process does, and replaces it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from rollout_cli.dataset.commits import SegmentRecord, Written, counted, read_tables
from rollout_cli.dataset.convert import Array
from rollout_cli.dataset.layout import SegmentId, file_origin
from rollout_cli.dataset.parquet import MEMORY_HINT, parquet_file
from rollout_cli.dataset.schema import DatasetSchema, is_big
from rollout_cli.dataset.stats import Place, find_anomalies, merge_stats, table_stats
from rollout_cli.dataset.store import FileStore
from rollout_cli.dataset.tables import Encoded, NumberedChunk, episode_table, step_table
from rollout_cli.episodes.chunk import AnyChunk, concatenate
from rollout_cli.errors import StorageError, UsageError

MOST_SEGMENT_BYTES = 1 << 30
LEAST_SHARE = 4 << 20  # Minimum nominal bytes of a segment of each of several partitions.
GROUP_BYTES = 64 << 20  # Nominal bytes of a row group of an episode with a separate segment.


@dataclass(frozen=True, slots=True)
class SizeLimits:
    """The maximum rows and nominal bytes of a segment, and the rows of its row groups.

    A segment ends before the episode that would exceed them, and the counters restart at zero; cuts depend
    only on the episodes. `segment_bytes`, from 1 to 1 GiB, is divided among the partitions.
    """

    segment_rows: int = 1_048_576
    segment_bytes: int = 128 << 20
    group_rows: int = 131_072

    def __post_init__(self) -> None:
        if not 0 < self.segment_bytes <= MOST_SEGMENT_BYTES:
            raise UsageError(
                f"segment_bytes is {self.segment_bytes:,}, expected 1 to {MOST_SEGMENT_BYTES:,}",
                code="segment-size",
                hint="pass a size that fits in memory: a segment is held in memory until it is written",
            )
        if (rows := min(self.segment_rows, self.group_rows)) < 1:
            raise UsageError(
                f"segment_rows or group_rows is {rows:,}, expected at least 1",
                code="segment-size",
                hint="pass a positive number of rows",
            )

    def for_partitions(self, n_partitions: int) -> SizeLimits:
        """Return the limits of one of `n_partitions` partitions."""
        share = max(self.segment_bytes // n_partitions, LEAST_SHARE)
        return replace(self, segment_bytes=min(share, self.segment_bytes))

    def count_fitting(self, lengths: Array, sizes: Array, *, rows: int, nominal: int) -> int:
        """Return the number of episodes that fit in a segment with `rows` and `nominal` bytes.

        `lengths` and `sizes` of the episodes are int64 (N,).
        """
        by_rows = np.searchsorted(np.cumsum(lengths), self.segment_rows - rows, side="right")
        by_bytes = np.searchsorted(np.cumsum(sizes), self.segment_bytes - nominal, side="right")
        return int(min(by_rows, by_bytes))

    def is_over(self, length: int, nominal: int) -> bool:
        """Return True if an episode, or a segment, exceeds the limits."""
        return length > self.segment_rows or nominal > self.segment_bytes

    def group_edges(self, length: int, nominal: int) -> list[int]:
        """Return the end steps of the row groups of a long episode, rising to `length`."""
        groups = min(length, max(-(-length // self.group_rows), -(-nominal // GROUP_BYTES)))
        return [length * (at + 1) // groups for at in range(groups)]


@dataclass(frozen=True, slots=True)
class SegmentSettings:
    """The settings that all segments of a dataset share; `limits` are those of one partition."""

    files: FileStore
    root: Path
    root_seeds: tuple[int | None, ...]  # Of the dataset's sources.
    run: str | None  # The fingerprint in the footers of the files.
    schema: DatasetSchema
    limits: SizeLimits
    order: str  # The column whose ranges the segments cover.


@dataclass(frozen=True, slots=True)
class SegmentJob:
    """The complete input for the files of one segment."""

    segment: SegmentId
    before: SegmentRecord | None  # The record of the last write, whose rows come first.
    episodes: Sequence[tuple[AnyChunk, Array]]  # The episodes after those of `before`, with their labels.
    start: int  # The first episode number (or id) of the segment.
    nominal: int  # Nominal bytes of the segment.


def write_segment(settings: SegmentSettings, job: SegmentJob) -> Written:
    """Write the data file and the episodes file of a segment, under temporary names."""
    schema = settings.schema
    limits = settings.limits
    before = job.before
    chunks = [(chunk.load(), labels) for chunk, labels in job.episodes]
    first_row = 0
    dropped = Counter[str]()
    if before is not None:
        first_row = before.steps
        dropped = Counter(before.dropped_infos)
    seeds = settings.root_seeds
    file = job.segment.file
    episodes, lost = episode_table(schema, chunks, root_seeds=seeds, file=file, first_row=first_row)
    dropped.update(lost)
    n_steps = first_row + sum(chunk.n_steps for chunk, _ in chunks)
    if is_long := limits.is_over(n_steps, job.nominal):
        pieces = _row_groups(schema, chunks, edges=limits.group_edges(n_steps, job.nominal))
    else:
        steps, lost = step_table(schema, chunks)
        if before is not None:
            earlier = read_tables(settings.root, schema, job.segment, before)
            steps, episodes = map(_appended, earlier, (steps, episodes))
        pieces = iter([(steps, lost)])
    origin = file_origin(settings.run, job.segment.partition, episodes[settings.order][0].as_py())
    data, meta = job.segment.temporary(settings.root)
    stats = []
    anomalies: dict[str, Place] = {}
    with parquet_file(settings.files, data, schema.data) as out:
        written = 0
        for table, lost in pieces:
            out.write_table(table, row_group_size=limits.group_rows)
            stats.append(table_stats(table, first_row=written))
            anomalies = find_anomalies(table, stats[-1], schema) | anomalies
            dropped.update(lost)
            written += table.num_rows
        out.add_key_value_metadata(origin)
    last = [column.name for column in schema.spaces.last_observation if column.stored]
    anomalies |= find_anomalies(episodes, table_stats(episodes.select(last)), schema)
    record = SegmentRecord(
        **counted(job.start, episodes, settings.order),
        nominal=job.nominal,
        is_long=is_long,
        stats=merge_stats(stats),
        anomalies=anomalies,
        dropped_infos=dict(dropped),
    )
    with parquet_file(settings.files, meta, schema.episodes) as out:
        out.write_table(episodes, row_group_size=limits.group_rows)
        out.add_key_value_metadata({**record.footer(), **origin})
    with settings.files.operation("stat", data):
        sizes = data.stat().st_size, meta.stat().st_size
    return Written(job.segment, record, *sizes)


def _row_groups(
    schema: DatasetSchema, episode: Sequence[NumberedChunk], *, edges: Sequence[int]
) -> Iterator[Encoded]:
    """Yield the rows of one episode up to each edge, and the number of dropped info values by column."""
    chunk = concatenate([chunk for chunk, _ in episode])
    labels = episode[0][1]
    for start, stop in pairwise([0, *edges]):
        yield step_table(schema, [(chunk.rows(start, stop), labels)], first_step=start)


def _appended(before: pa.Table, rows: pa.Table) -> pa.Table:
    """Append rows to a table, each column contiguous: a Parquet page ends at the end of a piece.

    Columns of big rows, whose pages are cut row by row, stay in pieces.
    """
    table = pa.concat_tables([before, rows])
    columns = [column if is_big(column.type) else column.combine_chunks() for column in table.columns]
    return pa.Table.from_arrays(columns, schema=rows.schema)


class WriteQueue:
    """Writes and commits segments in order, in one thread; a failure stops all later writes.

    `submit` waits until the last segment is written, so at most one full segment is in memory.
    """

    def __init__(self, write: Callable[[SegmentJob], Written]) -> None:
        self.failure: BaseException | None = None
        self._write = write
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="rollout-writer")
        self._last: Future[Written] | None = None

    def submit(self, job: SegmentJob) -> Future[Written]:
        """Write a segment after the last one, which this waits for; raise the error of a failed write."""
        self.wait()
        self._last = self._executor.submit(self._run, job)
        return self._last

    def wait(self) -> None:
        """Wait for the last write; raise the error of a failed write."""
        if self._last is not None:
            wait([self._last])
        self.check()

    def check(self) -> None:
        """Raise the error of the failed write, if any."""
        if self.failure is not None:
            raise self.failure

    def stop(self, *, finish: bool = False) -> None:
        """Wait for the running write, or with `finish` for all; later writes are refused."""
        self._executor.shutdown(cancel_futures=not finish)

    def _run(self, job: SegmentJob) -> Written:
        self.check()
        try:
            return self._write(job)
        except MemoryError as error:
            self.failure = StorageError(
                f"out of memory while writing a segment: {error}",
                code="out-of-memory",
                hint=MEMORY_HINT,
            )
            raise self.failure from error
        except BaseException as error:
            self.failure = error
            raise


class Partition:
    """Cuts the chunks of one partition into segments, with the open segment in memory.

    A new partition starts with `segment` and `first_number` (None for the number of the first episode that
    arrives). An existing one continues after the `committed` segments.
    """

    def __init__(
        self,
        schema: DatasetSchema,
        limits: SizeLimits,
        queue: WriteQueue,
        segment: SegmentId,
        *,
        first_number: int | None,
        by_id: bool = False,
        committed: Sequence[Written] = (),
    ) -> None:
        self._schema = schema
        self._limits = limits
        self._queue = queue
        self._by_id = by_id
        self._segment = segment
        # The range of numbers of the open segment; None before the first episode if `first_number` is None.
        self._start = self._next = first_number
        # The open segment: its total rows and bytes, its last write, and the episodes after that write.
        self._rows = self._nominal = 0
        self._before: SegmentRecord | Future[Written] | None = None
        self._episodes: list[tuple[AnyChunk, Array]] = []
        if committed:
            last = committed[-1]
            self._segment = last.segment
            self._start = last.record.start
            self._next = last.record.stop
            self._rows = last.record.steps
            self._nominal = last.record.nominal
            self._before = last.record
            if last.record.is_long:
                self._next_segment()

    def write(self, chunk: AnyChunk, labels: Array) -> None:
        """Add the next episodes, with their labels."""
        lengths = chunk.lengths
        schema = self._schema
        at = 0
        numbers = labels[:, 0] if self._by_id else chunk.numbers
        # Sizes depend only on the episodes, not on the boundaries of chunks or on compression.
        sizes = lengths * schema.step_bytes + chunk.variable_bytes + schema.episode_bytes
        while at < len(lengths):
            fitting = self._limits.count_fitting(
                lengths[at:], sizes[at:], rows=self._rows, nominal=self._nominal
            )
            if not fitting and self._rows:
                self._next_segment()
                continue
            stop = at + max(fitting, 1)
            if self._start is None:
                self._start = int(numbers[at])
            self._next = int(numbers[stop - 1]) + 1
            self._episodes.append((chunk.episodes(at, stop), labels[at:stop]))
            self._rows += int(lengths[at:stop].sum())
            self._nominal += int(sizes[at:stop].sum())
            at = stop
            if not fitting:  # An episode over the limits gets a separate segment.
                self._next_segment()
                self._queue.wait()  # Two of these might not fit into memory.

    def flush(self) -> None:
        """Commit all complete episodes that are not committed yet."""
        if self._episodes:
            # The last write ended long ago, unless flushes are frequent.
            before = self._before.result().record if isinstance(self._before, Future) else self._before
            job = SegmentJob(self._segment, before, self._episodes, self._start or 0, self._nominal)
            self._episodes = []
            self._before = self._queue.submit(job)

    def _next_segment(self) -> None:
        """End the open segment, and start the next one."""
        self.flush()
        self._segment = replace(self._segment, number=self._segment.number + 1)
        self._start = self._next
        self._rows = self._nominal = 0
        self._before = None
