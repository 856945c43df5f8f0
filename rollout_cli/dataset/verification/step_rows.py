"""One file of `data`: its rows against the episodes that its episodes file states, a row group at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rollout_cli.dataset.columns import Array
from rollout_cli.dataset.episodes import episode_returns
from rollout_cli.dataset.limits import check_group
from rollout_cli.dataset.schema import SpaceSchema
from rollout_cli.dataset.shard import Place, data_path
from rollout_cli.dataset.stats import TableStats
from rollout_cli.dataset.tables import reading
from rollout_cli.dataset.verification.episode_numbers import Facts
from rollout_cli.dataset.verification.following import FollowingCheck
from rollout_cli.dataset.verification.report import Findings
from rollout_cli.dataset.verification.values import wrong_values
from rollout_cli.episode_batch import derive_step_types
from rollout_cli.errors import DatasetFormatError


class StepsCheck:
    """Checks one data file.

    Args:
        root: The dataset's folder.
        place: The file's place.
        facts: The facts of its episodes.
        spaces: The columns of the spaces.
        stats: Where the steps of episodes are counted.
        findings: Where faults go.
    """

    def __init__(
        self, root: Path, place: Place, facts: Facts, *, spaces: SpaceSchema, stats: TableStats, findings: Findings
    ) -> None:
        self.path = data_path(root, place)
        self.has_checksums = True
        self.is_counted = True
        self._place = place
        self._facts = facts
        self._stats = stats
        self._findings = findings
        self._ends = np.cumsum(facts["length"])
        self._rewards: list[Array] = []
        self._following = FollowingCheck(root, place, facts, spaces, findings) if spaces.next_observation else None

    @property
    def steps(self) -> int:
        """Return how many rows the episodes have."""
        return int(self._ends[-1])

    def run(self, file: pq.ParquetFile) -> None:
        """Check all rows that belong to episodes."""
        start = 0
        for group in range(file.metadata.num_row_groups):
            stop = start + file.metadata.row_group(group).num_rows
            if start >= self.steps:
                return
            self._check_group(file, group, start, min(stop, self.steps))
            start = stop

    def _check_group(self, file: pq.ParquetFile, group: int, start: int, stop: int) -> None:
        rows = _Rows(self._facts, self._ends, start, stop)
        try:
            with reading(self.path):
                self.has_checksums &= check_group(self.path, file, group)
                table = file.read_row_group(group).slice(0, stop - start)
        except DatasetFormatError as error:
            self._fault(f"its row group {group} cannot be read: {' '.join(error.message.split())[:500]}", rows.episodes)
            self._pass_over()
            return
        self._check_rows(table, rows)
        self._stats.update(table)

    def _pass_over(self) -> None:
        """Go on behind rows that cannot be decoded."""
        self._rewards, self.is_counted = [], False
        if self._following is not None:
            self._following.forget()

    def _check_rows(self, table: pa.Table, rows: _Rows) -> None:
        is_readable = True
        for wrong in wrong_values(table):
            self._fault(wrong.problem, rows.of(wrong.rows))
            is_readable &= wrong.is_readable
        if not is_readable:
            self._pass_over()
            return
        for name, expected in rows.expected().items():
            differs = table[name].to_numpy() != expected
            if differs.any():
                self._fault(_PROBLEMS[name], rows.of(differs))
        self._check_returns(table["reward"].to_numpy(), rows)
        if self._following is not None:
            self._following.check(table, rows.first, rows.lengths, begins=rows.offset == 0, ends=rows.ends)

    def _check_returns(self, rewards: Array, rows: _Rows) -> None:
        """Check the returns of the episodes that end here; keep the rewards of the one that does not."""
        lengths = rows.lengths
        if rows.offset and not self._rewards:
            # Its first rewards could not be read, which has been told.
            rewards, lengths, first = rewards[int(lengths[0]) :], lengths[1:], rows.first + 1
            if not len(lengths):
                return
        else:
            first = rows.first
            lengths = lengths.copy()
            lengths[0] += sum(map(len, self._rewards))
            rewards = np.concatenate([*self._rewards, rewards])
        whole = len(lengths) if rows.ends else len(lengths) - 1
        inside = int(lengths[: max(whole, 0)].sum())
        self._rewards = [] if rows.ends else [rewards[inside:].copy()]
        if whole < 1:
            return
        stated = self._facts["return"][first : first + whole]
        returns = episode_returns(rewards[:inside], lengths[:whole])
        wrong = (stated != returns) & ~(np.isnan(stated) & np.isnan(returns))
        self._fault("its rewards do not sum to its return", first + np.flatnonzero(wrong))

    def _fault(self, problem: str, episodes: Array) -> None:
        self._findings.fault_of_rows(self.path, problem, self._place, self._facts["episode_id"], episodes)


_PROBLEMS = {
    "episode_id": "its rows have another episode_id",
    "step": "its steps are not numbered 0, 1, 2, …",
    "terminated": "terminated is not that of the episode, in its last step alone",
    "truncated": "truncated is not that of the episode, in its last step alone",
    "step_type": "its step types are not those of its steps and flags",
}


class _Rows:
    """Some rows of a data file, and the episodes that they belong to.

    Attributes:
        first: The row, in the episodes file, of their first episode.
        lengths: How many of these rows each episode has.
        offset: Steps of the first episode that lie before these rows.
        ends: Whether the last episode ends with these rows.
    """

    def __init__(self, facts: Facts, ends: Array, start: int, stop: int) -> None:
        first, last = (int(np.searchsorted(ends, row, side="right")) for row in (start, stop - 1))
        self.first = first
        self._facts = facts
        self._slice = slice(first, last + 1)
        ends = ends[self._slice]
        self._starts = ends - facts["length"][self._slice]
        self.lengths: Array = np.minimum(ends, stop) - np.maximum(self._starts, start)
        self.offset = max(0, start - int(self._starts[0]))
        self.ends = int(ends[-1]) <= stop
        self._start = start

    @property
    def episodes(self) -> Array:
        """Return the rows, in the episodes file, of all these episodes."""
        return np.arange(self._slice.start, self._slice.stop)

    def of(self, wrong: Array) -> Array:
        """Return the rows, in the episodes file, of the episodes that some of these rows belong to."""
        places = np.searchsorted(np.cumsum(self.lengths), np.flatnonzero(wrong), side="right")
        return np.asarray(self.first + np.unique(places))

    def expected(self) -> dict[str, Array]:
        """Return what follows, for each row, from the facts of its episode."""
        flags = {name: self._facts[name][self._slice].copy() for name in ("terminated", "truncated")}
        if not self.ends:
            for values in flags.values():
                values[-1] = False
        lasts = np.cumsum(self.lengths) - 1
        steps = np.arange(self._start, self._start + int(self.lengths.sum())) - np.repeat(self._starts, self.lengths)
        offsets = np.zeros(len(self.lengths), np.int64)
        offsets[0] = self.offset
        out = {
            "episode_id": np.repeat(self._facts["episode_id"][self._slice], self.lengths),
            "step": steps,
            "step_type": derive_step_types(self.lengths, flags["terminated"], flags["truncated"], offsets),
        }
        for name, values in flags.items():
            out[name] = np.zeros(len(steps), bool)
            out[name][lasts] = values
        return out
