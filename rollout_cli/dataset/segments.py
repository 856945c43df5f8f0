"""Segments: the unit of memory, flush and commit of a dataset.

A segment is one data file and the episodes file that commits it. It ends before the episode that would pass its limits,
and then the counters start at zero, so cuts depend on the episodes alone. A full segment is written once and never
changes. A flush writes the open one in the same way, and a later write replaces it. After a flush the writer continues
from the tables that were written, exactly as a resumed process does from the tables that it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from rollout_cli.dataset.commits import SegmentId, SegmentRecord, Tail
from rollout_cli.dataset.convert import Array
from rollout_cli.dataset.files import FileStore
from rollout_cli.dataset.parquet import TableFile
from rollout_cli.dataset.schema import DatasetSchema, is_big
from rollout_cli.dataset.stats import Place, TableStats, find_anomalies, merge_stats, table_stats
from rollout_cli.dataset.tables import EpisodeRows, RowSlice, episode_table, step_table
from rollout_cli.episodes.chunk import Chunk, episode_variable_bytes
from rollout_cli.episodes.infos import concatenate_tables
from rollout_cli.errors import UsageError

MOST_SEGMENT_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class SizeLimits:
    """The sizes that a segment may reach.

    Attributes:
        segment_rows: Rows.
        segment_bytes: Nominal bytes, divided among the partitions.
        min_segment_bytes: The least share of a partition.
        group_rows: Rows of a row group.
        group_bytes: Nominal bytes of a row group of an episode that is a segment by itself.

    Raises:
        UsageError: If `segment_bytes` is not positive, or over 1 GiB.
    """

    segment_rows: int = 1_048_576
    segment_bytes: int = 128 << 20
    min_segment_bytes: int = 4 << 20
    group_rows: int = 131_072
    group_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        if not 0 < self.segment_bytes <= MOST_SEGMENT_BYTES:
            raise UsageError(
                f"segments of {self.segment_bytes:,} bytes were asked for",
                hint=f"give a size from 1 to {MOST_SEGMENT_BYTES:,} bytes: a segment is held in memory",
            )

    def for_partitions(self, n_partitions: int) -> SizeLimits:
        """Return the limits of one of `n_partitions` partitions."""
        least = min(self.min_segment_bytes, self.segment_bytes)
        return replace(self, segment_bytes=max(self.segment_bytes // n_partitions, least))

    def count_fitting(self, lengths: Array, sizes: Array, *, rows: int, nominal: int) -> int:
        """Return how many of the next episodes join a segment.

        Args:
            lengths: Their steps, int64 (N,).
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
        wanted = max(-(-length // self.group_rows), -(-nominal // self.group_bytes), 1)
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
class Written:
    """A committed segment.

    Attributes:
        record: Its commit record.
        bytes: Bytes of both files.
        tail: Its tables, to which more episodes may be added; None for an episode that is a segment by itself.
    """

    record: SegmentRecord
    bytes: int
    tail: Tail | None


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
    committed: Callable[[SegmentId, Written], None]


@dataclass(frozen=True, slots=True)
class SegmentJob:
    """Everything that decides the files of one segment.

    Attributes:
        segment: Which one.
        tail: The rows of its last write; None where it was not written yet.
        chunks: The episodes after those, at least one.
        ids: Their ids, one array a chunk.
        covered: The episode numbers that it covers, as `start` and `stop`.
        skipped: Those of them that have no episode.
        nominal: Its nominal bytes.
    """

    segment: SegmentId
    tail: Tail | None
    chunks: Sequence[Chunk]
    ids: Sequence[Array]
    covered: tuple[int, int]
    skipped: tuple[int, ...]
    nominal: int


def write_segment(settings: SegmentSettings, job: SegmentJob) -> Written:
    """Write and commit a segment: the data file, then the episodes file, whose name commits it.

    Raises:
        StorageError: If the disk fails, or there is not enough memory.
    """
    schema, tail = settings.schema, job.tail
    pairs = list(zip(job.chunks, job.ids, strict=True))
    steps, lost = step_table(schema, [RowSlice.whole(*pair) for pair in pairs])
    episodes, episodes_lost = episode_table(
        schema,
        [EpisodeRows.whole(*pair) for pair in pairs],
        root_seed=settings.root_seed,
        file=job.segment.file,
        first_row=0 if tail is None else tail.steps.num_rows,
    )
    places = _escaped_texts(schema, pairs)
    if tail is not None:
        steps, episodes = _appended(tail.steps, steps), _appended(tail.episodes, episodes)
        lost = _added(tail.dropped, lost)
        places = dict(tail.places) | {key: place for key, place in places.items() if key not in tail.places}
    stats = table_stats(steps)
    places = places | find_anomalies(steps, stats, schema)
    dropped = _added(lost, episodes_lost)
    content = _Content(episodes, stats, places, dropped, steps.num_rows)
    with TableFile(settings.files, _temporary(settings, job.segment, "data"), schema.data) as data:
        data.write(steps, group_rows=settings.limits.group_rows)
        record, size = _commit(settings, job, data, content)
    written = Written(record, size, Tail(steps, episodes, places, dropped))
    settings.committed(job.segment, written)
    return written


def _temporary(settings: SegmentSettings, segment: SegmentId, kind: str) -> Path:
    # In the dataset's own folder: with --overwrite, `data` and `meta` are the old dataset's until the first commit.
    chunk, file = segment.file
    return settings.root / f".{kind}-{chunk:05}-{file:05}.parquet.tmp"


def _appended(before: pa.Table, rows: pa.Table) -> pa.Table:
    """Return rows behind others, each column contiguous but those with big rows, whose pages are cut row by row."""
    columns = []
    for name in before.column_names:
        pieces = pa.chunked_array([*before[name].chunks, *rows[name].chunks], before[name].type)
        columns.append(pieces if is_big(pieces.type) else pieces.combine_chunks())
    return pa.Table.from_arrays(columns, schema=before.schema)


def _added(counts: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    return {key: counts.get(key, 0) + more.get(key, 0) for key in (*counts, *(key for key in more if key not in counts))}


def _escaped_texts(schema: DatasetSchema, pairs: Sequence[tuple[Chunk, Array]], first_step: int = 0) -> dict[str, Place]:
    """Return where the first text of each column is that has no UTF-8."""
    found: dict[str, Place] = {}
    for chunk, ids in pairs:
        for columns, leaves in ((schema.spaces.observation, chunk.observations), (schema.spaces.action, chunk.actions)):
            for column, values in zip(columns, leaves, strict=True):
                key = f"{column.name}:not_unicode"
                if column.leaf.kind == "text" and key not in found and (row := _first_escaped(values)) is not None:
                    starts = np.cumsum(chunk.lengths) - chunk.lengths
                    at = int(np.searchsorted(starts, row, side="right")) - 1
                    found[key] = (int(ids[at]), row - int(starts[at]) + first_step)
    return found


def _first_escaped(values: Array) -> int | None:
    texts = values.tolist()
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return next(row for row, text in enumerate(texts) if text.encode(errors="ignore").decode() != text)
    return None


@dataclass(frozen=True, slots=True)
class _Content:
    """What the commit of a segment needs beside its data file."""

    episodes: pa.Table
    stats: TableStats
    places: Mapping[str, Place]
    dropped: Mapping[str, int]
    steps: int


def _commit(
    settings: SegmentSettings, job: SegmentJob, data: TableFile, content: _Content
) -> tuple[SegmentRecord, int]:
    files, segment, episodes = settings.files, job.segment, content.episodes
    lengths, returns = episodes["length"].to_numpy(), episodes["return"].to_numpy()
    record = SegmentRecord(
        start=job.covered[0],
        stop=job.covered[1],
        skipped=job.skipped,
        episodes=episodes.num_rows,
        steps=content.steps,
        last_length=int(lengths[-1]),
        return_sum=float(returns.sum()),
        nominal=job.nominal,
        is_long=not job.chunks,
        stats=content.stats,
        places=content.places,
        dropped=content.dropped,
    )
    with TableFile(files, _temporary(settings, segment, "episodes"), settings.schema.episodes) as file:
        file.write(episodes, group_rows=settings.limits.group_rows)
        size = data.finish() + file.finish(record.footer())
        settings.before_commit()
        for source, target in (
            (data.path, segment.data_path(settings.root)),
            (file.path, segment.episodes_path(settings.root)),
        ):
            files.make_folder(target.parent)
            files.move(source, target)
    return record, size


class LongEpisode:
    """An episode over the limits: a segment of its own, streamed row group by row group into its data file.

    All verbs but the constructor run in the thread that writes.

    Args:
        settings: The settings of all segments.
        job: The segment; its `chunks` are empty.
        length: Steps of the episode.
    """

    def __init__(self, settings: SegmentSettings, job: SegmentJob, length: int) -> None:
        self._settings = settings
        self._job = job
        self._length = length
        self._edges = settings.limits.group_edges(length, job.nominal)
        self._parts: list[Chunk] = []
        self._first_row = self._rows = 0
        self._rewards: list[Array] = []
        self._stats: list[TableStats] = []
        self._places: dict[str, Place] = {}
        self._lost: dict[str, int] = {}
        self._data: TableFile | None = None

    def add(self, chunk: Chunk) -> None:
        """Take the next part, or the whole episode, and write the row groups that it completes."""
        if self._data is None:
            path = _temporary(self._settings, self._job.segment, "data")
            self._data = TableFile(self._settings.files, path, self._settings.schema.data)
        self._parts.append(chunk)
        # A copy: a view would keep the memory of each part until the episode ends.
        self._rewards.append(chunk.rewards.copy())
        self._rows += chunk.n_steps
        # The observation after a group's last row is in the row after it, or the episode's last observation.
        while self._edges and (self._rows > self._edges[0] or self._rows == self._length):
            self._write_group(self._edges.pop(0))

    def commit(self) -> Written:
        """Commit the segment, once all parts came."""
        assert self._data is not None
        job, schema = self._job, self._settings.schema
        rows = EpisodeRows(self._parts[0], job.ids[0], np.array([self._length], np.int64), tuple(self._rewards))
        episodes, lost = episode_table(
            schema, [rows], root_seed=self._settings.root_seed, file=job.segment.file, first_row=0
        )
        stats = merge_stats(self._stats)
        content = _Content(episodes, stats, self._places, _added(self._lost, lost), self._length)
        with self._data as data:
            written = Written(*_commit(self._settings, job, data, content), None)
        self._data = None
        self._settings.committed(job.segment, written)
        return written

    def discard(self) -> None:
        """Remove the file of an episode that will not be committed."""
        if self._data is not None:
            self._data.discard()

    def _write_group(self, stop: int) -> None:
        """Write the rows up to step `stop`, and keep the rest."""
        assert self._data is not None
        chunk = _joined_rows(self._parts)
        start, schema = self._first_row, self._settings.schema
        rows, rest = chunk.rows(0, stop - start), chunk.rows(stop - start, chunk.n_steps)
        ends = stop == self._length
        following = chunk.last_observations if ends else tuple(leaf[:1] for leaf in rest.observations)
        table, lost = step_table(schema, [RowSlice(rows, self._job.ids[0], following, start, ends)])
        self._data.write(table, group_rows=table.num_rows)
        stats = table_stats(table, first_row=start)
        places = _escaped_texts(schema, [(rows, self._job.ids[0])], start) | find_anomalies(table, stats, schema)
        self._places = places | self._places
        self._stats.append(stats)
        self._lost = _added(self._lost, lost)
        self._parts, self._first_row = [rest], stop


def _joined_rows(parts: Sequence[Chunk]) -> Chunk:
    """Return the rows of parts of one episode as one chunk; the episode's own columns are those of the last part."""
    if len(parts) == 1:
        return replace(parts[0], part=None)
    leaves = {
        name: tuple(np.concatenate(leaf) for leaf in zip(*(getattr(part, name) for part in parts), strict=True))
        for name in ("observations", "actions")
    }
    infos = {name: concatenate_tables([getattr(part, name) for part in parts]) for name in ("env_infos", "agent_infos")}
    rewards = np.concatenate([part.rewards for part in parts])
    lengths = np.array([len(rewards)], np.int64)
    return replace(parts[-1], part=None, rewards=rewards, lengths=lengths, **leaves, **infos)
