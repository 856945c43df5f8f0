"""RowEpisodes: which episode runs in each row of a native vector environment."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rollout_cli.black_box import black_box
from rollout_cli.workers.block_recorder import BlockRecorder
from rollout_cli.workers.finished import Finished
from rollout_cli.workers.row_numbers import NONE
from rollout_cli.workers.vector_infos import row_info

Array = npt.NDArray[Any]
_clock = time.perf_counter

_ALL = np.True_
NEVER = np.iinfo(np.int64).max // 2
"""The first step of a row that runs no episode: it never reaches a limit."""


class RowEpisodes:
    """The episodes under way in n rows.

    Attributes:
        numbers: Each row's episode number, int64 (n,); NONE where it runs none.
        starts: The step that each row's episode began with, int64 (n,).
        count: How many run.

    Args:
        n_rows: n.
    """

    def __init__(self, n_rows: int) -> None:
        self._n_rows = n_rows
        # One array, so that all that is known of some rows is gathered at once.
        self._state = black_box().table(4, n_rows)
        self._state[:] = [[NONE], [NEVER], [NONE], [0]]
        self.numbers, self.starts, self._seeds, began = self._state
        self._began_at = began.view(np.float64)
        self.count = 0
        self._infos = np.full(n_rows, None, object)
        self._told = False

    @property
    def running(self) -> Array:
        """Return the rows that run an episode."""
        return np.flatnonzero(self.numbers != NONE)

    @property
    def lowest(self) -> int | None:
        """Return the lowest number that runs."""
        if not self.count:
            return None
        return int(self.numbers.min() if self.count == self._n_rows else self.numbers[self.running].min())

    def begin(self, rows: Array, numbers: Array, seeds: Array | None, infos: Mapping[Any, Any], *, step: int) -> None:
        """Begin episodes.

        Args:
            rows: Which rows (k,), none of which runs one.
            numbers: Their numbers (k,).
            seeds: The seeds that their resets were given (k,); None where they were given none.
            infos: What the reset told, of all rows.
            step: The number of the step that comes next.
        """
        self.numbers[rows], self.starts[rows], self._began_at[rows] = numbers, step, _clock()
        self._seeds[rows] = NONE if seeds is None else seeds
        self.count += len(rows)
        if infos:
            self._tell(rows, infos)

    def _tell(self, rows: Array, infos: Mapping[Any, Any]) -> None:
        """Keep what the reset of some rows told."""
        self._told = True
        for row in rows.tolist():
            self._infos[row] = row_info(infos, row, self._n_rows)

    def finish(
        self, rows: Array, *, terminated: Array, truncated: Array, last: tuple[Array, ...], recorder: BlockRecorder
    ) -> None:
        """End the episodes of some rows; a row that ran none is passed over.

        Args:
            rows: Which rows (k,).
            terminated: Whether their last steps terminated them (k,).
            truncated: Whether they truncated them (k,).
            last: Their last observations, one array (k, *shape) a leaf.
            recorder: Where they go.
        """
        known = self.numbers[rows] != NONE if self.count < self._n_rows else _ALL
        if known is not _ALL and not known.all():
            rows, terminated, truncated = rows[known], terminated[known], truncated[known]
            last = tuple(leaf[known] for leaf in last)
        if not len(rows):
            return
        facts = Finished.of(self._state.take(rows, axis=1), rows, recorder.step, (terminated, truncated), _clock())
        recorder.finish(Finished(facts, self._infos[rows] if self._told else None, last))
        self.forget(rows)

    def forget(self, rows: Array) -> None:
        """Give up the episodes of some rows, which all run one."""
        self.numbers[rows], self.starts[rows] = NONE, NEVER
        if self._told:
            self._infos[rows] = None
        self.count -= len(rows)

    def forget_above(self, above: int | None) -> None:
        """Give up the episodes with higher numbers; all of them where it is None."""
        self.forget(np.flatnonzero(self.numbers > (NONE if above is None else above)))
