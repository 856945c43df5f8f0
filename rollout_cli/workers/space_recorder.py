"""Recording samples of one space, a row at a time, as one growing column a leaf.

This is the hot path: one call a step for the observation and one for the action. A sample that has its space's type
goes through one comparison and one copy to bytes; everything else goes the slow way, which converts what can be
converted without loss of meaning and refuses the rest.
"""

from __future__ import annotations

import abc
import operator
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from rollout_cli.spaces import Leaf, leaf_getters, space_leaves, unflatten

Array = npt.NDArray[Any]
LeafRows = list[Any]
"""Rows of one leaf as they are kept: bytes, integers or texts."""


class BadSampleError(Exception):
    """A sample that does not have the type or shape of its space; the message prints both sides."""


class SpaceRecorder:
    """Rows of samples of `space`.

    Attributes:
        record: Append one sample. Returns the same sample in its space's own types, and private to the caller: what an
            environment or policy does to its own buffer afterwards changes neither the rows nor the returned value.

    Args:
        space: What is recorded.
        copy: Whether array leaves are copied before they are returned; without it they are returned as they came.
    """

    record: Callable[[Any], Any]

    def __init__(self, space: gymnasium.Space[Any], *, copy: bool = True) -> None:
        self._columns = [_column(leaf, copy=copy) for leaf in space_leaves(space)]
        if len(self._columns) == 1 and not self._columns[0].leaf.path:
            self.record = self._columns[0].record
        else:
            self.record = _tree_recorder(space, self._columns)

    @property
    def plain_dtype(self) -> np.dtype[Any] | None:
        """Return the dtype of a space that is one array; None for every other space.

        Where the first sample of an episode was recorded, the caller may append the bytes of the next ones to `rows`
        itself, if they are of exactly this dtype and size.
        """
        column = self._columns[0]
        is_plain = len(self._columns) == 1 and not column.leaf.path and type(column) is _ArrayColumn
        return column.dtype if is_plain and isinstance(column, _ArrayColumn) else None

    @property
    def is_discrete(self) -> bool:
        """Return whether the space is one Discrete, whose rows are Python integers."""
        return type(self._columns[0]) is _DiscreteColumn and not self._columns[0].leaf.path

    @property
    def rows(self) -> LeafRows:
        """Return the list that the first leaf's rows are appended to; it stays the same list."""
        return self._columns[0].rows

    def cut(self) -> list[LeafRows]:
        """Remove all rows and return them as they were kept, one list a leaf; `join` makes arrays of them."""
        return [column.cut() for column in self._columns]

    def join(self, parts: Sequence[list[LeafRows]]) -> tuple[Array, ...]:
        """Return the rows of several cuts after one another, one array `(rows, *leaf.shape)` a leaf."""
        columns = zip(self._columns, zip(*parts, strict=True), strict=True)
        return tuple(column.join(list(chain.from_iterable(cuts))) for column, cuts in columns)


def _tree_recorder(space: gymnasium.Space[Any], columns: list[_Column]) -> Callable[[Any], Any]:
    records = [(get, column.record) for get, column in zip(leaf_getters(space), columns, strict=True)]

    def record(sample: Any) -> Any:
        try:
            values = [get(sample) for get, _ in records]
        except (KeyError, IndexError, TypeError) as error:
            raise BadSampleError(f"it lacks {error!r}: got {sample!r:.200}, expected a sample of {space}") from error
        return unflatten(space, [keep(value) for value, (_, keep) in zip(values, records, strict=True)])

    return record


class _Column(abc.ABC):
    """The rows of one leaf; subclasses say in `record` how a value is recorded, and what is given back for it."""

    record: Callable[[Any], Any]

    def __init__(self, leaf: Leaf) -> None:
        self.leaf = leaf
        self.rows: list[Any] = []

    def cut(self) -> LeafRows:
        """Remove all rows and return them; the list that rows are appended to stays the same."""
        rows = self.rows.copy()
        self.rows.clear()
        return rows

    @abc.abstractmethod
    def join(self, rows: LeafRows) -> Array:
        """Return rows as one array."""

    def _refusal(self, value: Any) -> BadSampleError:
        where = f" at {self.leaf.name!r}" if self.leaf.path else ""
        got = f"{type(value).__name__} {value!r:.80}"
        if isinstance(value, np.ndarray):
            got = f"{value.dtype}{value.shape}"
        return BadSampleError(f"got {got}{where}, expected {self.leaf.dtype}{self.leaf.shape} of {self.leaf.space}")


class _ArrayColumn(_Column):
    """Box, MultiDiscrete and MultiBinary: rows of bytes, joined once for many steps (cheaper than stacking arrays)."""

    def __init__(self, leaf: Leaf, *, copy: bool) -> None:
        super().__init__(leaf)
        # A space that was pickled has a dtype object of its own; the usual one lets `is` take the place of `==`.
        self.dtype: np.dtype[Any] = np.dtype(leaf.dtype.type)
        self.record = self._fast_record(copy=copy)

    def _fast_record(self, *, copy: bool) -> Callable[[Any], Any]:
        dtype, shape, append, slow = self.dtype, self.leaf.shape, self.rows.append, self._convert
        ndarray = np.ndarray

        def record_copy(value: Any) -> Any:
            if type(value) is not ndarray or value.dtype is not dtype or value.shape != shape:
                value = slow(value)
            append(value.tobytes())
            return value.copy()

        def record(value: Any) -> Any:
            if type(value) is not ndarray or value.dtype is not dtype or value.shape != shape:
                value = slow(value)
            append(value.tobytes())
            return value

        return record_copy if copy else record

    def _convert(self, value: Any) -> Array:
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise self._refusal(value) from error
        if array.shape != self.leaf.shape or not np.can_cast(array.dtype, self.dtype, "same_kind"):
            raise self._refusal(value)
        return np.asarray(array, self.dtype)

    def join(self, rows: LeafRows) -> Array:
        # A bytearray rather than bytes, so that the arrays can be written to by whoever gets them.
        joined = bytearray().join(rows)
        if len(joined) != len(rows) * self.leaf.row_bytes:
            sizes = sorted({len(row) for row in rows})
            raise BadSampleError(
                f"its size changed: {sizes} bytes, expected {self.leaf.row_bytes} of {self.leaf.space}"
            )
        return np.frombuffer(joined, self.dtype).reshape(len(rows), *self.leaf.shape)


class _EmptyColumn(_ArrayColumn):
    """A Box with a zero in its shape: there is nothing to keep but the number of rows."""

    def join(self, rows: LeafRows) -> Array:
        return np.zeros((len(rows), *self.leaf.shape), self.dtype)


class _DiscreteColumn(_Column):
    """Discrete: Python's integers, also for whoever gets the value; numpy's are slower in all that they do."""

    def __init__(self, leaf: Leaf) -> None:
        super().__init__(leaf)
        self.record = self._record

    def _record(self, value: Any) -> Any:
        try:
            number = operator.index(value)
        except TypeError as error:
            # A comparison of numpy values, such as `observation[2] > 0`, gives numpy's bool, which is no index.
            if not isinstance(value, np.bool_):
                raise self._refusal(value) from error
            number = int(value)
        self.rows.append(number)
        return number

    def join(self, rows: LeafRows) -> Array:
        return np.array(rows, np.int64)


class _TextColumn(_Column):
    """Text: strings as they are."""

    def __init__(self, leaf: Leaf) -> None:
        super().__init__(leaf)
        self.record = self._record

    def _record(self, value: Any) -> Any:
        if not isinstance(value, str):
            raise self._refusal(value)
        self.rows.append(str(value))
        return value

    def join(self, rows: LeafRows) -> Array:
        column = np.empty(len(rows), object)
        column[:] = rows
        return column


def _column(leaf: Leaf, *, copy: bool) -> _Column:
    if leaf.kind == "text":
        return _TextColumn(leaf)
    if leaf.kind == "discrete":
        return _DiscreteColumn(leaf)
    if 0 in leaf.shape:
        return _EmptyColumn(leaf, copy=copy)
    return _ArrayColumn(leaf, copy=copy)
