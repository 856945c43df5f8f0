"""All data and episodes files of a dataset, lane by lane and one after another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from rollout_cli.dataset.commits import Commit
from rollout_cli.dataset.layout import info_path
from rollout_cli.dataset.shard import Place, data_path, episodes_path
from rollout_cli.dataset.stats import TableStats
from rollout_cli.dataset.verification.claims import Claims
from rollout_cli.dataset.verification.episode_numbers import Facts, LaneState
from rollout_cli.dataset.verification.episode_rows import EpisodesCheck
from rollout_cli.dataset.verification.folder import Folder
from rollout_cli.dataset.verification.report import Findings
from rollout_cli.dataset.verification.schema_check import DecidedSchema, check_row_groups, open_file
from rollout_cli.dataset.verification.sequence import check_between_lanes, check_sequence
from rollout_cli.dataset.verification.stats_check import joined_stats
from rollout_cli.dataset.verification.step_rows import StepsCheck
from rollout_cli.dataset.verification.totals import Counts


class FilesCheck:
    """Checks all files.

    Args:
        root: The dataset's folder.
        claims: What the dataset says.
        folder: What lies in its folder.
        findings: Where faults go.
        quick: Whether to leave the steps out.

    Attributes:
        counts: What the files hold.
        is_counted: Whether the steps of all episodes went into the statistics.
    """

    def __init__(self, root: Path, claims: Claims, folder: Folder, findings: Findings, *, quick: bool = False) -> None:
        self.counts = Counts()
        self.is_counted = True
        self._root = root
        self._claims = claims
        self._folder = folder
        self._findings = findings
        self._quick = quick
        self._schema = DecidedSchema(claims)
        self._lanes: dict[int, LaneState] = {}
        self._stats: dict[int, TableStats] = {}
        self._unchecked: list[str] = []

    def run(self) -> None:
        """Check them."""
        check_sequence(self._root, self._claims, self._folder, self._findings)
        for place in self._folder.places:
            if place in self._folder.episodes:
                self._check_shard(place)
            else:
                name = self._findings.name(data_path(self._root, place))
                self._findings.note(f"{name} has no episodes file, so none of its rows is committed")
        check_between_lanes(info_path(self._root), self._claims, self._lanes, self._findings)
        if self._unchecked:
            self._findings.note(
                f"a changed bit may go unseen in files without page checksums: {len(self._unchecked):,}, "
                f"the first of them {self._unchecked[0]}"
            )

    def stats(self) -> dict[str, Any]:
        """Return the statistics of the steps."""
        return joined_stats([self._stats[lane] for lane in sorted(self._stats)])

    def _check_shard(self, place: Place) -> None:
        number = self._claims.lane_of(place[0])
        lane = self._lanes.setdefault(number, LaneState())
        found = self._check_episodes(place, lane)
        if found is None:
            self.counts.is_whole = False
            lane.lose_track()
            return
        facts, commit = found
        self._count(place, facts)
        if place not in self._folder.data:
            self.is_counted = False
            self.counts.is_whole = False
            path, every = data_path(self._root, place), np.arange(len(facts["length"]))
            self._findings.fault_of_rows(path, "it is missing", place, facts["episode_id"], every)
        else:
            self.is_counted &= self._check_data(place, facts, commit, self._stats.setdefault(number, TableStats()))

    def _check_episodes(self, place: Place, lane: LaneState) -> tuple[Facts, Commit | None] | None:
        check = EpisodesCheck(self._root, self._claims, place, self._findings)
        file = open_file(self._root, check.path, place, self._findings)
        if file is None or not self._schema.check(file, check.path, place, "episodes", self._findings):
            return None
        check_row_groups(file, check.path, place, None, self._findings)
        facts = check.facts(file)
        if facts is None or not check.check(facts, lane, file):
            return None
        self._note_checksums(check.path, present=check.has_checksums)
        return facts, check.commit

    def _check_data(self, place: Place, facts: Facts, commit: Commit | None, stats: TableStats) -> bool:
        """Check a data file; return whether all its steps went into `stats`."""
        path = data_path(self._root, place)
        file = open_file(self._root, path, place, self._findings)
        if file is None or not self._schema.check(file, path, place, "data", self._findings):
            return False
        check_row_groups(file, path, place, self._claims.group_rows, self._findings)
        ends = np.cumsum(facts["length"])
        rows, steps = file.metadata.num_rows, int(ends[-1])
        problem = f"it has {rows:,} rows, and its episodes file states {steps:,}"
        self._findings.fault_where(path, problem, place, facts["episode_id"], ends > rows)
        self._check_open(path, place, file, commit, steps)
        if rows > steps:
            self.counts.surplus += rows - steps
            self._findings.note(f"{self._findings.name(path)} has {rows - steps:,} rows that no episodes file states")
        if self._quick:
            return False
        check = StepsCheck(self._root, place, facts, spaces=self._claims.spaces, stats=stats, findings=self._findings)
        check.run(file)
        self._note_checksums(path, present=check.has_checksums)
        return check.is_counted and rows >= steps

    def _check_open(self, path: Path, place: Place, file: pq.ParquetFile, commit: Commit | None, steps: int) -> None:
        """Check that the rows that a run would go on with are those behind a row group's end."""
        if commit is None or commit.open is None:
            return
        groups = [file.metadata.row_group(at).num_rows for at in range(file.metadata.num_row_groups)]
        if steps - commit.open.rows not in np.cumsum([0, *groups]).tolist():
            self._findings.fault(path, "its row groups do not end where its episodes file says", place=place)

    def _count(self, place: Place, facts: Facts) -> None:
        self.counts.episodes += len(facts["length"])
        self.counts.steps += int(facts["length"].sum())
        self.counts.shards += 1
        paths = (data_path(self._root, place), episodes_path(self._root, place))
        self.counts.bytes += sum(path.stat().st_size for path in paths if path.exists())

    def _note_checksums(self, path: Path, *, present: bool) -> None:
        if not present:
            self._unchecked.append(self._findings.name(path))
