"""StepBlock: the last steps of all rows of a vector environment, in a ring ordered by time.

One vectorised copy a column records a step of all rows; `gathering.py` puts episodes together from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rollout_cli.spaces import Leaf
from rollout_cli.workers.gathering import Columns, empty_info
from rollout_cli.workers.rectangles import by_step
from rollout_cli.workers.step_columns import step_columns
from rollout_cli.workers.vector_infos import BatchColumn

Array = npt.NDArray[Any]

PADDED_ROWS = 256
PADDING = 8
"""From so many rows on, a step has room for some more, which stay empty.

Strides that are powers of two would put all steps of an episode into a few lines of the processor's caches, where they
push each other out: gathering episodes took three times as long.
"""


class StepBlock:
    """The last `n_steps` steps of `n_rows` rows: row r of step t is row t % n_steps * pitch + r of its columns.

    Attributes:
        n_rows: Rows of the vector environment.
        n_steps: Steps that it has room for.
        pitch: How far a step lies behind the one before: `n_rows`, and padding.
        step: The number of the step under way.
        oldest: The first step that is kept.
        full_at: The step for which there is no room before some are forgotten.
        columns: The steps.
        recorded: How each of the columns is recorded: the leaves, and behind them the rewards.
        slot: Where the step under way is recorded in these.

    Args:
        leaves: The leaves of the observation, then of the action.
        n_rows: Rows of the vector environment.
        n_steps: Steps that it has room for.
    """

    def __init__(self, leaves: Sequence[Leaf], *, n_rows: int, n_steps: int) -> None:
        self.n_rows, self.n_steps = n_rows, n_steps
        self.pitch = n_rows + (PADDING if n_rows >= PADDED_ROWS else 0)
        self.step = self.oldest = 0
        types = [(leaf.dtype, leaf.shape) for leaf in leaves] + [(np.dtype(np.float64), ())]
        self.columns = Columns([np.empty((n_steps * self.pitch, *shape), dtype) for dtype, shape in types])
        self.recorded = step_columns(self.columns, leaves, n_rows=n_rows, pitch=self.pitch)
        self.slot = 0
        self.full_at = n_steps

    @property
    def is_full(self) -> bool:
        """Return whether there is no room for a further step."""
        return self.step == self.full_at

    def stepped(self) -> None:
        """Go on to the next step."""
        self.step += 1
        slot = self.slot + 1
        self.slot = slot if slot < self.n_steps else 0

    def put_typed(self, at: int, leaves: Sequence[Any]) -> None:
        """Record leaves of the step under way that `typed` gave, from number `at` on."""
        for number, leaf in enumerate(leaves, at):
            self.recorded[number].put(self.slot, leaf)

    def typed(self, at: int, value: Any) -> Array:
        """Return leaf number `at` in its type: itself where it has it.

        Raises:
            BadSampleError: If it has another shape, or a type that cannot be converted without loss of meaning.
        """
        return self.recorded[at].typed(value)

    def rows(self, at: int, places: Array) -> Array:
        """Return leaf number `at` at some places (k,), in its type (k, *shape)."""
        taken = self.columns.leaves[at].take(places, axis=0)
        return taken.astype(self.columns.types[at], copy=False)

    def put_info(self, which: int, column: BatchColumn) -> None:
        """Add infos to the step under way, in the rows that have them: of the environment (0) or of the policy (1)."""
        columns = self.columns.infos[which]
        if column.key not in columns:
            columns[column.key] = empty_info(self.n_steps * self.pitch, column.values)
        values, has = (self._steps(array)[self.slot] for array in columns[column.key])
        if column.has is None:
            values[:], has[:] = column.values, True
        else:
            values[column.has] = column.values[column.has]
            has |= column.has

    def places(self, steps: Array, rows: Array) -> Array:
        """Return where steps that are kept (k,), of some rows (k,), lie in the columns."""
        return steps % self.n_steps * self.pitch + rows

    def _steps(self, column: Array) -> Array:
        """Return a column by step and row, as a view (n_steps, n_rows, *shape)."""
        return by_step(column, self.pitch)[:, : self.n_rows]

    def forget(self, stop: int) -> None:
        """Forget the steps before `stop`."""
        slots = np.arange(self.oldest, stop) % self.n_steps
        for columns in self.columns.infos:
            for key, (values, has) in list(columns.items()):
                self._steps(has)[slots] = False
                if not has.any():
                    del columns[key]
                elif values.dtype == object:
                    self._steps(values)[slots] = None  # Lets the objects go.
        self.oldest = stop
        self.full_at = stop + self.n_steps
