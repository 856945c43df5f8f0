"""What a verification found: faults, each with its file and episodes, and notes on what does no harm."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rollout_cli.dataset.columns import Array
from rollout_cli.dataset.shard import Place

SHOWN = 20
"""How many faults, notes, or episodes of one fault are told one by one; of the others, how many they are."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is not as the dataset says.

    Attributes:
        file: The file, relative to the dataset's folder.
        problem: What is wrong, in words.
        episodes: The ids of the first episodes that it concerns; none where it is the file as a whole.
        n_episodes: How many episodes it concerns.
        place: The data file or episodes file that it is about; None for those of the whole dataset.
        row: The first row of the episodes file that it concerns; 0 where it is the file as a whole.
    """

    file: str
    problem: str
    episodes: tuple[int, ...] = ()
    n_episodes: int = 0
    place: Place | None = None
    row: int = 0

    def document(self) -> dict[str, Any]:
        """Return the fault as JSON."""
        return {
            "file": self.file,
            "problem": self.problem,
            "episodes": list(self.episodes),
            "n_episodes": self.n_episodes,
        }

    def __str__(self) -> str:
        if not self.n_episodes:
            return f"{self.file}: {self.problem}"
        named = ", ".join(map(str, self.episodes))
        more = f" and {self.n_episodes - len(self.episodes):,} more" if self.n_episodes > len(self.episodes) else ""
        return f"{self.file}: {self.problem} (episode{'s' if self.n_episodes > 1 else ''} {named}{more})"


class Findings:
    """Collects faults and notes.

    Args:
        root: The dataset's folder.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.faults: list[Fault] = []
        self.notes: list[str] = []

    def name(self, path: Path) -> str:
        """Return a file's name within the dataset."""
        return path.relative_to(self._root).as_posix()

    def fault(self, path: Path, problem: str, *, place: Place | None = None) -> None:
        """Note a fault of a file as a whole."""
        self.faults.append(Fault(self.name(path), problem.replace(f"{self._root}/", ""), place=place))

    def fault_of_rows(
        self, path: Path, problem: str, place: Place, ids: Array, rows: Array, *, first_row: int = 0
    ) -> None:
        """Note a fault of some episodes; none where there are none.

        Args:
            path: The file.
            problem: What is wrong with each of them.
            place: The file's place.
            ids: The ids of all episodes of the file, or of those of a part of it.
            rows: Which of these, ascending.
            first_row: The row of the episodes file that `ids` begin with.
        """
        if len(rows):
            named = tuple(ids[rows[:SHOWN]].tolist())
            self.faults.append(Fault(self.name(path), problem, named, len(rows), place, first_row + int(rows[0])))

    def fault_where(self, path: Path, problem: str, place: Place, ids: Array, wrong: Array) -> None:
        """Note a fault of the episodes for which `wrong`, bool (N,), is true."""
        self.fault_of_rows(path, problem, place, ids, np.flatnonzero(wrong))

    def note(self, text: str) -> None:
        """Note something that does no harm."""
        self.notes.append(text)


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The outcome of a verification.

    Attributes:
        path: The dataset's folder.
        status: The status that info.json gives.
        episodes: Episodes that its episodes files state.
        steps: Their steps.
        files: Data files and episodes files that were looked at.
        quick: Whether steps were left out.
        faults: What is wrong.
        notes: What does no harm.
    """

    path: Path
    status: str
    episodes: int
    steps: int
    files: int
    quick: bool
    faults: tuple[Fault, ...]
    notes: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return {
            "path": str(self.path),
            "ok": not self.faults,
            "status": self.status,
            "episodes": self.episodes,
            "steps": self.steps,
            "files": self.files,
            "quick": self.quick,
            "notes": list(self.notes[:SHOWN]),
            "n_notes": len(self.notes),
            "faults": [fault.document() for fault in self.faults[:SHOWN]],
            "n_faults": len(self.faults),
        }
