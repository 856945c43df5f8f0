"""Making the part of a dataset that is whole the dataset; what does not belong is moved aside, and nothing is deleted.

Every step leaves a dataset behind that another repair completes: files are moved from the last on, a commit record
before its rows; a file of which only the first episodes stay is written anew beside the old one, and put in its place
once that has been copied aside; info.json comes last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rollout_cli.dataset.card import render_card
from rollout_cli.dataset.files import FileStore
from rollout_cli.dataset.layout import info_path, write_json
from rollout_cli.dataset.lock import FolderLock
from rollout_cli.dataset.shard import data_path, episodes_path
from rollout_cli.dataset.verification.claims import TOTALS
from rollout_cli.dataset.verification.files_check import FilesCheck
from rollout_cli.dataset.verification.folder import survey
from rollout_cli.dataset.verification.repair_files import copy_file, cut_shard, stated_lengths
from rollout_cli.dataset.verification.repair_plan import choose_claims, refuse_what_is_none
from rollout_cli.dataset.verification.report import Findings
from rollout_cli.dataset.verification.stats_check import stats_path
from rollout_cli.dataset.verification.verify import verify
from rollout_cli.errors import InternalError


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What a repair did, or would do.

    Attributes:
        path: The dataset's folder.
        changed: Whether anything was, or would be, changed.
        status: The status that the dataset has then.
        episodes: Episodes that stay.
        steps: Their steps.
        dropped_episodes: Episodes that were stated and do not stay.
        aside: Where files were moved; None where none was, or would be.
        moved: Files that were moved aside, by name.
        cut: Files that keep only their first episodes, by name, and how many.
        rebuilt_info: Whether info.json was made anew from the files.
    """

    path: Path
    changed: bool
    status: str
    episodes: int
    steps: int
    dropped_episodes: int
    aside: Path | None
    moved: tuple[str, ...]
    cut: Mapping[str, int]
    rebuilt_info: bool

    def document(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return {
            "path": str(self.path),
            "changed": self.changed,
            "status": self.status,
            "episodes": self.episodes,
            "steps": self.steps,
            "dropped_episodes": self.dropped_episodes,
            "aside": None if self.aside is None else str(self.aside),
            "moved": list(self.moved),
            "cut": dict(self.cut),
            "rebuilt_info": self.rebuilt_info,
        }


def repair(path: Path | str, *, dry_run: bool = False, files: FileStore | None = None) -> RepairReport:
    """Keep the longest part of each lane that verifies, and make it the dataset.

    Args:
        path: The dataset's folder.
        dry_run: Change nothing, and report what would be done.
        files: The disk.

    Raises:
        DatasetFormatError: If there is no dataset of this format, or not enough of it to tell what it was.
        DatasetLockedError: If it is being written.
        StorageError: If it cannot be read or written.
    """
    root = Path(path)
    files = files or FileStore()
    if dry_run:
        return _Repair(root, files).report
    refuse_what_is_none(root)
    lock = FolderLock(files, root)
    try:
        return _Repair(root, files).run()
    finally:
        lock.release()


class _Repair:
    """One repair: what is to be done, found out as it is made."""

    def __init__(self, root: Path, files: FileStore) -> None:
        refuse_what_is_none(root)
        self._root = root
        self._files = files
        self._folder = survey(root)
        self._choice = choose_claims(root, self._folder)
        self._aside = _new_folder(root)
        self.report = self._report()

    def run(self) -> RepairReport:
        """Do it."""
        if self.report.changed:
            self._move_aside()
            for place, episodes in self._choice.plan.cut.items():
                for path in (data_path(self._root, place), episodes_path(self._root, place)):
                    copy_file(self._files, path, self._aside_of(path))
                cut_shard(self._files, self._root, place, episodes)
            self._write_metadata()
        return self.report

    def _report(self) -> RepairReport:
        plan, root = self._choice.plan, self._root
        lengths = {place: stated_lengths(root, place) for place in self._folder.episodes}
        staying = {place: lengths[place][: plan.cut.get(place)] for place in (*plan.kept, *plan.cut)}
        episodes = sum(map(len, staying.values()))
        cut = {data_path(root, place).relative_to(root).as_posix(): count for place, count in plan.cut.items()}
        moves = bool(plan.aside or plan.cut or self._choice.rebuilt)
        return RepairReport(
            path=root,
            changed=moves or needs_metadata(root),
            status=self._status(),
            episodes=episodes,
            steps=sum(int(values.sum()) for values in staying.values()),
            dropped_episodes=sum(map(len, lengths.values())) - episodes,
            aside=self._aside if moves else None,
            moved=tuple(path.relative_to(root).as_posix() for path in plan.aside),
            cut=cut,
            rebuilt_info=self._choice.rebuilt,
        )

    def _status(self) -> str:
        whole = not (self._choice.plan.faults or self._choice.plan.cut or self._choice.rebuilt)
        return "complete" if whole and self._choice.claims.status == "complete" else "interrupted"

    def _move_aside(self) -> None:
        for path in (info_path(self._root), stats_path(self._root)):
            if self.report.aside is not None and path.is_file():
                copy_file(self._files, path, self._aside_of(path))
        for path in self._choice.plan.aside:
            target = self._aside_of(path)
            self._files.make_folder(target.parent)
            self._files.move(path, target)

    def _write_metadata(self) -> None:
        """Write statistics, card and info.json of what the files hold now."""
        claims = replace(self._choice.claims, status=self.report.status)
        findings = Findings(self._root)
        check = FilesCheck(self._root, claims, survey(self._root), findings)
        check.run()
        wrong = [fault for fault in findings.faults if fault.place is not None]
        if wrong:
            raise InternalError(f"what was kept of {self._root} is not whole: {wrong[0]}")
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        times = dict(claims.info["times"])
        info = dict(claims.info) | {
            **{name: getattr(check.counts, name) for name in TOTALS},
            "status": self.report.status,
            "times": times | {"updated": now, "repaired": [*times.get("repaired", []), now]},
        }
        write_json(self._files, stats_path(self._root), check.stats())
        self._files.replace(self._root / "README.md", render_card(info).encode())
        write_json(self._files, info_path(self._root), info)

    def _aside_of(self, path: Path) -> Path:
        return self._aside / path.relative_to(self._root)


def _new_folder(root: Path) -> Path:
    """Return a name for what is moved aside that no earlier repair has used."""
    at = datetime.now(UTC)
    while (path := root / f".repair-{at:%Y%m%dT%H%M%SZ}").exists():
        at += timedelta(seconds=1)
    return path


def needs_metadata(root: Path) -> bool:
    """Return whether info.json, statistics or card are not those of the files."""
    if not info_path(root).exists() or not (root / "README.md").is_file():
        return True
    report = verify(root)
    return (
        bool(report.faults) or report.status == "collecting" or any(note.startswith("meta/") for note in report.notes)
    )
