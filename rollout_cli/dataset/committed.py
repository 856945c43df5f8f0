"""The committed part of a dataset, from which a run can continue."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rollout_cli.dataset.commits import SegmentRecord, Written, read_tables, totals_of
from rollout_cli.dataset.layout import (
    SegmentId,
    check_origin,
    episodes_folder,
    file_origin,
    fingerprint_of,
    read_info,
    segment_files,
    started_at,
)
from rollout_cli.dataset.parquet import DAMAGED_HINT, open_parquet
from rollout_cli.dataset.record import DatasetInfo
from rollout_cli.dataset.schema import DatasetSchema
from rollout_cli.dataset.store import has_rename
from rollout_cli.dataset.verify import check_segment
from rollout_cli.errors import DatasetFormatError, StorageError
from rollout_cli.sources.untrusted import shell_word


class CommittedPartition(NamedTuple):
    """The committed range of a partition."""

    next_number: int  # All lower numbers of the partition are in the dataset, or skipped.
    steps: int = 0
    last_length: int | None = None  # Steps of the last episode; None if the partition has no episode.


@dataclass(frozen=True, slots=True)
class Committed:
    """The committed part of a dataset, with its totals."""

    info: DatasetInfo
    partitions: tuple[CommittedPartition, ...]
    segments: tuple[Written, ...]  # In order.
    # Uncommitted files, relative to the root, which the writer moves to the repair folder when it resumes.
    damaged: tuple[Path, ...]
    notices: tuple[str, ...]  # One sentence for each damaged segment, with the reason.
    skipped: tuple[range, ...]  # Numbers without an episode.
    episodes: int
    steps: int
    return_sum: float

    @property
    def can_resume(self) -> bool:
        """True if a run can resume from this part: it has episodes, and its info columns are decided."""
        return self.episodes > 0 and self.info["info_columns"] == "decided"


def read_committed(root: Path, info: DatasetInfo) -> Committed:
    """Read the committed part of the dataset in `root`, whose info.json is `info`, without changing files.

    Raises:
        DatasetFormatError: If a file before the last one is missing or damaged, or the values of the last
            one contradict its footer.
    """
    schema = DatasetSchema.from_info(info)
    n_partitions = info["partitions"]
    present = set(segment_files(episodes_folder(root), n_partitions))
    if has_rename(root):  # Else a lone data file is an interrupted commit, which the next one replaces.
        present |= set(segment_files(root / "data", n_partitions))
    committed = []
    partitions = []
    damaged = []
    notices = []
    for partition, first in enumerate(info["first_numbers"]):
        count = max((segment.number + 1 for segment in present if segment.partition == partition), default=0)
        segments = [SegmentId(n_partitions, partition, number) for number in range(count)]
        added, damage = _read_segments(root, schema, fingerprint_of(info), segments, first)
        if damage is not None:
            damaged += [path.relative_to(root) for path in segments[-1].paths(root) if path.exists()]
            notices.append(
                f"{damage.message}: its files are moved to a repair folder, and its episodes run again"
            )
        elif added and not added[-1].record.is_long:  # Its next version would have new statistics.
            check_segment(root, info, schema, added[-1])
        committed += added
        if added:
            last = added[-1].record
            steps = sum(segment.record.steps for segment in added)
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
    """Return a partition's segments from episode `start`, and the damage of its last segment, if any."""
    written: list[Written] = []
    for segment in segments:
        try:
            record = read_record(root, run, segment, start)
            sizes = [path.stat().st_size for path in segment.paths(root)]
            if segment == segments[-1] and not record.is_long:
                read_tables(root, schema, segment, record)  # Finds damaged pages now.
        except DatasetFormatError as error:
            if segment == segments[-1]:
                return written, error
            raise DatasetFormatError(
                f"{error.message}, and later segments follow it",
                code="segment-unreadable",
                hint=f"restore that file, or keep only earlier segments: rollout repair {shell_word(root)}",
            ) from error
        written.append(Written(segment, record, *sizes))
        start = record.stop
    return written, None


def read_record(root: Path, run: str | None, segment: SegmentId, start: int | None = None) -> SegmentRecord:
    """Return the commit record of a segment of `run`; its first episode must be `start`, unless that is None.

    Raises:
        DatasetFormatError: If a file is missing or damaged, or the footers of the two files disagree.
    """
    data, episodes = segment.paths(root)
    with open_parquet(episodes) as file:
        footer = file.metadata.metadata or {}
        rows = file.metadata.num_rows
    try:
        record = SegmentRecord.from_footer(footer)
    except ValueError as error:
        raise DatasetFormatError(
            f"{episodes} is not an episodes file of this format: {error}",
            code="segment-unreadable",
            hint=DAMAGED_HINT,
        ) from error
    if start not in (None, record.start):
        raise DatasetFormatError(
            f"{episodes} starts with episode {record.start}, expected {start}",
            code="segments-not-contiguous",
            hint=DAMAGED_HINT,
        )
    if not rows or rows != record.episodes:
        raise DatasetFormatError(
            f"{episodes} has {rows} rows, but its footer states {record.episodes}",
            code="segment-row-count",
            hint=DAMAGED_HINT,
        )
    # The first range of skipped numbers may be at the start of the segment.
    first_number = dict(record.skipped).get(record.start, record.start)
    origin = file_origin(run, segment.partition, first_number)
    check_origin(episodes, footer, origin)
    with open_parquet(data) as file:
        rows = file.metadata.num_rows
        check_origin(data, file.metadata.metadata, origin)
    if rows < record.steps:
        raise DatasetFormatError(
            f"{data} has {rows} rows, but {episodes} states {record.steps} steps",
            code="segment-row-count",
            hint=DAMAGED_HINT,
        )
    return record


def recoverable_part(
    path: Path, info: DatasetInfo, *, is_derived: bool, keeps_old: bool, has_committed: bool
) -> str:
    """Describe what `--resume` would find in the folder `path` after the writer of `info` failed.

    Args:
        path: The dataset's folder.
        info: The info.json of the writer.
        is_derived: True if the dataset is made from other datasets, which cannot be resumed.
        keeps_old: True if the committed episodes may belong to the dataset that it replaces.
        has_committed: True if the writer has committed episodes.
    """
    keeps_old = keeps_old and not is_derived
    continuation = "" if is_derived else "; {resume=True} continues from there"
    try:
        found = read_info(path)
        committed = read_committed(path, found)
        is_other = started_at(found) != started_at(info) and not keeps_old
        if is_other or not committed.episodes:
            old = f", and the dataset in {path} is unchanged" if is_other else ""
            return f"nothing was committed{old}"
    except DatasetFormatError as error:
        if not keeps_old and not has_committed:
            return "nothing was committed"
        if not path.exists():
            return f"{path} and its committed episodes are missing: it was removed or renamed during the run"
        return f"committed episodes were removed or changed during the run: {error.message}"
    except StorageError:
        return f"committed episodes stay in {path}{continuation}"
    count = f"{committed.episodes:,} episodes ({committed.steps:,} steps)"
    return f"{count} are safe in {path}{continuation}"
