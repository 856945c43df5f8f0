"""NextStepWindow: which episodes ended and began in some steps of an environment that resets its rows in the next step.

With a thousand rows some episode ends in nearly every step. To look through many steps at once costs about as much as
to look through one, so a window is settled only when somebody must know.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rollout_cli.workers.rollout_buffer import BEGAN, ENDED_AT, FLAGS, LYING, NUMBER, ROW, SEED, START, STOP
from rollout_cli.workers.row_numbers import RowNumbers
from rollout_cli.workers.worker import NO_NUMBER

Array = npt.NDArray[np.int64]
Times = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

_MOST_STEPS = 32


class Settled(NamedTuple):
    """What happened in a window.

    Attributes:
        facts: Of the episodes that ended, int64 (7, K); see `rollout_buffer`.
        times: float64 (2, K).
        begun: The rows that began, (B,), in the order of time; a row may be there more than once.
        numbers: The episodes that they began, (B,), NO_NUMBER for none.
    """

    facts: Array
    times: Times
    begun: Array
    numbers: Array


class NextStepWindow:
    """The flags of the steps since it was settled.

    Args:
        n_rows: How many rows there are.
    """

    def __init__(self, n_rows: int) -> None:
        self._n_rows = n_rows
        self.clear()

    def clear(self) -> None:
        """Forget all steps: every row has just been reset."""
        self._was_over = self._over_before = np.zeros(self._n_rows, bool)
        self._flags: list[npt.NDArray[np.uint8]] = []
        self._times: list[float] = []

    @property
    def count(self) -> int:
        """Return how many steps there are."""
        return len(self._flags)

    @property
    def is_full(self) -> bool:
        """Return whether it should be settled."""
        return len(self._flags) >= _MOST_STEPS

    @property
    def resets_next(self) -> bool:
        """Return whether a row is reset in the next step."""
        return bool(self._was_over.any())

    def add(self, terminated: Flags, truncated: Flags, now: float) -> None:
        """Take the flags of a step, bool (n,); those of rows that it reset mean nothing."""
        flags = terminated.view(np.uint8) + 2 * truncated.view(np.uint8)
        flags[self._was_over] = 0
        self._was_over = flags > 0
        self._flags.append(flags)
        self._times.append(now)

    def settle(self, facts: Array, began_at: Times, queue: RowNumbers, step: int) -> Settled:
        """Return what happened, and bring the facts of all rows up to date, in place.

        Args:
            facts: Of the episodes that run, int64 (4, n).
            began_at: When they began, float64 (n,).
            queue: Where rows that begin take their numbers.
            step: The step that comes next.
        """
        flags, times, first = np.array(self._flags), np.array(self._times), step - len(self._times)
        at, rows = np.nonzero(flags)
        goes_on = at < len(times) - 1  # Where a row ended in the last step, it begins in the next window.
        carried = np.flatnonzero(self._over_before)
        begun = np.concatenate([carried, rows[goes_on]])
        begun_at = np.concatenate([np.zeros(len(carried), np.int64), at[goes_on] + 1])
        numbers = queue.take(begun)
        new = np.stack([numbers, *[first + 1 + begun_at] * 2, np.full(len(begun), -1)])
        # An ended episode is the last one that its row began before: j-th ends follow j-th begins.
        order = np.argsort(rows, kind="stable")
        at, rows = at[order], rows[order]
        place = np.arange(len(rows)) - np.searchsorted(rows, rows) + self._over_before[rows] - 1
        by_row = np.argsort(begun, kind="stable")
        is_new = place >= 0
        which = by_row[np.searchsorted(begun[by_row], rows[is_new]) + place[is_new]]
        ended, ended_times = np.empty((7, len(rows)), np.int64), np.empty((2, len(rows)))
        ended[: SEED + 1], ended_times[BEGAN] = facts[:, rows], began_at[rows]
        ended[: SEED + 1, is_new], ended_times[BEGAN, is_new] = new[:, which], times[begun_at[which]]
        ended[STOP], ended[ROW], ended_times[ENDED_AT] = first + at + 1, rows, times[at]
        ended[FLAGS] = flags[at, rows]
        facts[:, begun], began_at[begun] = new, times[begun_at]
        facts[NUMBER, self._was_over] = NO_NUMBER
        self._over_before, self._flags, self._times = self._was_over, [], []
        runs = ended[NUMBER] != NO_NUMBER
        return Settled(ended[:, runs], ended_times[:, runs], begun, numbers)


assert (NUMBER, START, LYING, SEED) == (0, 1, 2, 3)
