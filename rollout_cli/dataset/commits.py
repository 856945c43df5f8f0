"""The commit record: the footer of each episodes file, and everything that is committed of a dataset."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from rollout_cli.dataset.convert import Array
from rollout_cli.dataset.layout import SegmentId, check_origin, file_origin, fingerprint_of, segment_files
from rollout_cli.dataset.parquet import check_table, open_parquet, reading
from rollout_cli.dataset.schema import DatasetSchema
from rollout_cli.dataset.stats import Place, TableStats, stats_from_json, stats_to_json
from rollout_cli.dataset.store import has_rename
from rollout_cli.episodes.plain import plain_json
from rollout_cli.errors import DatasetFormatError
from rollout_cli.untrusted import shell_word

_RECORD, _STATS, _CHECKSUM = "rollout.segment", "rollout.stats", "rollout.checksum"


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """The footer of an episodes file, as docs/dataset-format.md has it, with the statistics of the steps."""

    start: int
    stop: int
    skipped: tuple[tuple[int, int], ...]  # Ranges of numbers: the first one, and one past the last.
    episodes: int
    steps: int  # The data file may have more rows, of episodes that were not committed.
    last_length: int
    return_sum: float
    nominal: int
    is_long: bool
    anomalies: Mapping[str, Place]
    dropped_infos: Mapping[str, int]
    stats: TableStats

    def footer(self) -> dict[str, str]:
        """Return the record as metadata of a Parquet file."""
        record = {name: getattr(self, name) for name in _FIELDS}
        texts = (json.dumps(plain_json(record)), json.dumps(plain_json(stats_to_json(self.stats))))
        # Parquet has checksums for pages, and none for footers.
        return {_RECORD: texts[0], _STATS: texts[1], _CHECKSUM: record_checksum(*texts)}

    @classmethod
    def from_footer(cls, metadata: Mapping[bytes, bytes]) -> SegmentRecord:
        """Return the record in a file's metadata; raise `ValueError` if there is none or it is damaged."""
        try:
            texts = [metadata[key.encode()].decode() for key in (_RECORD, _STATS)]
            if metadata[_CHECKSUM.encode()].decode() != record_checksum(*texts):
                raise ValueError("the commit record in its footer is damaged")
            record, stats = map(json.loads, texts)
            values = {name: record[name] for name in _FIELDS} | {
                "return_sum": float(record["return_sum"]),
                "skipped": tuple(map(tuple, record["skipped"])),
                "anomalies": {key: tuple(place) for key, place in record["anomalies"].items()},
            }
            return cls(stats=stats_from_json(stats), **values)
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"its footer has no commit record: {error!r}") from error


def missing_ranges(start: int, stop: int, numbers: Array) -> tuple[tuple[int, int], ...]:
    """Return the ranges that rising `numbers`, int64 (N,), leave out of those from `start` to `stop - 1`."""
    firsts, stops = np.append(start, numbers + 1), np.append(numbers, stop)
    is_gap = firsts < stops
    return tuple(zip(firsts[is_gap].tolist(), stops[is_gap].tolist(), strict=True))


_FIELDS = tuple(field.name for field in fields(SegmentRecord) if field.name != "stats")


def record_checksum(record: str, stats: str) -> str:
    """Return the checksum of the texts of a commit record."""
    return f"{zlib.crc32((record + stats).encode()):08x}"


class Written(NamedTuple):
    """A segment that was written."""

    segment: SegmentId
    record: SegmentRecord
    data_bytes: int
    episodes_bytes: int


def totals_of(segments: Sequence[Written], *names: str) -> dict[str, Any]:
    """Return the sums of fields of the records."""
    return {name: sum(getattr(segment.record, name) for segment in segments) for name in names}


class CommittedPartition(NamedTuple):
    """How far a partition is committed."""

    next_number: int  # All lower numbers of it are in the dataset, or skipped.
    steps: int = 0
    last_length: int | None = None  # Steps of the last episode; None where there is none.


@dataclass(frozen=True, slots=True)
class Committed:
    """The committed part of a dataset, with its totals."""

    info: Mapping[str, Any]
    partitions: tuple[CommittedPartition, ...]
    segments: tuple[Written, ...]  # In order.
    # Files behind these, below the root, which the writer moves aside when it resumes.
    damaged: tuple[Path, ...]
    notices: tuple[str, ...]  # One sentence for each damaged segment, with the reason.
    skipped: tuple[range, ...]  # Numbers without an episode.
    episodes: int
    steps: int
    return_sum: float

    @property
    def can_resume(self) -> bool:
        """Whether a run can be resumed from it: it has episodes, and its columns are decided."""
        return self.episodes > 0 and self.info.get("info_columns") == "decided"


def read_committed(root: Path, info: Mapping[str, Any]) -> Committed:
    """Return what is committed of the dataset in `root`, whose info.json is `info`; nothing is changed.

    `DatasetFormatError` says that a file before the last one is missing or damaged.
    """
    schema, run, n_partitions = DatasetSchema.from_info(info), fingerprint_of(info), info["partitions"]
    present = set(segment_files(root / "meta" / "episodes", n_partitions))
    if has_rename(root):  # Else a data file alone is a commit that was cut off, and the next one replaces it.
        present |= set(segment_files(root / "data", n_partitions))
    committed: list[Written] = []
    partitions: list[CommittedPartition] = []
    damaged: list[Path] = []
    notices: list[str] = []
    for partition, first in enumerate(info["first_numbers"]):
        count = max((segment.number + 1 for segment in present if segment.partition == partition), default=0)
        segments = [SegmentId(n_partitions, partition, number) for number in range(count)]
        added, damage = _read_segments(root, schema, run, segments, first)
        if damage is not None:
            damaged += [path.relative_to(root) for path in segments[-1].paths(root) if path.exists()]
            notices.append(
                f"{damage.message}: the files of this last segment are moved aside, its episodes run again"
            )
        committed += added
        if added:
            last, steps = added[-1].record, sum(segment.record.steps for segment in added)
            partitions.append(CommittedPartition(last.stop, steps, last.last_length))
        else:
            partitions.append(CommittedPartition(first or 0))
    skipped = tuple(range(*numbers) for segment in committed for numbers in segment.record.skipped)
    totals = totals_of(committed, "episodes", "steps", "return_sum")
    return Committed(
        info, tuple(partitions), tuple(committed), tuple(damaged), tuple(notices), skipped, **totals
    )


def _read_segments(
    root: Path, schema: DatasetSchema, run: str | None, segments: list[SegmentId], start: int | None
) -> tuple[list[Written], DatasetFormatError | None]:
    """Return the segments of a partition that begins with episode `start`, and the damage of the last one."""
    written: list[Written] = []
    for segment in segments:
        try:
            record = read_record(root, run, segment, start)
            sizes = [path.stat().st_size for path in segment.paths(root)]
            if segment == segments[-1] and not record.is_long:
                read_tables(root, schema, segment, record)  # Its damaged pages are found now.
        except DatasetFormatError as error:
            if segment == segments[-1]:
                return written, error
            raise DatasetFormatError(
                f"{error.message}, and later segments follow it",
                hint=f"restore that file, or keep the segments before it: rollout repair {shell_word(root)}",
            ) from error
        written.append(Written(segment, record, *sizes))
        start = record.stop
    return written, None


def read_tables(
    root: Path, schema: DatasetSchema, segment: SegmentId, record: SegmentRecord
) -> tuple[pa.Table, pa.Table]:
    """Return both tables of a segment, without rows that belong to no committed episode."""
    tables = []
    for path, kind in zip(segment.paths(root), (schema.data, schema.episodes), strict=True):
        with reading(path), open_parquet(path) as file:
            check_table(path, file, [*map(str, kind)])
            tables.append(file.read())
    return tables[0].slice(0, record.steps), tables[1]


def read_record(root: Path, run: str | None, segment: SegmentId, start: int | None = None) -> SegmentRecord:
    """Return the commit record of a segment of `run`, which begins with episode `start` if that is not None.

    `DatasetFormatError` says that a file is missing or damaged, or that the footers of both files do not
    agree.
    """
    data, episodes = segment.paths(root)
    with reading(episodes), open_parquet(episodes) as file:
        footer, rows = file.metadata.metadata or {}, file.metadata.num_rows
    try:
        record = SegmentRecord.from_footer(footer)
    except ValueError as error:
        raise DatasetFormatError(f"{episodes} is not an episodes file of this format: {error}") from error
    if start not in (None, record.start):
        raise DatasetFormatError(f"{episodes} begins with episode {record.start}, expected {start}")
    if not rows or rows != record.episodes:
        raise DatasetFormatError(f"{episodes} has {rows} rows, but its footer states {record.episodes}")
    # The first range of those that were skipped may be the segment's beginning.
    first_number = dict(record.skipped).get(record.start, record.start)
    origin = file_origin(run, segment.partition, first_number)
    check_origin(episodes, footer, origin)
    with reading(data), open_parquet(data) as file:
        rows = file.metadata.num_rows
        check_origin(data, file.metadata.metadata, origin)
    if rows < record.steps:
        raise DatasetFormatError(f"{data} has {rows} rows, but {episodes} states {record.steps}")
    return record
