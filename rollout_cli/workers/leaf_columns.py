"""Columns that grow by a row of one leaf at a time, and how each kind of leaf is kept until its rows are joined."""

from __future__ import annotations

import abc
import operator
from collections.abc import Callable, Sequence
from itertools import chain
from sys import getrefcount
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from rollout_cli.spaces import Leaf

Array = npt.NDArray[Any]
LeafRows = Any
"""Rows of one leaf as they are kept: a list of bytes, integers or texts, or an array of big rows."""

FEW_NUMBERS = 4_096
"""A Discrete of at most so many values has a table of them."""

_BIG_ROW = 1 << 12
_BLOCK_BYTES = 32 << 20
_HELD_HERE_ALONE = 2
"""What `getrefcount` tells of an object that one variable holds: that variable, and the argument of the call."""

_RETIRED_BLOCKS = 2
"""Blocks that are kept to be used again."""


class BadSampleError(Exception):
    """A sample that does not have the type or shape of its space; the message prints both sides."""


class Column(abc.ABC):
    """The rows of one leaf; subclasses say how a value is recorded and what is given back: `record`, or else `keep`."""

    record: Callable[[Any], Any]
    keep: Callable[[Any], Any]

    def __init__(self, leaf: Leaf) -> None:
        self.leaf = leaf
        self.rows: list[Any] = []

    def cut(self) -> LeafRows:
        """Remove all rows and return them; the list that rows are appended to stays the same."""
        rows = self.rows.copy()
        self.rows.clear()
        return rows

    @abc.abstractmethod
    def join(self, cuts: Sequence[LeafRows]) -> Array:
        """Return the rows of several cuts as one array."""

    def _refusal(self, value: Any) -> BadSampleError:
        where = f" at {self.leaf.name!r}" if self.leaf.path else ""
        got = f"{type(value).__name__} {value!r:.80}"
        if isinstance(value, np.ndarray):
            got = f"{value.dtype}{value.shape}"
        return BadSampleError(f"got {got}{where}, expected {self.leaf.dtype}{self.leaf.shape} of {self.leaf.space}")


class ArrayColumn(Column):
    """Box, MultiDiscrete and MultiBinary: rows of bytes, joined once for many steps (cheaper than stacking arrays)."""

    def __init__(self, leaf: Leaf) -> None:
        super().__init__(leaf)
        # A space that was pickled has a dtype object of its own; the usual one lets `is` take the place of `==`.
        self.dtype: np.dtype[Any] = np.dtype(leaf.dtype.type)
        self.record, self.keep = self._recorders()

    def _recorders(self) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
        dtype, shape, append, slow = self.dtype, self.leaf.shape, self.rows.append, self._convert
        ndarray = np.ndarray

        def record(value: Any) -> Any:
            if type(value) is not ndarray or value.dtype is not dtype or value.shape != shape:
                value = slow(value)
            append(value.tobytes())
            return value.copy()

        def keep(value: Any) -> Any:
            if type(value) is not ndarray or value.dtype is not dtype or value.shape != shape:
                value = slow(value)
            append(value.tobytes())
            return value

        return record, keep

    def _convert(self, value: Any) -> Array:
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise self._refusal(value) from error
        if array.shape != self.leaf.shape or not np.can_cast(array.dtype, self.dtype, "same_kind"):
            raise self._refusal(value)
        return np.asarray(array, self.dtype)

    def join(self, cuts: Sequence[LeafRows]) -> Array:
        """Return the rows of several cuts as one array."""
        rows = list(chain.from_iterable(cuts))
        # A bytearray rather than bytes, so that the arrays can be written to by whoever gets them.
        joined = bytearray().join(rows)
        if len(joined) != len(rows) * self.leaf.row_bytes:
            sizes = sorted({len(row) for row in rows})
            raise BadSampleError(
                f"its size changed: {sizes} bytes, expected {self.leaf.row_bytes} of {self.leaf.space}"
            )
        return np.frombuffer(joined, self.dtype).reshape(len(rows), *self.leaf.shape)


class BigColumn(ArrayColumn):
    """Rows so big that memory is what they cost: they are copied once, into blocks that many of them share.

    Memory that is touched for the first time costs several times as much as the copy; less so in blocks of many
    megabytes, which numpy asks the system for in pages of two megabytes, and nothing in a block that is used again.
    """

    def __init__(self, leaf: Leaf) -> None:
        super().__init__(leaf)
        self._block: Array = np.empty((0, *leaf.shape), self.dtype)
        self._retired: list[Array] = []
        self._first = self._count = 0

    def _recorders(self) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
        return (lambda value: self._add(value).copy()), self._add

    def _add(self, value: Any) -> Array:
        if type(value) is not np.ndarray or value.dtype is not self.dtype or value.shape != self.leaf.shape:
            value = self._convert(value)
        if self._count == len(self._block):
            self._begin_block()
        self._block[self._count] = value
        self._count += 1
        added: Array = value
        return added

    def _begin_block(self) -> None:
        """Go on in another block, with the rows of the episode that runs; the old one lives as long as what was cut."""
        count = self._count - self._first
        block = self._free_block(2 * count)
        block[:count] = self._block[self._first : self._count]
        self._retired = [*self._retired, self._block][-_RETIRED_BLOCKS:]
        self._block = block
        self._first, self._count = 0, count

    def _free_block(self, size: int) -> Array:
        for at in range(len(self._retired)):
            block = self._retired.pop(at)
            # Every array that shows some of it holds a reference to the block itself.
            if len(block) >= size and getrefcount(block) == _HELD_HERE_ALONE:
                return block
            self._retired.insert(at, block)
        # Few sizes, so that blocks fit again: to ask the system for other memory of this size may take long.
        rows = max(1, _BLOCK_BYTES // self.leaf.row_bytes)
        while rows < size:
            rows *= 2
        return np.empty((rows, *self.leaf.shape), self.dtype)

    def cut(self) -> LeafRows:
        """Remove all rows and return them: what shows them in the block."""
        rows = self._block[self._first : self._count]
        self._first = self._count
        return rows

    def join(self, cuts: Sequence[LeafRows]) -> Array:
        """Return the rows of several cuts as one array."""
        return cuts[0] if len(cuts) == 1 else np.concatenate(cuts)


class EmptyColumn(ArrayColumn):
    """A Box with a zero in its shape: there is nothing to keep but the number of rows."""

    def join(self, cuts: Sequence[LeafRows]) -> Array:
        """Return the rows of several cuts as one array."""
        return np.zeros((sum(map(len, cuts)), *self.leaf.shape), self.dtype)


class DiscreteColumn(Column):
    """Discrete: rows of Python's integers. A policy sees such an integer; an environment gets its space's own type."""

    def __init__(self, leaf: Leaf) -> None:
        super().__init__(leaf)
        self._sample_type = np.dtype(leaf.space.dtype).type
        self.record, self.keep = self._record, self._keep

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

    def _keep(self, value: Any) -> Any:
        return self._sample_type(self._record(value))

    def join(self, cuts: Sequence[LeafRows]) -> Array:
        """Return the rows of several cuts as one array."""
        return np.fromiter(chain.from_iterable(cuts), np.int64, sum(map(len, cuts)))


class Numbers(dict[int, Any]):
    """The values of a Discrete in its own type: looked up several times as fast as they are made.

    Args:
        space: The space.
        strict: Whether other numbers are refused; else the environment may say what it thinks of them.
    """

    def __init__(self, space: gymnasium.spaces.Discrete, *, strict: bool = False) -> None:
        self._type = np.dtype(space.dtype).type
        self._space, self._strict = space, strict
        start = int(space.start)
        super().__init__({number: self._type(number) for number in range(start, start + int(space.n))})

    def __missing__(self, number: int) -> Any:
        if self._strict:
            raise BadSampleError(f"got {number}, expected a number of {self._space}")
        return self._type(number)


class TextColumn(Column):
    """Text: strings as they are."""

    def __init__(self, leaf: Leaf) -> None:
        super().__init__(leaf)
        self.record = self.keep = self._record

    def _record(self, value: Any) -> Any:
        if not isinstance(value, str):
            raise self._refusal(value)
        self.rows.append(str(value))
        return value

    def join(self, cuts: Sequence[LeafRows]) -> Array:
        """Return the rows of several cuts as one array."""
        rows = list(chain.from_iterable(cuts))
        column = np.empty(len(rows), object)
        column[:] = rows
        return column


def leaf_column(leaf: Leaf) -> Column:
    """Return an empty column for a leaf."""
    if leaf.kind == "text":
        return TextColumn(leaf)
    if leaf.kind == "discrete":
        return DiscreteColumn(leaf)
    if 0 in leaf.shape:
        return EmptyColumn(leaf)
    return BigColumn(leaf) if leaf.row_bytes >= _BIG_ROW else ArrayColumn(leaf)
