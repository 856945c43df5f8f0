"""Repair: keep the valid part of a dataset, and move all other files to a repair folder.

Files are moved in reverse order, a commit record before its rows, and info.json is written last. After a
kill, info.json states more than the files hold, and the next repair completes the move.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from rollout_cli.dataset.commits import Written
from rollout_cli.dataset.faults import VerifyReport
from rollout_cli.dataset.folder import FolderLock
from rollout_cli.dataset.layout import AnyPath, aside_path, info_path, read_info, stats_path
from rollout_cli.dataset.metadata import totals_of_segments, utc_now, write_contents
from rollout_cli.dataset.record import add_facts
from rollout_cli.dataset.store import FileStore, file_store
from rollout_cli.dataset.verify import verify_dataset
from rollout_cli.episodes.plain import Fields, plain_json
from rollout_cli.sources.remote import folder_of


@dataclass(frozen=True, slots=True)
class RepairReport:
    """The result of a repair, or of a dry run.

    Files were `moved` to the folder `aside` (None if none was moved); `dropped_episodes` counts the readable
    episodes in them.
    """

    path: Path
    changed: bool
    status: str
    episodes: int
    steps: int
    dropped_episodes: int
    aside: Path | None
    moved: tuple[str, ...]

    def document(self) -> Fields:
        """Return the report as JSON."""
        return dict(plain_json(asdict(self)))


def repair_dataset(path: AnyPath, *, dry_run: bool = False) -> RepairReport:
    """Keep the segments of each partition before the first faulty one, and move the others to a repair folder.

    The status becomes `interrupted`, unless all episodes that info.json states are still there. With `dry_run`,
    the report describes the changes that would be made.

    Raises:
        DatasetFormatError: If the folder is not a dataset of this format, or its info.json is damaged.
        DatasetLockedError: If a run is writing the dataset.
        StorageError: If the dataset cannot be read or written.
    """
    root = folder_of(path)
    read_info(root)  # Fails early: without a dataset, no lock is needed.
    if dry_run:
        return _repair(root, None)
    files = file_store(root)
    with FolderLock(files, root):
        return _repair(root, files)


def _repair(root: Path, files: FileStore | None) -> RepairReport:
    """Repair the dataset in `root`; without `files`, only return the report."""
    verified = verify_dataset(root)
    kept = _valid_segments(verified)
    invalid = {*verified.data_files, *verified.episodes_files} - {written.segment for written in kept}
    aside = aside_path(root)
    moved = []
    # Remove a commit record before its rows, the last segment first: each intermediate state is a dataset.
    for segment in sorted(invalid, reverse=True):
        moved += [part[segment] for part in (verified.episodes_files, verified.data_files) if segment in part]
    moved += verified.unexpected
    info = verified.info.copy()
    add_facts(info, totals_of_segments(kept))
    before = verified.info
    keeps_all = (info["episodes"], info["steps"]) == (before["episodes"], before["steps"])
    if not keeps_all or info["status"] == "collecting":
        info["status"] = "interrupted"
    if not (keeps_all or info["derived"]):  # The recorded end and acceptance are those of other episodes.
        source = info["sources"][0].copy()
        source.pop("stopped_by", None)
        source.pop("acceptance", None)
        info["sources"] = [source]
    if not keeps_all and "card" in info:
        info["card"] = {**info["card"], "plot": False}  # The picture shows dropped episodes.
    report = RepairReport(
        path=root,
        changed=bool(moved or verified.faults or info["status"] != verified.info["status"]),
        status=info["status"],
        episodes=info["episodes"],
        steps=info["steps"],
        dropped_episodes=sum(written.record.episodes for written in verified.segments) - info["episodes"],
        aside=aside if moved else None,
        moved=tuple(verified.name(path) for path in moved),
    )
    if files is not None and report.changed:
        for path in (info_path(root), stats_path(root)):
            if moved and path.is_file():  # Copy: both files are written again.
                files.replace(aside / path.relative_to(root), path.read_bytes())
        for path in moved:
            files.move(path, aside / path.relative_to(root))
        repaired = info["times"].get("repaired", [])
        info["times"] = {**info["times"], "repaired": [*repaired, utc_now()]}
        write_contents(files, root, info, kept, verified.schema)
    return report


def _valid_segments(report: VerifyReport) -> list[Written]:
    """Return the segments of each partition before its first missing or faulty one."""
    wrong = {fault.segment for fault in report.faults}
    kept = []
    following: Counter[int] = Counter()
    for written in report.segments:
        if written.segment not in wrong and written.segment.number == following[written.segment.partition]:
            following[written.segment.partition] += 1
            kept.append(written)
    return kept
