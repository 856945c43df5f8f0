"""One file of `meta/episodes`: its rows by themselves, and against the files before it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rollout_cli.dataset.columns import Array
from rollout_cli.dataset.commits import Commit
from rollout_cli.dataset.limits import check_episode_rows, check_group
from rollout_cli.dataset.schema import EPISODE_FIELDS
from rollout_cli.dataset.shard import Place, episodes_path
from rollout_cli.dataset.tables import check_facts, reading
from rollout_cli.dataset.verification.claims import Claims
from rollout_cli.dataset.verification.episode_numbers import MAX_LENGTH, Facts, LaneState, NumbersCheck, check_commit
from rollout_cli.dataset.verification.report import Findings
from rollout_cli.dataset.verification.values import wrong_values
from rollout_cli.errors import DatasetFormatError


class EpisodesCheck:
    """Checks one episodes file.

    Args:
        root: The dataset's folder.
        claims: What the dataset says.
        place: The file's place.
        findings: Where faults go.

    Attributes:
        path: The file.
        has_checksums: Whether all pages read so far have checksums.
        commit: What its footer states, once `check` has found it.
    """

    def __init__(self, root: Path, claims: Claims, place: Place, findings: Findings) -> None:
        self.path = episodes_path(root, place)
        self._claims = claims
        self._place = place
        self._findings = findings
        self.has_checksums = True
        self.commit: Commit | None = None

    def facts(self, file: pq.ParquetFile) -> Facts | None:
        """Check all rows by themselves, a row group at a time; return their facts, or None where they lack some."""
        groups: list[dict[str, Array]] = []
        rows = 0
        try:
            with reading(self.path):
                check_episode_rows(self.path, file.metadata)
                for group in range(file.metadata.num_row_groups):
                    self.has_checksums &= check_group(self.path, file, group)
                    table = file.read_row_group(group)
                    check_facts(self.path, table)
                    self._check_values(table, rows)
                    groups.append({column.name: table[column.name].to_numpy() for column in EPISODE_FIELDS})
                    rows += table.num_rows
        except DatasetFormatError as error:
            self._fault(" ".join(error.message.split())[:500])
            return None
        if not rows:
            self._fault("it states no episode")
            return None
        return {column.name: np.concatenate([group[column.name] for group in groups]) for column in EPISODE_FIELDS}

    def _check_values(self, table: pa.Table, first_row: int) -> None:
        ids = table["episode_id"].to_numpy()
        for wrong in wrong_values(table):
            rows = np.flatnonzero(wrong.rows)
            self._findings.fault_of_rows(self.path, wrong.problem, self._place, ids, rows, first_row=first_row)

    def check(self, facts: Facts, lane: LaneState, file: pq.ParquetFile) -> bool:
        """Check the facts against each other, against the footer, and against the lane's files before.

        Returns:
            Whether the lengths are those of episodes, so that their steps can be looked for.
        """
        self._check_places(facts)
        self.commit = check_commit(self.path, self._place, file, facts, self._findings)
        if self.commit is not None:
            numbers = NumbersCheck(self.path, self._place, facts, self._findings)
            numbers.run(self.commit, lane, in_order=self._claims.in_order)
        self._check_ids(facts, lane)
        lengths = facts["length"]
        return bool(lengths.min() >= 1 and lengths.max() <= MAX_LENGTH)

    def _check_places(self, facts: Facts) -> None:
        lengths = facts["length"]
        self._where(f"its length is not in 1 to {MAX_LENGTH:,}", facts, (lengths < 1) | (lengths > MAX_LENGTH))
        for name, at in (("data_chunk_index", 0), ("data_file_index", 1)):
            self._where(f"{name} is not that of its own file", facts, facts[name] != self._place[at])
        starts = np.cumsum(lengths) - lengths
        self._where("data_row_index is not where its steps must begin", facts, facts["data_row_index"] != starts)
        self._where("root_seed is not the dataset's", facts, facts["root_seed"] != self._claims.root_seed)
        self._where("it neither terminated nor was truncated", facts, ~(facts["terminated"] | facts["truncated"]))

    def _check_ids(self, facts: Facts, lane: LaneState) -> None:
        ids = facts["episode_id"]
        if self._claims.lanes > 1:
            wrong = ids != facts["episode_number"] - self._claims.base
            self._where("its id is not its number, counted from the first of the dataset", facts, wrong)
        else:
            first = int(ids[0]) if lane.next_id is None else lane.next_id
            expected = np.arange(first, first + len(ids))
            self._where("its id is not the next one", facts, ids != expected)
        lane.next_id = int(ids[-1]) + 1

    def _where(self, problem: str, facts: Facts, wrong: Array) -> None:
        self._findings.fault_where(self.path, problem, self._place, facts["episode_id"], wrong)

    def _fault(self, problem: str) -> None:
        self._findings.fault(self.path, problem, place=self._place)
