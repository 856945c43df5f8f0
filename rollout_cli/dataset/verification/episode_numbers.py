"""Episode numbers against what footers settle: one range a file, each number an episode's or skipped, none left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from rollout_cli.dataset.columns import Array
from rollout_cli.dataset.commits import Commit
from rollout_cli.dataset.shard import Place
from rollout_cli.dataset.verification.report import Findings

MAX_LENGTH = 1 << 38
"""No episode has more steps; the sum of as many as a file can state is still a number of 64 bits."""

Facts = Mapping[str, Array]
"""The columns of `EPISODE_FIELDS` of one episodes file, by name."""


@dataclass(slots=True)
class LaneState:
    """What the episodes files of a lane have told so far.

    Attributes:
        next_id: The id after the last episode's; None where that is not known.
        first_number: The first episode number that a file settles; None where that is not known.
        next_number: The first episode number that no file settles yet; None where that is not known.
        is_open: Whether the last file says that more episodes may join it.
        is_known: Whether all files of the lane could be read.
    """

    next_id: int | None = 0
    first_number: int | None = None
    next_number: int | None = None
    is_open: bool = False
    is_known: bool = True

    def lose_track(self) -> None:
        """Go on behind a file that could not be read."""
        self.next_id = self.next_number = None
        self.is_open = self.is_known = False


def check_commit(path: Path, place: Place, file: pq.ParquetFile, facts: Facts, findings: Findings) -> Commit | None:
    """Return what an episodes file's footer states; None, and a fault, where it does not state it."""
    try:
        commit = Commit.from_footer(file.metadata.metadata or {})
    except (ValueError, AttributeError, RecursionError) as error:
        findings.fault(path, f"its footer does not say which episode numbers it settles: {error}"[:300], place=place)
        return None
    numbers: list[Any] = [commit.start, commit.stop, *commit.skipped]
    if commit.open is not None:
        numbers += [commit.open.rows]
    if not all(isinstance(number, int) and abs(number) < 1 << 62 for number in numbers):
        findings.fault(path, "its footer says in no known way which episode numbers it settles", place=place)
        return None
    if commit.open is not None and not 0 <= commit.open.rows <= int(facts["length"].sum()):
        findings.fault(path, f"its footer says that {commit.open.rows:,} of its rows are open", place=place)
    return commit


class NumbersCheck:
    """Checks the numbers of the episodes of one file.

    Args:
        path: The episodes file.
        place: Its place.
        facts: The facts of its episodes.
        findings: Where faults go.
    """

    def __init__(self, path: Path, place: Place, facts: Facts, findings: Findings) -> None:
        self._path = path
        self._place = place
        self._numbers = facts["episode_number"]
        self._ids = facts["episode_id"]
        self._findings = findings

    def run(self, commit: Commit, lane: LaneState, *, in_order: bool) -> None:
        """Check them against the footer, and the footer against the files before.

        Args:
            commit: What the footer states.
            lane: What the files before told; it is taken further.
            in_order: Whether they are in the order of numbers. As they arrived, each has only to be there once.
        """
        if lane.is_open:
            self._fault("the file before it says that it is open, so none may follow")
        lane.is_open = commit.open is not None
        if not in_order:
            repeated = np.ones(len(self._numbers), bool)
            repeated[np.unique(self._numbers, return_index=True)[1]] = False
            self._where("its number is that of another episode", repeated)
            return
        start, stop = commit.start, commit.stop
        falls = np.diff(self._numbers, prepend=self._numbers[0] - 1) <= 0
        outside = (self._numbers < start) | (self._numbers >= stop)
        self._where("its number is not above the one before", falls)
        self._where(f"its number is not in {start} to {stop - 1}, which the footer settles", outside)
        if lane.first_number is None:
            lane.first_number = start
        if lane.next_number is not None and start != lane.next_number:
            self._fault(f"it settles episode numbers from {start} on, expected from {lane.next_number} on")
        self._check_gaps(commit)
        lane.next_number = stop

    def _check_gaps(self, commit: Commit) -> None:
        """Every number that the file settles is an episode's or was skipped, never both."""
        skipped = np.array(commit.skipped, np.int64)
        self._where("the footer says that it was skipped", np.isin(self._numbers, skipped))
        known = np.union1d(self._numbers, skipped)
        inside = known[(known >= commit.start) & (known < commit.stop)]
        if len(inside) != len(known):
            self._fault(f"its footer skips numbers outside {commit.start} to {commit.stop - 1}")
        missing = commit.stop - commit.start - len(inside)
        if missing <= 0:
            return
        edges = np.concatenate([[commit.start - 1], inside, [commit.stop]])
        first = int(edges[np.flatnonzero(np.diff(edges) > 1)[0]]) + 1
        row = int(np.searchsorted(self._numbers, first))
        problem = f"{missing:,} episode numbers from {first} on are missing, and were not skipped"
        if row < len(self._numbers):
            rows = np.array([row])
            self._findings.fault_of_rows(self._path, f"{problem}, before", self._place, self._ids, rows)
        else:
            self._fault(problem)

    def _where(self, problem: str, wrong: Array) -> None:
        self._findings.fault_where(self._path, problem, self._place, self._ids, wrong)

    def _fault(self, problem: str) -> None:
        self._findings.fault(self._path, problem, place=self._place)
