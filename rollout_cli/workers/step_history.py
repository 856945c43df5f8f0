"""StepHistory: the steps of all rows that somebody may still ask for, however long an episode runs.

The last steps lie in a ring. Before its oldest ones are overwritten, what running episodes need of them is carried on,
packed, and let go when these episodes end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rollout_cli.buffer_pool import BufferPool
from rollout_cli.spaces import Leaf
from rollout_cli.workers.gathering import Columns, Stretch, gather
from rollout_cli.workers.step_block import StepBlock

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class _Carried:
    """Steps of rows whose episodes went on when their part of the ring was needed: row r's lie from `offset[r]` on.

    Attributes:
        columns: The steps.
        offset: Where each row's begin (n,).
        start: The first step that each row has here (n,).
        stop: One past the last step of all.
    """

    columns: Columns
    offset: Array
    start: Array
    stop: int


class UnderWay(Protocol):
    """What is asked of the episodes that run."""

    starts: Array
    """The first step of each row's episode (n,)."""

    @property
    def running(self) -> Array:
        """Return the rows that run one."""


class StepHistory:
    """Steps of n rows.

    Attributes:
        block: The last of them.

    Args:
        leaves: The leaves of the observation, then of the action.
        n_rows: n.
        n_steps: How many steps the ring has.
        memory: Where steps are carried.
    """

    def __init__(self, leaves: Sequence[Leaf], *, n_rows: int, n_steps: int, memory: BufferPool) -> None:
        self._memory = memory
        self.block = StepBlock(leaves, n_rows=n_rows, n_steps=n_steps)
        self._n_rows = n_rows
        self._at_once = max(1, n_steps // 4)
        self._carried: list[_Carried] = []
        self._unlooked = 0

    @property
    def next_oldest(self) -> int:
        """Return the first step that stays in the ring when it is full and room is made."""
        return self.block.oldest + self._at_once

    def make_room(self, under_way: UnderWay) -> None:
        """Carry what running episodes need of the ring's oldest steps, and forget these."""
        running, starts = under_way.running, under_way.starts
        if not len(running) or int(starts[running].min()) >= self.block.oldest:
            self._carried = []
        self._carry(running, starts, self.next_oldest)
        self.block.forget(self.next_oldest)

    def stretches(self, rows: Array, starts: Array, stops: Array, to: Array) -> list[Stretch]:
        """Return where steps lie that nobody carried for another episode.

        Args:
            rows: Of some episodes (K,).
            starts: Their first steps (K,).
            stops: One past their last ones (K,).
            to: Where they are to go (K,).
        """
        out = []
        for carried in self._carried:
            # What a row has here belongs to the episode that was under way when it was carried.
            has = (starts < carried.stop) & (stops > carried.stop)
            if has.any():
                row = rows[has]
                first = np.maximum(starts[has], carried.start[row])
                offset = carried.offset[row] + first - carried.start[row]
                out.append(Stretch(carried.columns, offset, carried.stop - first, 1, to[has] + first - starts[has]))
        first = np.maximum(starts, self.block.oldest)
        has = stops > first
        if has.all():
            out.append(self._in_ring(rows, first, stops, to + first - starts))
        elif has.any():
            out.append(self._in_ring(rows[has], first[has], stops[has], (to + first - starts)[has]))
        return out

    def _in_ring(self, rows: Array, first: Array, stops: Array, to: Array) -> Stretch:
        return Stretch(self.block.columns, self.block.places(first, rows), stops - first, self.block.pitch, to)

    def _carry(self, running: Array, starts: Array, stop: int) -> None:
        """Put together what the ring has of running episodes before `stop`, and at times all that was carried."""
        kept = running[starts[running] < stop]
        if not len(kept):
            self._carried = []
            return
        alone = self._is_mostly_dead(kept, starts)
        start = starts[kept] if alone else np.maximum(starts[kept], self.block.oldest)
        count = stop - start
        offsets = np.cumsum(count) - count
        stops = np.full(len(kept), stop)
        columns = gather(self.stretches(kept, start, stops, offsets), int(count.sum()), self._memory.take)
        offset, first = np.zeros(self._n_rows, np.int64), np.full(self._n_rows, stop)
        offset[kept], first[kept] = offsets, start
        if alone:
            self._carried = []
        self._carried.append(_Carried(columns, offset, first, stop))

    def _is_mostly_dead(self, running: Array, starts: Array) -> bool:
        """Return whether less than half of what was carried belongs to episodes that still run."""
        self._unlooked += 1
        if 8 * self._unlooked < len(self._carried):
            return False  # Looking at each part of a very long episode every time would cost its length squared.
        self._unlooked = 0
        total = self.n_carried
        alive = sum(
            int(np.maximum(part.stop - np.maximum(starts[running], part.start[running]), 0).sum())
            for part in self._carried
        )
        return 2 * alive < total

    @property
    def n_carried(self) -> int:
        """Return how many rows are carried."""
        return sum(len(part.columns.leaves[-1]) for part in self._carried)
