"""StepColumn: one leaf of the steps of a vector environment's rows, in a ring, kept no wider than its values need.

What is narrow stays in the processor's caches until episodes are gathered from it, which take the leaf's own type again
then. So actions of two kinds take a byte each, and rewards what the environment gives them in.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from rollout_cli.spaces import Leaf
from rollout_cli.workers.gathering import Columns
from rollout_cli.workers.leaf_columns import BadSampleError
from rollout_cli.workers.rectangles import by_step

Array = npt.NDArray[Any]
Type = np.dtype[Any]

_TABLE = 2
"""Dimensions of a leaf whose rows are flat."""

FEW_NUMBERS = 1 << 13
"""Tables of at most so many numbers are put in another order by their places, which stay in the processor's caches."""

_NARROW = [np.dtype(kind) for kind in ("u1", "i1", "u2", "i2", "u4", "i4")]
_NO_NUMBER = np.dtype("V1")
"""What no rewards are of: the first ones that come are always looked at."""


class StepColumn:
    """A leaf, recorded as it comes.

    Attributes:
        type: The leaf's type.
        shape: Of one step, (n_rows, *shape).
        slots: Where each step of the ring is recorded, as views that are made once.

    Args:
        columns: Where the column lies; one that gets wider takes its own place there.
        at: Which of its leaves it is.
        leaf: The leaf; None for rewards.
        n_rows: Rows of the vector environment.
        pitch: How far a step lies behind the one before.
    """

    def __init__(self, columns: Columns, at: int, leaf: Leaf | None, *, n_rows: int, pitch: int) -> None:
        self._columns, self._place, self._leaf = columns, at, leaf
        self._n_rows, self._pitch = n_rows, pitch
        self.type = columns.types[at]
        self.slots = self._made_slots()
        self.shape = self.slots[0].shape
        self._order = _places_by_column(self.shape)
        self._flat_slots = [] if self._order is None else [slot.reshape(-1) for slot in self.slots]

    def at(self, slot: int) -> Array:
        """Return what was recorded in a slot of the ring, in the leaf's type."""
        return self.slots[slot].astype(self.type, copy=False)

    def put(self, slot: int, values: Any) -> None:
        """Record values that `typed` gave in a slot of the ring."""
        order = self._order
        if order is not None and values.flags.f_contiguous:
            # It lies by columns in the environment's memory: numbers taken by their places are the fastest way.
            values.ravel("K").take(order, mode="wrap", out=self._flat_slots[slot])
        else:
            self.slots[slot][...] = values

    def typed(self, values: Any) -> Array:
        """Return values as their leaf has them, (n_rows, *shape): themselves where they are of its type.

        Raises:
            BadSampleError: If they have another shape, or a type that cannot be converted without loss of meaning.
        """
        if type(values) is np.ndarray and values.shape == self.shape:
            given = values.dtype
            if given is self.type or given == self.type:
                return values
        return self._converted(values)

    def _converted(self, values: Any) -> Array:
        if self.type.kind == "O":
            return self._texts(values)
        try:
            array = np.asarray(values)
        except ValueError as error:  # Of lists that differ in length numpy makes nothing.
            raise self._refusal(f"{type(values).__name__} {values!r:.80}") from error
        if array.shape != self.shape or not np.can_cast(array.dtype, self.type, "same_kind"):
            raise self._refusal(f"{array.dtype}{array.shape}")
        return array.astype(self.type)

    def _texts(self, values: Any) -> Array:
        rows = list(values)
        if len(rows) != self._n_rows or not all(isinstance(text, str) for text in rows):
            raise self._refusal(f"{len(rows)} values, {type(rows[0]).__name__ if rows else 'none'} the first")
        column = np.empty(self._n_rows, object)
        column[:] = [str(text) for text in rows]
        return column

    def _refusal(self, got: str) -> BadSampleError:
        where = f" at {self._leaf.name!r}" if self._leaf is not None and self._leaf.name else ""
        rows = f"one for each of the {self._n_rows} rows"
        return BadSampleError(f"got {got}{where}, expected {self.type}{self.shape}, {rows}")

    def _made_slots(self) -> list[Array]:
        return list(by_step(self._columns.leaves[self._place], self._pitch)[:, : self._n_rows])

    def _keep_as(self, kept: Type) -> None:
        """Go on with another type, which has room for all that was recorded."""
        with np.errstate(all="ignore"):  # What was not recorded may be any bits.
            self._columns.leaves[self._place] = self._columns.leaves[self._place].astype(kept)
        self.slots = self._made_slots()


class NarrowColumn(StepColumn):
    """A leaf of integers with bounds that a smaller type has room for, as long as its values keep to that type.

    What is outside of the space is recorded as it is, so that it can be told: where it does not fit, the column is wide
    from then on.

    Args:
        columns: See `StepColumn`.
        at: See `StepColumn`.
        leaf: The leaf.
        narrow: The smaller type.
        n_rows: See `StepColumn`.
        pitch: See `StepColumn`.
    """

    def __init__(self, columns: Columns, at: int, leaf: Leaf, narrow: Type, *, n_rows: int, pitch: int) -> None:
        rows = columns.leaves[at]
        columns.leaves[at] = np.empty(rows.shape, narrow)
        super().__init__(columns, at, leaf, n_rows=n_rows, pitch=pitch)
        self._order = None  # Only numbers of one type are taken by their places.
        limits = np.iinfo(narrow)
        self._least, self._span = self.type.type(limits.min), int(limits.max) - int(limits.min)
        self._is_narrow = True

    def put(self, slot: int, values: Any) -> None:
        """Record values that `typed` gave in a slot of the ring."""
        if self._is_narrow:
            above = values - self._least if self._least else values
            # The span is all ones: what has another bit, or a sign, is outside of it, and all bits are found at once.
            if not 0 <= int(np.bitwise_or.reduce(above, axis=None)) <= self._span:
                self._is_narrow = False
                self._keep_as(self.type)
        self.slots[slot][...] = values


class RewardColumn(StepColumn):
    """Rewards: numbers of any type, kept in the first one that comes as long as they do not need more.

    Args:
        columns: See `StepColumn`.
        at: See `StepColumn`.
        n_rows: See `StepColumn`.
        pitch: See `StepColumn`.
    """

    def __init__(self, columns: Columns, at: int, *, n_rows: int, pitch: int) -> None:
        super().__init__(columns, at, None, n_rows=n_rows, pitch=pitch)
        self._kept: Type | None = None
        self._given: Type = _NO_NUMBER

    def put(self, slot: int, values: Any) -> None:
        """Record a step's rewards in a slot of the ring.

        Raises:
            BadSampleError: As `typed`.
        """
        # A type that was seen before is converted while it is copied.
        if type(values) is not np.ndarray or values.dtype != self._given or values.shape != self.shape:
            values = self._made_room_for(values)
        self.slots[slot][...] = values

    def _made_room_for(self, values: Any) -> Array:
        """Return numbers of a type that was not given last, for which the column is made wide enough."""
        typed = self.typed(values)
        is_known = type(values) is np.ndarray and values.dtype.kind in "biuf"
        needed = values.dtype if is_known and np.can_cast(values.dtype, self.type, "safe") else self.type
        if self._kept is None:
            self._kept = needed if needed.itemsize < self.type.itemsize else self.type
            self._keep_as(self._kept)
        elif not np.can_cast(needed, self._kept, "safe"):
            self._kept = self.type
            self._keep_as(self._kept)
        if is_known:
            self._given = values.dtype
        return typed


def step_columns(columns: Columns, leaves: Sequence[Leaf], *, n_rows: int, pitch: int) -> list[StepColumn]:
    """Return how each of `columns` is recorded: the leaves, and behind them the rewards."""
    out: list[StepColumn] = []
    for at, leaf in enumerate(leaves):
        narrow = _narrow_type(leaf)
        if narrow is None:
            out.append(StepColumn(columns, at, leaf, n_rows=n_rows, pitch=pitch))
        else:
            out.append(NarrowColumn(columns, at, leaf, narrow, n_rows=n_rows, pitch=pitch))
    return [*out, RewardColumn(columns, len(leaves), n_rows=n_rows, pitch=pitch)]


def _narrow_type(leaf: Leaf) -> Type | None:
    """Return the smallest type that has room for a leaf's values; None where it is the leaf's, or has no integers."""
    if leaf.dtype.kind not in "iu" or leaf.bounds is None or not prod(leaf.shape):
        return None
    low, high = (int(extreme(bound)) for extreme, bound in zip((np.min, np.max), leaf.bounds, strict=True))
    smaller = (kind for kind in _NARROW if kind.itemsize < leaf.dtype.itemsize)
    return next((kind for kind in smaller if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max), None)


def _places_by_column(shape: tuple[int, ...]) -> Array | None:
    """Return where each number of a table (n, k) lies if it lies by columns; None for what is no small table."""
    if len(shape) != _TABLE or shape[1] == 1 or prod(shape) > FEW_NUMBERS:
        return None
    return np.ascontiguousarray(np.arange(prod(shape)).reshape(shape[::-1]).T).reshape(-1)
