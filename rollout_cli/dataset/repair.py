"""Making the valid part of a dataset the dataset: the rest is moved aside, and nothing is deleted.

Files are moved from the last one on, a commit record before its rows, and info.json is written at the end. So a repair
that was killed leaves a dataset whose info.json states more than its files hold, which the next repair completes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from rollout_cli.dataset.files import FORMAT_VERSION, FileStore, FolderLock, info_path, read_info, stats_path
from rollout_cli.dataset.metadata import render_card
from rollout_cli.dataset.stats import Place, anomalies, merge_stats, stats_document
from rollout_cli.dataset.verify import Segment, VerifyReport, totals_of, verify_dataset
from rollout_cli.errors import DatasetFormatError


@dataclass(frozen=True, slots=True)
class RepairReport:
    """The outcome of a repair, or of one that was only tried.

    Attributes:
        changed: Whether anything was, or would be, changed.
        status: The status of the dataset afterwards.
        episodes: Episodes that stay.
        steps: Their steps.
        dropped_episodes: Readable episodes that do not stay.
        aside: The folder to which files were moved; None where none was, or would be.
        moved: The files that were moved, by name.
    """

    path: Path
    changed: bool
    status: str
    episodes: int
    steps: int
    dropped_episodes: int
    aside: Path | None
    moved: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """Return the report as JSON."""
        aside = None if self.aside is None else str(self.aside)
        return asdict(self) | {"path": str(self.path), "aside": aside, "moved": list(self.moved)}


def repair_dataset(path: Path | str, *, dry_run: bool = False, files: FileStore | None = None) -> RepairReport:
    """Keep the segments of each partition before the first one at fault, and move the others aside.

    Unless all episodes that info.json states are still there, the status becomes `interrupted`. With `dry_run` nothing
    is changed, and the report says what would be.

    Raises:
        DatasetFormatError: If there is no dataset of this format, or its info.json is lost or damaged.
        DatasetLockedError: If it is being written.
        StorageError: If it cannot be read or written.
    """
    root, files = Path(path), files or FileStore()
    if read_info(root)["format_version"] != FORMAT_VERSION:
        raise DatasetFormatError(
            f"{root} has the format of an earlier version, which can be read but not repaired",
            hint="restore the damaged files from a copy; rollout_cli.load reads the other ones",
        )
    if dry_run:
        return _repair(root, None)
    lock = FolderLock(files, root)
    try:
        return _repair(root, files)
    finally:
        lock.release()


def _repair(root: Path, files: FileStore | None) -> RepairReport:
    """Repair the dataset in `root`; without `files` only report."""
    found = verify_dataset(root)
    kept, info = _valid_segments(found), found.info
    invalid = {*found.data_files, *found.episodes_files} - {one.id for one in kept}
    moved = []
    # A commit record goes before its rows, the last segment first: at each moment a dataset is left.
    for segment in sorted(invalid, key=lambda one: one.file, reverse=True):
        moved += [part[segment] for part in (found.episodes_files, found.data_files) if segment in part]
    moved += found.unexpected
    totals = totals_of(kept)
    is_whole = info["status"] == "complete" and all(info[name] == totals[name] for name in ("episodes", "steps"))
    status = "complete" if is_whole else "interrupted"
    name = f".repair-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    names = (root / (f"{name}-{number}" if number else name) for number in count())
    report = RepairReport(
        path=root,
        changed=bool(moved or found.faults or info["status"] != status),
        status=status,
        episodes=totals["episodes"],
        steps=totals["steps"],
        dropped_episodes=sum(one.episodes for one in found.segments) - totals["episodes"],
        aside=next(path for path in names if not path.exists()) if moved else None,
        moved=tuple(found.name(path) for path in moved),
    )
    if files is not None and report.changed:
        if report.aside is not None:
            _move_aside(files, root, moved, report.aside)
        _write_metadata(files, found, kept, status)
    return report


def _valid_segments(found: VerifyReport) -> list[Segment]:
    """Return the segments of each partition before its first one that is missing or at fault."""
    wrong = {fault.segment for fault in found.faults}
    kept: list[Segment] = []
    following: Counter[int] = Counter()
    for one in found.segments:
        if one.id not in wrong and one.id.number == following[one.id.partition]:
            following[one.id.partition] += 1
            kept.append(one)
    return kept


def _move_aside(files: FileStore, root: Path, moved: Sequence[Path], aside: Path) -> None:
    """Move files to `aside` under their names, with copies of info.json and stats.json."""
    copied = [path for path in (info_path(root), stats_path(root)) if path.is_file()]
    for path in (*copied, *moved):
        target = aside / path.relative_to(root)
        files.make_folder(target.parent)
        if path in copied:
            files.replace(target, path.read_bytes())
        else:
            files.move(path, target)


def _write_metadata(files: FileStore, found: VerifyReport, kept: Sequence[Segment], status: str) -> None:
    """Write stats.json, the card and info.json of the segments that stay."""
    records = [one.record for one in kept if one.record is not None]
    dropped: Counter[str] = Counter()
    places: dict[str, Place] = {}
    for record in records:
        dropped.update(record.dropped_infos)
        places = dict(record.anomalies) | places
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    info = {**found.info, **totals_of(kept), "status": status, "dropped_infos": dict(dropped)}
    times = found.info.get("times") or {}
    info["times"] = {**times, "updated": now, "repaired": [*times.get("repaired", []), now]}
    info["anomalies"] = [one._asdict() for one in anomalies(places)]
    stats = stats_document(merge_stats([record.stats for record in records]), found.schema)
    files.write_json(stats_path(found.path), stats)
    files.replace(found.path / "README.md", render_card(info).encode(errors="backslashreplace"))
    files.write_json(info_path(found.path), info)
