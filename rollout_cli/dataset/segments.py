"""Segments: the unit of memory, flush and commit of a dataset.

A segment is one data file and the episodes file that commits it. A flush writes the open one as a full one is written,
and a later write replaces it, from the tables that the flush wrote, exactly as a resumed process does from its files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rollout_cli.dataset.commits import SegmentId, SegmentRecord, Written
from rollout_cli.dataset.convert import Array
from rollout_cli.dataset.files import FileStore
from rollout_cli.dataset.parquet import parquet_file
from rollout_cli.dataset.schema import DatasetSchema, is_big
from rollout_cli.dataset.stats import Place, TableStats, find_anomalies, merge_stats, table_stats
from rollout_cli.dataset.tables import NumberedChunk, episode_table, step_table
from rollout_cli.episodes.chunk import Chunk, concatenate, episode_variable_bytes
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
    episodes alone. `segment_bytes`, from 1 to 1 GiB, is divided among the partitions.
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
        """Return how many of the next episodes join a segment that has `rows` rows and `nominal` bytes so far.

        `lengths` and `sizes` are the steps and nominal bytes of these episodes, int64 (N,).
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
    """The settings that all segments of a dataset share; `limits` are those of one partition."""

    files: FileStore
    root: Path
    root_seed: int
    schema: DatasetSchema
    limits: SizeLimits


@dataclass(frozen=True, slots=True)
class SegmentJob:
    """Everything that decides the files of one segment."""

    segment: SegmentId
    before: Written | None  # Its last write, whose rows come first.
    episodes: Sequence[NumberedChunk]  # The whole episodes after those; or one over the limits, whole or as its parts.
    start: int  # The first episode number that it covers.
    nominal: int  # Its nominal bytes.


def write_segment(settings: SegmentSettings, job: SegmentJob) -> Written:
    """Write the data file and the episodes file of a segment, under temporary names."""
    schema, limits, before = settings.schema, settings.limits, job.before
    chunks, first_row, dropped = job.episodes, 0, Counter[str]()
    if chunks[0][0].part is not None:
        chunks = [(concatenate([part for part, _ in chunks]), chunks[0][1])]
    if before is not None:
        first_row, dropped = before.record.steps, Counter(before.record.dropped_infos)
    file, root_seed = job.segment.file, settings.root_seed
    episodes, lost = episode_table(schema, chunks, root_seed=root_seed, file=file, first_row=first_row)
    dropped.update(lost)
    n_steps = first_row + sum(chunk.n_steps for chunk, _ in chunks)
    tables: tuple[pa.Table, pa.Table] | None = None
    if is_long := limits.is_over(n_steps, job.nominal):
        pieces = _row_groups(schema, *chunks[0], edges=limits.group_edges(n_steps, job.nominal))
    else:
        steps, lost = step_table(schema, chunks)
        if before is not None and before.tables is not None:
            steps, episodes = map(_appended, before.tables, (steps, episodes))
        tables, pieces = (steps, episodes), iter([(steps, lost)])
    data, meta = job.segment.temporary(settings.root)
    stats: list[TableStats] = []
    anomalies: dict[str, Place] = {}
    with parquet_file(settings.files, data, schema.data) as out:
        written = 0
        for table, lost in pieces:
            out.write_table(table, row_group_size=limits.group_rows)
            stats.append(table_stats(table, first_row=written))
            anomalies = find_anomalies(table, stats[-1], schema) | anomalies
            dropped.update(lost)
            written += table.num_rows
    record = _record(job, episodes, is_long=is_long, stats=merge_stats(stats), anomalies=anomalies, dropped=dropped)
    with parquet_file(settings.files, meta, schema.episodes) as out:
        out.write_table(episodes, row_group_size=limits.group_rows)
        out.add_key_value_metadata(record.footer())
    return Written(job.segment, record, data.stat().st_size + meta.stat().st_size, tables)


def _row_groups(
    schema: DatasetSchema, chunk: Chunk, ids: Array, *, edges: Sequence[int]
) -> Iterator[tuple[pa.Table, dict[str, int]]]:
    """Yield the rows of one episode up to each edge, and by column how many info values are not in them."""
    for start, stop in pairwise([0, *edges]):
        rows = chunk.rows(start, stop)
        if stop < chunk.n_steps:
            following, no = tuple(leaf[stop : stop + 1] for leaf in chunk.observations), np.zeros(1, bool)
            rows = replace(rows, last_observations=following, terminated=no, truncated=no)
        yield step_table(schema, [(rows, ids)], first_step=start)


def _record(job: SegmentJob, episodes: pa.Table, *, dropped: Mapping[str, int], **facts: Any) -> SegmentRecord:
    numbers, lengths, returns = (episodes[name].to_numpy() for name in ("episode_number", "length", "return"))
    stop = int(numbers[-1]) + 1
    return SegmentRecord(
        start=job.start,
        stop=stop,
        # Within a partition numbers rise, so a missing one was skipped.
        skipped=tuple(np.setdiff1d(np.arange(job.start, stop), numbers).tolist()),
        episodes=episodes.num_rows,
        steps=int(lengths.sum()),
        last_length=int(lengths[-1]),
        return_sum=float(returns.sum()),
        nominal=job.nominal,
        dropped_infos=dict(dropped),
        **facts,
    )


def _appended(before: pa.Table, rows: pa.Table) -> pa.Table:
    """Return rows behind others, each column contiguous but those with big rows, whose pages are cut row by row."""
    table = pa.concat_tables([before, rows])
    columns = [column if is_big(column.type) else column.combine_chunks() for column in table.columns]
    return pa.Table.from_arrays(columns, schema=before.schema)
