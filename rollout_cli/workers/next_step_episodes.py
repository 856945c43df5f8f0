"""NextStepEpisodes: episodes of rows that the environment resets by itself, told for many steps at once.

Where a row ended, the step after it is the one in which the environment resets it, and its next episode begins behind
that. So nothing needs to be done as it ends: the flags of many steps are kept, and looked through in one go.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rollout_cli.workers.block_recorder import BlockRecorder
from rollout_cli.workers.finished import N_BEGUN, Finished
from rollout_cli.workers.row_episodes import NEVER, RowEpisodes
from rollout_cli.workers.row_numbers import NONE, RowNumbers

Array = npt.NDArray[Any]
_clock = time.perf_counter

SETTLE_STEPS = 128
"""Flags are looked through after so many steps at the latest; so late may be seen that the last number has ended."""

_NOBODY = np.empty(0, np.int64), np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class _Ends:
    """Where episodes ended in some steps, K of them in the order of time.

    Attributes:
        flat: Step and row as one index (K,).
        steps: The steps (K,), from 0.
        rows: The rows (K,).
        first: The number of the first of the steps.
        count: How many steps there are.
    """

    flat: Array
    steps: Array
    rows: Array
    first: int
    count: int


class NextStepEpisodes(RowEpisodes):
    """The episodes under way in n rows of an environment of autoreset mode NEXT_STEP.

    Attributes:
        pending: How many steps were not looked through yet.

    Args:
        n_rows: n.
    """

    def __init__(self, n_rows: int) -> None:
        super().__init__(n_rows)
        self.pending = 0
        self._terminated = np.empty((SETTLE_STEPS, n_rows), bool)
        self._truncated = np.empty((SETTLE_STEPS, n_rows), bool)
        # A step's part of each, as views that are made once.
        self._flags = list(zip(self._terminated, self._truncated, strict=True))
        self._times = np.empty(SETTLE_STEPS)
        # Used each time, since memory that is touched for the first time has to be cleared by the system.
        self._over, self._follows = np.empty((2, SETTLE_STEPS, n_rows), bool)
        self._dead = np.zeros(n_rows, bool)
        # numpy sorts integers of 16 bits in linear time.
        self._row_type = np.uint16 if n_rows <= np.iinfo(np.uint16).max else np.int64

    def revive(self) -> None:
        """Note that all rows were reset at once."""
        self._dead[:] = False

    @property
    def all_begin(self) -> bool:
        """Return whether every row begins an episode in the step that comes next."""
        return not self.pending and bool(self._dead.all())

    def stepped(self, terminated: Any, truncated: Any) -> bool:
        """Keep the flags of a step (n,) each; return whether there is no room for more of them."""
        at = self.pending
        kept_terminated, kept_truncated = self._flags[at]
        kept_terminated[...], kept_truncated[...], self._times[at] = terminated, truncated, _clock()
        self.pending = at + 1
        return at + 1 == len(self._times)

    def settle(
        self, queue: RowNumbers, infos: Mapping[Any, Any], recorder: BlockRecorder, observations: Sequence[Array]
    ) -> tuple[Array, Array]:
        """Finish what ended in the pending steps, and begin what began.

        Args:
            queue: The numbers that wait; rows take them as they begin, the lowest row first.
            infos: What the last of these steps told. The others told nothing.
            recorder: Where finished episodes go.
            observations: What the last of these steps gave, one array (n, *shape) a leaf.

        Returns:
            The rows that began an episode (k,), and their numbers (k,).
        """
        count, self.pending = self.pending, 0
        if not any(map(np.count_nonzero, (self._dead, self._terminated[:count], self._truncated[:count]))):
            return _NOBODY  # As in most of the steps of long episodes.
        flat = self._ended(count).ravel().nonzero()[0]
        steps = flat // self._n_rows
        ends = _Ends(flat, steps, flat - steps * self._n_rows, first=recorder.step - count, count=count)
        waited = self._dead.nonzero()[0]
        n_seen = int(np.searchsorted(ends.steps, count - 1))  # The others are reset in the step that comes next.
        begun = np.concatenate([waited, ends.rows[:n_seen]])
        numbers = queue.take(begun)
        self._set(waited, self._begun(numbers[: len(waited)], ends.first + 1, self._times[0]))
        if len(flat):
            after = np.full(len(flat), NONE)
            after[:n_seen] = numbers[len(waited) :]
            self._finish_all(ends, after, recorder, observations)
        self._dead[:] = False
        self._dead[ends.rows[n_seen:]] = True
        self.count = int(np.count_nonzero(self.numbers != NONE))
        if infos:
            # Whoever began in the last step was told of: those that ended in the step before it.
            self._tell(waited if count == 1 else ends.rows[ends.steps == count - 2], infos)
        has = numbers != NONE
        return begun[has], numbers[has]

    def _ended(self, count: int) -> Array:
        """Return whether an episode ended, bool (count, n)."""
        over = np.logical_or(self._terminated[:count], self._truncated[:count], out=self._over[:count])
        # The step in which a row was reset is no step of an episode, whatever its flags.
        over[0] &= ~self._dead
        if np.logical_and(over[1:], over[:-1], out=self._follows[1:count]).any():
            for step in range(1, count):
                over[step] &= ~over[step - 1]
        return over

    @staticmethod
    def _begun(numbers: Array, starts: Any, began_at: Any, out: Array | None = None) -> Array:
        """Return the state of rows that begin (k,), int64 (4, k)."""
        state = np.empty((N_BEGUN, len(numbers)), np.int64) if out is None else out
        state[0], state[2] = numbers, NONE
        state[1] = np.where(numbers == NONE, NEVER, starts)
        state[3].view(np.float64)[:] = began_at
        return state

    def _set(self, rows: Array, begun: Array) -> None:
        """Let episodes begin in some rows, all different (k,), of which the state is `begun`, int64 (4, k)."""
        for fact, values in zip(self._state, begun, strict=True):  # One by one, which numpy does faster than at once.
            fact[rows] = values

    def _finish_all(self, ends: _Ends, after: Array, recorder: BlockRecorder, observations: Sequence[Array]) -> None:
        """Finish what ended, in the order of time; the next numbers of these rows (K,) take their places."""
        steps, rows, count, n_rows = ends.steps, ends.rows, ends.count, self._n_rows
        # What ran before these steps, and behind it what began in them: one of these ended each time.
        known_of = np.empty((N_BEGUN, n_rows + len(rows)), np.int64)
        known_of[:, :n_rows] = self._state
        began_at = self._times[np.minimum(steps + 1, count - 1)]
        nexts = self._begun(after, steps + (ends.first + 2), began_at, out=known_of[:, n_rows:])
        before, is_last = self._neighbours(rows)
        own = before == NONE
        flags = self._terminated.ravel().take(ends.flat), self._truncated.ravel().take(ends.flat)
        begun = known_of.take(np.where(own, rows, before + n_rows), axis=1)
        ended = Finished(
            Finished.of(begun, rows, steps + (ends.first + 1), flags, self._times.take(steps)),
            self._told_to(rows, own) if self._told else None,
            self._last(ends, recorder, observations),
        )
        known = ended.number != NONE
        recorder.finish(ended if known.all() else ended.at(known.nonzero()[0]))
        if self._told:
            self._infos[rows] = None
        last = is_last.nonzero()[0]
        self._set(rows[last], nexts.take(last, axis=1))

    def _told_to(self, rows: Array, own: Array) -> Array:
        """Return what resets told of ended episodes: the others of these steps were told nothing."""
        infos = self._infos[rows]
        infos[~own] = None
        return infos

    @staticmethod
    def _last(ends: _Ends, recorder: BlockRecorder, observations: Sequence[Array]) -> tuple[Array, ...]:
        """Return the last observations: what the rows saw in the step in which they were reset."""
        block = recorder.block
        places = block.places(ends.steps + (ends.first + 1), ends.rows)
        last = tuple(block.rows(at, places) for at in range(recorder.n_observation_leaves))
        recent = (ends.steps == ends.count - 1).nonzero()[0]
        for column, leaf in zip(last, observations, strict=True):
            column[recent] = leaf[ends.rows[recent]]
        return last

    def _neighbours(self, rows: Array) -> tuple[Array, Array]:
        """Return which end came before each in the same row, NONE for the first; and whether it is the row's last."""
        order = rows.astype(self._row_type).argsort(kind="stable")
        in_order = rows[order]
        differs = in_order[1:] != in_order[:-1]
        before = np.full(len(rows), NONE)
        before[order[1:]] = np.where(differs, NONE, order[:-1])
        is_last = np.ones(len(rows), bool)
        is_last[order[:-1]] = differs
        return before, is_last
