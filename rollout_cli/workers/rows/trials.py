"""TrialRows: episodes that build on others, as those of one trial do in RL2 and PEARL."""

from __future__ import annotations

from rollout_cli.errors import UserCodeError
from rollout_cli.loading import reporting
from rollout_cli.workers.rows.engine import Row
from rollout_cli.workers.rows.in_turn import RowsInTurn
from rollout_cli.workers.values import NO_NUMBER


class TrialRows(RowsInTurn):
    """Runs the episodes that a number builds on right before it, unrecorded, if it did not just run them."""

    _last_run = NO_NUMBER  # The episode that ended last, if nothing came after it.
    _is_recorded = True

    def _begin(self, row: Row, number: int, seeded_as: int) -> None:
        with reporting(UserCodeError, f"{type(self._worker).__name__}.predecessors raised"):
            before = self._worker.predecessors(number)
        if before and before[-1] != self._last_run:
            self._is_recorded = False
            try:
                for earlier in before:
                    # Where one fails, that is a failure of `number`.
                    super()._begin(row, number, earlier)
                    while not self._worker.step_episode():
                        self._crash_box.step()
            finally:
                self._is_recorded = True
        self._last_run = NO_NUMBER
        super()._begin(row, number, seeded_as)

    def _end(self, row: Row) -> None:
        if self._is_recorded:
            self._last_run = row.number
            super()._end(row)
        else:
            self._rest(row)

    def forget(self, above: int) -> None:
        if above == NO_NUMBER or any(number > above for number in self.running_numbers):
            self._last_run = NO_NUMBER
        super().forget(above)
