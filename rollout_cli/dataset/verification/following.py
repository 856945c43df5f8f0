"""The column `next_observation`: each row's is the next row's observation, and a last row's the last observation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from rollout_cli.dataset.columns import Array
from rollout_cli.dataset.schema import SpaceSchema
from rollout_cli.dataset.shard import Place, data_path, episodes_path
from rollout_cli.dataset.tables import RowReader
from rollout_cli.dataset.verification.episode_numbers import Facts
from rollout_cli.dataset.verification.report import Findings
from rollout_cli.dataset.verification.values import same_rows, wrong_values


class FollowingCheck:
    """Checks the next observations of one data file.

    Args:
        root: The dataset's folder.
        place: The file's place.
        facts: The facts of its episodes.
        spaces: The columns of the spaces.
        findings: Where faults go.
    """

    def __init__(self, root: Path, place: Place, facts: Facts, spaces: SpaceSchema, findings: Findings) -> None:
        self._path = data_path(root, place)
        self._episodes_path = episodes_path(root, place)
        self._place = place
        self._ids = facts["episode_id"]
        self._spaces = spaces
        self._findings = findings
        self._own = RowReader(root)
        self._before: list[Array] | None = None

    def _last_observations(self, start: int, stop: int) -> pa.Table | None:
        """Return the last observations of some episodes; None where some cannot be read, which has been told."""
        names = [column.name for column in self._spaces.last_observation if column.stored]
        own = self._own.read(self._episodes_path, start, stop).select(names)
        return None if any(wrong_values(own)) else own

    def forget(self) -> None:
        """Know nothing of the row before: its row group could not be read."""
        self._before = None

    def check(self, table: pa.Table, first: int, lengths: Array, *, begins: bool, ends: bool) -> None:
        """Check the next rows.

        Args:
            table: The rows.
            first: The row, in the episodes file, of their first episode.
            lengths: How many of the rows each episode has.
            begins: Whether the first episode begins with them.
            ends: Whether the last episode ends with them.
        """
        lasts = np.cumsum(lengths) - 1
        whole = len(lengths) if ends else len(lengths) - 1
        own = self._last_observations(first, first + whole) if whole else None
        spaces = self._spaces
        columns = zip(spaces.observation, spaces.next_observation, spaces.last_observation, strict=True)
        before, self._before = self._before, None if ends else []
        wrong = np.zeros(table.num_rows, bool)
        carried = False
        for at, (observation, following, last) in enumerate(columns):
            seen, told = observation.decode(table), following.decode(table)
            inside = np.ones(table.num_rows, bool)
            inside[lasts] = False
            wrong[:-1] |= inside[:-1] & ~same_rows(seen[1:], told[:-1])
            if own is not None:
                wrong[lasts[:whole]] |= ~same_rows(last.decode(own), told[lasts[:whole]])
            if not begins and before is not None:
                carried |= not same_rows(seen[:1], before[at])[0]
            if self._before is not None:
                self._before.append(told[-1:].copy())
        wrong[0] |= carried
        rows = first + np.unique(np.searchsorted(lasts, np.flatnonzero(wrong), side="left"))
        self._findings.fault_of_rows(
            self._path, "its next_observation is not what was observed next", self._place, self._ids, rows
        )
