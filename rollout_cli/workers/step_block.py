"""StepBlock: the last steps of all rows of a vector environment, in a ring ordered by time.

One vectorised copy a column records a step of all rows; `gathering.py` puts episodes together from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from rollout_cli.spaces import Leaf
from rollout_cli.workers.gathering import Columns, empty_info
from rollout_cli.workers.leaf_columns import BadSampleError
from rollout_cli.workers.vector_infos import BatchColumn

Array = npt.NDArray[Any]

PADDED_ROWS = 256
PADDING = 8
"""From so many rows on, a step has room for some more, which stay empty.

Strides that are powers of two would put all steps of an episode into a few lines of the processor's caches, where they
push each other out: gathering episodes took three times as long.
"""


_TABLE = 2
"""Dimensions of a leaf whose rows are flat."""

FEW_NUMBERS = 1 << 13
"""Tables of at most so many numbers are put in another order by their places, which stay in the processor's caches."""


class StepBlock:
    """The last `n_steps` steps of `n_rows` rows: row r of step t is row t % n_steps * pitch + r of its columns.

    Attributes:
        n_rows: Rows of the vector environment.
        n_steps: Steps that it has room for.
        pitch: How far a step lies behind the one before: `n_rows`, and padding.
        step: The number of the step under way.
        oldest: The first step that is kept.
        is_full: Whether there is no room for a further step.
        columns: The steps.

    Args:
        leaves: The leaves of the observation, then of the action.
        n_rows: Rows of the vector environment.
        n_steps: Steps that it has room for.
    """

    def __init__(self, leaves: Sequence[Leaf], *, n_rows: int, n_steps: int) -> None:
        self.n_rows, self.n_steps = n_rows, n_steps
        self.pitch = n_rows + (PADDING if n_rows >= PADDED_ROWS else 0)
        self.step = self.oldest = 0
        self._leaves = leaves
        dtypes = [(leaf.dtype, leaf.shape) for leaf in leaves] + [(np.dtype(np.float64), ())]
        self.columns = Columns([np.empty((n_steps * self.pitch, *shape), dtype) for dtype, shape in dtypes])
        # A step's part of each column, as views that are made once.
        self._slots = [list(self._steps(column)) for column in self.columns.leaves]
        self._shapes = [slots[0].shape for slots in self._slots]
        self._orders = [_places_by_column(shape) for shape in self._shapes]
        self._dtypes = [dtype for dtype, _ in dtypes]
        self._convertible = list(self._dtypes)
        self._at = 0
        self.is_full = False

    def stepped(self) -> None:
        """Go on to the next step."""
        step = self.step = self.step + 1
        self._at = step % self.n_steps
        self.is_full = step - self.oldest == self.n_steps

    def put_typed(self, at: int, leaves: Sequence[Any]) -> None:
        """Record leaves of the step under way that `typed` gave, from number `at` on."""
        for number, leaf in enumerate(leaves, at):
            slot, order = self._slots[number][self._at], self._orders[number]
            if order is not None and leaf.flags.f_contiguous:
                # It lies by columns in the environment's memory: numbers taken by their places are the fastest way.
                leaf.T.reshape(-1).take(order, mode="wrap", out=slot.reshape(-1))
            else:
                slot[...] = leaf

    def put(self, at: int, value: Any) -> None:
        """Record a leaf of the step under way, (n_rows, *shape); leaves are counted as `Columns` has them.

        Raises:
            BadSampleError: If it has another shape, or a type that cannot be converted without loss of meaning.
        """
        # A type that was converted before is converted while it is copied: most environments' rewards are float32.
        if type(value) is not np.ndarray or value.dtype != self._convertible[at] or value.shape != self._shapes[at]:
            converted = self._converted(at, value)
            if type(value) is np.ndarray and value.dtype.kind in "biuf" and converted.dtype.kind != "O":
                self._convertible[at] = value.dtype
            value = converted
        self._slots[at][self._at][...] = value

    def typed(self, at: int, value: Any) -> Array:
        """Return `value` as its leaf has it: itself where it has the leaf's type.

        Raises:
            BadSampleError: As `put`.
        """
        if type(value) is np.ndarray and value.shape == self._shapes[at]:
            dtype = self._dtypes[at]
            if value.dtype is dtype or value.dtype == dtype:
                return value
        return self._converted(at, value)

    def _converted(self, at: int, value: Any) -> Array:
        dtype, shape = self._dtypes[at], self._shapes[at]
        if dtype.kind == "O":
            return self._texts(at, value)
        try:
            array = np.asarray(value)
        except ValueError as error:  # Of lists that differ in length numpy makes nothing.
            raise self._refusal(at, f"{type(value).__name__} {value!r:.80}") from error
        if array.shape != shape or not np.can_cast(array.dtype, dtype, "same_kind"):
            raise self._refusal(at, f"{array.dtype}{array.shape}")
        return array.astype(dtype)

    def _texts(self, at: int, value: Any) -> Array:
        rows = list(value)
        if len(rows) != self.n_rows or not all(isinstance(text, str) for text in rows):
            raise self._refusal(at, f"{len(rows)} values, {type(rows[0]).__name__ if rows else 'none'} the first")
        column = np.empty(self.n_rows, object)
        column[:] = [str(text) for text in rows]
        return column

    def _refusal(self, at: int, got: str) -> BadSampleError:
        name = self._leaves[at].name if at < len(self._leaves) else ""
        where = f" at {name!r}" if name else ""
        rows = f"one for each of the {self.n_rows} rows"
        return BadSampleError(f"got {got}{where}, expected {self._dtypes[at]}{self._shapes[at]}, {rows}")

    def put_info(self, which: int, column: BatchColumn) -> None:
        """Add infos to the step under way, in the rows that have them: of the environment (0) or of the policy (1)."""
        columns = self.columns.infos[which]
        if column.key not in columns:
            columns[column.key] = empty_info(self.n_steps * self.pitch, column.values)
        values, has = (self._steps(array)[self._at] for array in columns[column.key])
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
        return column.reshape(self.n_steps, self.pitch, *column.shape[1:])[:, : self.n_rows]

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
        self.is_full = self.step - stop == self.n_steps


def _places_by_column(shape: tuple[int, ...]) -> Array | None:
    """Return where each number of a table (n, k) lies if it lies by columns; None for what is no small table."""
    if len(shape) != _TABLE or shape[1] == 1 or prod(shape) > FEW_NUMBERS:
        return None
    return np.ascontiguousarray(np.arange(prod(shape)).reshape(shape[::-1]).T).reshape(-1)
