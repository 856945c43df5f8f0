"""The report of a verification: faults of files and of their episodes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from rollout_cli.dataset.commits import Written, totals_of
from rollout_cli.dataset.convert import Array
from rollout_cli.dataset.layout import SegmentId
from rollout_cli.dataset.record import DatasetInfo
from rollout_cli.dataset.schema import DatasetSchema
from rollout_cli.episodes.plain import Fields

SHOWN = 20
"""The maximum number of faults, notes, and episodes of one fault that are named; the rest are counted."""


class Fault(NamedTuple):
    """A contradiction in a file, with the ids of the affected episodes and the segment, if known."""

    file: str
    problem: str
    episodes: tuple[int, ...]
    segment: SegmentId | None

    def document(self) -> Fields:
        return {
            "file": self.file,
            "problem": self.problem,
            "episodes": list(self.episodes[:SHOWN]),
            "n_episodes": len(self.episodes),
        }

    def __str__(self) -> str:
        count = len(self.episodes)
        more = f" and {count - SHOWN:,} more" if count > SHOWN else ""
        shown = f"episode{'s' if count > 1 else ''} {', '.join(map(str, self.episodes[:SHOWN]))}{more}"
        return f"{self.file}: {self.problem}" + (f" ({shown})" if count else "")


@dataclass(slots=True)
class VerifyReport:
    """The result of a verification, filled by the checks.

    Attributes:
        read: The data files whose steps are checked; None for all, empty with `quick`.
        segments: The segments with a readable episodes file.
        notes: Harmless observations.
        unexpected: Files in the dataset's folders that do not belong there.
        identities: The id, source and number of each episode, int64 (N, 3), by segment.
    """

    path: Path
    info: DatasetInfo
    schema: DatasetSchema
    quick: bool
    read: Collection[Path] | None
    data_files: Mapping[SegmentId, Path]
    episodes_files: Mapping[SegmentId, Path]
    segments: list[Written] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unexpected: list[Path] = field(default_factory=list)
    identities: dict[SegmentId, Array] = field(default_factory=dict)

    def document(self) -> Fields:
        """Return the report as JSON."""
        return {
            "path": str(self.path),
            "ok": not self.faults,
            "status": self.info["status"],
            "quick": self.quick,
            **totals_of(self.segments, "episodes", "steps"),
            "files": len(self.data_files) + len(self.episodes_files),
            "notes": self.notes[:SHOWN],
            "n_notes": len(self.notes),
            "faults": [fault.document() for fault in self.faults[:SHOWN]],
            "n_faults": len(self.faults),
        }

    def name(self, path: Path) -> str:
        """Return a file's path relative to the dataset."""
        return path.relative_to(self.path).as_posix()

    def add(
        self, path: Path, problem: str, segment: SegmentId | None = None, ids: Sequence[int] | Array = ()
    ) -> None:
        """Add a fault of a file, and of its episodes `ids`."""
        text = " ".join(problem.replace(f"{self.path}/", "").split())[:500]
        self.faults.append(Fault(self.name(path), text, tuple(map(int, ids)), segment))
