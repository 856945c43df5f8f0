"""Recording samples of one space, a row at a time, as one growing column a leaf.

This is the hot path: one call a step for the observation and one for the action. A sample that has its space's type
goes through one comparison and one copy to bytes; everything else goes the slow way, which converts what can be
converted without loss of meaning and refuses the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from rollout_cli.spaces import leaf_getters, space_leaves, unflatten
from rollout_cli.workers.leaf_columns import FEW_NUMBERS, ArrayColumn, BadSampleError, LeafRows, Numbers, leaf_column

Array = npt.NDArray[Any]


class SpaceRecorder:
    """Rows of samples of `space`.

    Attributes:
        record: Append one sample. Returns the same sample in its space's own types, and private to the caller: what an
            environment or policy does to its own buffer afterwards changes neither the rows nor the returned value.
        keep: The same, but what is returned may be the environment's or policy's own.

    Args:
        space: What is recorded.
        strict: Whether integers outside of a Discrete space are refused, where that costs nothing.
    """

    record: Callable[[Any], Any]
    keep: Callable[[Any], Any]

    def __init__(self, space: gymnasium.Space[Any], *, strict: bool = False) -> None:
        self._strict = strict
        self._columns = [leaf_column(leaf) for leaf in space_leaves(space)]
        if len(self._columns) == 1 and not self._columns[0].leaf.path:
            self.record, self.keep = self._columns[0].record, self._columns[0].keep
        else:
            self.record = _tree_recorder(space, [column.record for column in self._columns])
            self.keep = _tree_recorder(space, [column.keep for column in self._columns])

    @property
    def plain_dtype(self) -> np.dtype[Any] | None:
        """Return the dtype of a space that is one array; None for every other space.

        Where the first sample of an episode was recorded, the caller may append the bytes of the next ones to `rows`
        itself, if they are of exactly this dtype and size.
        """
        column = self._columns[0]
        is_plain = len(self._columns) == 1 and not column.leaf.path and type(column) is ArrayColumn
        return column.dtype if is_plain and isinstance(column, ArrayColumn) else None

    @property
    def numbers(self) -> dict[int, Any]:
        """Return the values of a space that is one Discrete of few values, in its own type; empty for any other space.

        A Python integer may be appended to `rows` as it is; what `keep` would return for it is looked up here.
        """
        space, path = self._columns[0].leaf.space, self._columns[0].leaf.path
        if path or not isinstance(space, gymnasium.spaces.Discrete) or space.n > FEW_NUMBERS:
            return {}
        return Numbers(space, strict=self._strict)

    @property
    def rows(self) -> LeafRows:
        """Return the list that the first leaf's rows are appended to; it stays the same list."""
        return self._columns[0].rows

    def cut(self) -> list[LeafRows]:
        """Remove all rows and return them as they were kept, one value a leaf; `join` makes arrays of them."""
        return [column.cut() for column in self._columns]

    def join(self, parts: Sequence[list[LeafRows]]) -> tuple[Array, ...]:
        """Return the rows of several cuts after one another, one array `(rows, *leaf.shape)` a leaf."""
        return tuple(column.join(cuts) for column, cuts in zip(self._columns, zip(*parts, strict=True), strict=True))


def _tree_recorder(space: gymnasium.Space[Any], records: list[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    getters = leaf_getters(space)

    def record(sample: Any) -> Any:
        try:
            values = [get(sample) for get in getters]
        except (KeyError, IndexError, TypeError) as error:
            raise BadSampleError(f"it lacks {error!r}: got {sample!r:.200}, expected a sample of {space}") from error
        return unflatten(space, [record(value) for value, record in zip(values, records, strict=True)])

    return record


def clipping(space: gymnasium.Space[Any], record: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return `record` for samples whose numbers are moved to the nearest bound of their Box before.

    Other spaces have no nearest value: what lies outside of them, and nan, stays as it is for others to refuse.
    """
    boxes = [leaf.space if isinstance(leaf.space, gymnasium.spaces.Box) else None for leaf in space_leaves(space)]
    getters = leaf_getters(space)

    def record_clipped(sample: Any) -> Any:
        try:
            values = [get(sample) for get in getters]
            values = [_clipped(value, box) for value, box in zip(values, boxes, strict=True)]
        except (KeyError, IndexError, TypeError, ValueError):
            return record(sample)  # It says what is wrong with it.
        return record(unflatten(space, values))

    return record_clipped


def _clipped(value: Any, box: gymnasium.spaces.Box | None) -> Any:
    if box is None:
        return value
    array = np.asarray(value)
    return np.clip(array, box.low, box.high) if array.shape == box.shape else value
