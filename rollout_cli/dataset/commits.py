"""The commit record: the footer of each episodes file, and everything that is committed of a dataset."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from rollout_cli.dataset.files import FORMAT_VERSION
from rollout_cli.dataset.parquet import open_parquet, reading
from rollout_cli.dataset.reader import table_files
from rollout_cli.dataset.schema import DatasetSchema
from rollout_cli.dataset.stats import Place, RunningStats, TableStats
from rollout_cli.errors import DatasetFormatError

FILES_PER_CHUNK = 1_000
"""Files in one chunk folder of a dataset with one partition."""

_RECORD, _STATS, _CHECKSUM = "rollout.segment", "rollout.stats", "rollout.checksum"
_FIELDS = (
    *("start", "stop", "skipped", "episodes", "steps", "last_length", "return_sum", "nominal", "is_long"),
    *("anomalies", "dropped_infos"),
)


@dataclass(frozen=True, slots=True)
class SegmentId:
    """Segment `number` of one of `n_partitions` partitions; each of several has a chunk folder of its own."""

    n_partitions: int
    partition: int
    number: int

    @property
    def file(self) -> tuple[int, int]:
        """Return chunk index and file index."""
        return divmod(self.number, FILES_PER_CHUNK) if self.n_partitions == 1 else (self.partition, self.number)

    def data_path(self, root: Path) -> Path:
        """Return the path of its data file."""
        return root / "data" / "chunk-{:05}/file-{:05}.parquet".format(*self.file)

    def episodes_path(self, root: Path) -> Path:
        """Return the path of its episodes file, whose presence commits the segment."""
        return root / "meta/episodes" / "chunk-{:05}/file-{:05}.parquet".format(*self.file)


def segment_files(folder: Path, n_partitions: int) -> dict[SegmentId, Path]:
    """Return the files of a table by segment, in the order of their rows.

    Raises:
        StorageError: If a folder cannot be read.
    """
    found = {}
    for (chunk, file), path in table_files(folder).items():
        place = (chunk, file) if n_partitions > 1 else (0, chunk * FILES_PER_CHUNK + file)
        found[SegmentId(n_partitions, *place)] = path
    return found


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """The footer of an episodes file.

    Attributes:
        start: The first episode number that the segment covers.
        stop: One past the last; the next segment of the partition starts there.
        skipped: The numbers in between that have no episode.
        episodes: How many episodes it has.
        steps: Their steps. The data file may have more rows, of episodes that were not committed.
        last_length: Steps of the last episode.
        return_sum: The sum of their returns.
        nominal: Nominal bytes, counted towards the limits of the segment.
        is_long: Whether it is an episode over the limits, to which none is added.
        stats: The statistics of its steps.
        anomalies: The first place of each anomaly, as `stats.find_anomalies` gives them.
        dropped_infos: By column, how many info values could not be stored.
    """

    start: int
    stop: int
    skipped: tuple[int, ...]
    episodes: int
    steps: int
    last_length: int
    return_sum: float
    nominal: int
    is_long: bool
    stats: TableStats
    anomalies: Mapping[str, Place]
    dropped_infos: Mapping[str, int]

    def footer(self) -> dict[str, str]:
        """Return the record as metadata of a Parquet file."""
        record = {name: getattr(self, name) for name in _FIELDS}
        record["return_sum"] = repr(self.return_sum)  # JSON has no infinity.
        texts = (json.dumps(record), json.dumps({name: one.to_json() for name, one in self.stats.items()}))
        # Parquet has checksums for pages, and none for footers.
        return {_RECORD: texts[0], _STATS: texts[1], _CHECKSUM: record_checksum(*texts)}

    @classmethod
    def from_footer(cls, metadata: Mapping[bytes, bytes]) -> SegmentRecord:
        """Return the record in a file's metadata.

        Raises:
            ValueError: If there is none, or it is damaged.
        """
        try:
            texts = [metadata[key.encode()].decode() for key in (_RECORD, _STATS)]
            if metadata[_CHECKSUM.encode()].decode() != record_checksum(*texts):
                raise ValueError("the commit record in its footer is damaged")
            record, stats = map(json.loads, texts)
            fields = {name: record[name] for name in _FIELDS}
            fields |= {"return_sum": float(record["return_sum"]), "skipped": tuple(record["skipped"])}
            fields["anomalies"] = {key: tuple(place) for key, place in record["anomalies"].items()}
            return cls(stats={name: RunningStats.from_json(one) for name, one in stats.items()}, **fields)
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"its footer has no commit record: {error!r}") from error


def record_checksum(record: str, stats: str) -> str:
    """Return the checksum of the texts of a commit record."""
    return f"{zlib.crc32((record + stats).encode()):08x}"


@dataclass(frozen=True, slots=True)
class Written:
    """A committed segment.

    Attributes:
        segment: Which one.
        record: Its commit record.
        bytes: Bytes of both files.
        tables: Its rows of `data` and `meta/episodes`, if more episodes may be added to them.
    """

    segment: SegmentId
    record: SegmentRecord
    bytes: int
    tables: tuple[pa.Table, pa.Table] | None = field(default=None, repr=False)


class _Totals:
    """The totals of some segments."""

    segments: tuple[Written, ...]

    @property
    def episodes(self) -> int:
        """Return how many episodes there are."""
        return sum(one.record.episodes for one in self.segments)

    @property
    def steps(self) -> int:
        """Return how many steps they have."""
        return sum(one.record.steps for one in self.segments)

    @property
    def return_sum(self) -> float:
        """Return the sum of their returns."""
        return sum(one.record.return_sum for one in self.segments)

    @property
    def skipped(self) -> tuple[int, ...]:
        """Return the numbers of the episodes that were skipped."""
        return tuple(number for one in self.segments for number in one.record.skipped)


@dataclass(frozen=True)
class CommittedPartition(_Totals):
    """The committed episodes of one partition.

    Attributes:
        next_number: The number of the episode to run next: all lower ones of the partition are in the dataset, or
            skipped.
        segments: Its segments; the last one with its tables.
    """

    next_number: int
    segments: tuple[Written, ...] = ()

    @property
    def last_length(self) -> int:
        """Return the steps of the last episode; 0 where there is none."""
        return self.segments[-1].record.last_length if self.segments else 0


@dataclass(frozen=True)
class Committed(_Totals):
    """The committed part of a dataset.

    Attributes:
        info: Its info.json.
        partitions: The committed episodes of each partition.
        damaged: Files behind the last segment of a partition that the writer moves aside when it resumes.
        notices: One sentence for each of those, with the reason.
    """

    info: Mapping[str, Any]
    partitions: tuple[CommittedPartition, ...]
    damaged: tuple[Path, ...] = ()
    notices: tuple[str, ...] = ()

    @property
    def segments(self) -> tuple[Written, ...]:  # type: ignore[override]
        """Return the segments of all partitions."""
        return tuple(one for partition in self.partitions for one in partition.segments)

    @property
    def can_resume(self) -> bool:
        """Return whether a run can be resumed from it: it has episodes, and its columns are decided."""
        return self.info.get("info_columns") == "decided" and self.episodes > 0


def read_committed(root: Path, info: Mapping[str, Any]) -> Committed:
    """Return what is committed of the dataset in `root`, whose info.json is `info`.

    The footers of all files are read, and the tables of each partition's last segment; nothing is changed.

    Raises:
        DatasetFormatError: If it is of an earlier format, or a file before the last one is missing or damaged.
        StorageError: If a file cannot be read.
    """
    if info.get("format_version") != FORMAT_VERSION:
        raise DatasetFormatError(
            f"{root} has the format of an earlier version, which can be read but not resumed",
            hint="collect to another --output",
        )
    schema = DatasetSchema.from_info(info)
    try:
        n_partitions = int(info["partitions"])
        firsts = info["first_numbers"] or [None] * n_partitions
    except (KeyError, TypeError, ValueError) as error:
        raise DatasetFormatError(f"info.json of {root} lacks what resuming needs: {error!r}") from error
    there: dict[int, int] = {}
    for folder in (root / "data", root / "meta" / "episodes"):
        for one in segment_files(folder, n_partitions):
            there[one.partition] = max(one.number, there.get(one.partition, -1))
    damaged: list[Path] = []
    notices: list[str] = []
    partitions = []
    for partition, first in zip(range(n_partitions), firsts, strict=True):
        segments = [SegmentId(n_partitions, partition, number) for number in range(there.get(partition, -1) + 1)]
        found, damage = _read_segments(root, schema, segments, first)
        if damage is not None:
            paths = (segments[-1].data_path(root), segments[-1].episodes_path(root))
            damaged += [path for path in paths if path.exists()]
            notices.append(f"{damage.message}: the files of this last segment are moved aside, its episodes run again")
        next_number = found[-1].record.stop if found else first or 0
        partitions.append(CommittedPartition(next_number, tuple(found)))
    return Committed(info, tuple(partitions), tuple(damaged), tuple(notices))


def _read_segments(
    root: Path, schema: DatasetSchema, segments: list[SegmentId], start: int | None
) -> tuple[list[Written], DatasetFormatError | None]:
    """Return the segments of a partition that begins with episode `start`, and the damage of the last one."""
    found: list[Written] = []
    for segment in segments:
        is_last = segment == segments[-1]
        try:
            found.append(_read_segment(root, schema, segment, start, with_tables=is_last))
        except DatasetFormatError as error:
            if not is_last:
                raise DatasetFormatError(
                    f"{error.message}, and later segments follow it",
                    hint=f"restore that file, or keep the segments before it: rollout repair {root}",
                ) from error
            if found:
                before = found[-1]
                found[-1] = _read_segment(root, schema, before.segment, before.record.start, with_tables=True)
            return found, error
        start = found[-1].record.stop
    return found, None


def _read_segment(
    root: Path, schema: DatasetSchema, segment: SegmentId, start: int | None, *, with_tables: bool
) -> Written:
    record = read_record(root, segment)
    data, episodes = segment.data_path(root), segment.episodes_path(root)
    if start is not None and record.start != start:
        raise DatasetFormatError(f"{episodes} begins with episode {record.start}, expected {start}")
    size = data.stat().st_size + episodes.stat().st_size
    tables = None
    if with_tables and not record.is_long:
        # Rows behind those that the record states belong to no committed episode.
        steps = _read_table(data, schema.data).slice(0, record.steps).combine_chunks()
        tables = (steps, _read_table(episodes, schema.episodes))
    return Written(segment, record, size, tables)


def read_record(root: Path, segment: SegmentId) -> SegmentRecord:
    """Return the commit record of a segment, checked against the footers of both files.

    Raises:
        DatasetFormatError: If a file is missing or damaged, or they do not agree.
        StorageError: If one cannot be read.
    """
    data, episodes = segment.data_path(root), segment.episodes_path(root)
    with reading(episodes), open_parquet(episodes) as file:
        footer, rows = file.metadata.metadata or {}, file.metadata.num_rows
    try:
        record = SegmentRecord.from_footer(footer)
    except ValueError as error:
        raise DatasetFormatError(f"{episodes} is not an episodes file of this format: {error}") from error
    if not rows or rows != record.episodes:
        raise DatasetFormatError(f"{episodes} has {rows} rows, but its footer states {record.episodes}")
    with reading(data), open_parquet(data) as file:
        rows = file.metadata.num_rows
    if rows < record.steps:
        raise DatasetFormatError(f"{data} has {rows} rows, but {episodes} states {record.steps}")
    return record


def _read_table(path: Path, schema: pa.Schema) -> pa.Table:
    """Return a table with contiguous columns, since a Parquet page would otherwise end where a chunk does."""
    with reading(path), open_parquet(path) as file:
        if not file.schema_arrow.equals(schema):
            raise DatasetFormatError(f"{path} has other columns than the dataset")
        return pa.Table.from_arrays([column.combine_chunks() for column in file.read().columns], schema=schema)
