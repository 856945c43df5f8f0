"""Columns that grow by one sample a step, and are joined into arrays once a chunk.

This is the hot path of a worker with one environment: one call a step for the observation and one for the action. An
array of its space's own type costs one comparison and one copy to bytes. Every other value goes a slower way, which
converts it where no meaning is lost, and refuses the rest.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rollout_cli.episodes.spaces import Leaf, leaf_getters, space_leaves, unflatten
from rollout_cli.workers.checks import BadValueError, action_check, bad_action, checked_text, clipped, shown
from rollout_cli.workers.worker import OnInvalidAction

Array = npt.NDArray[Any]
Record = Callable[[Any], Any]

_FEW_NUMBERS = 4_096
"""A Discrete of at most so many values has a table of them: a value is looked up several times as fast as made."""


class SpaceRecorder:
    """Rows of samples of one space.

    Attributes:
        record: Append one sample. Returns the sample as its space has it: the very same one where its type is right,
            else a converted one. Raises BadValueError for a sample that is none of the space.
        row_bytes: The bytes of one row, without its texts.

    Args:
        space: The space.
        name: What a sample is called in messages.
    """

    def __init__(self, space: gymnasium.Space[Any], name: str) -> None:
        self._columns = [_Column(leaf, name) for leaf in space_leaves(space)]
        self.row_bytes = sum(column.leaf.row_bytes for column in self._columns)
        self.record = _tree_record(space, [column.record for column in self._columns], name)

    def cut(self, count: int) -> tuple[Array, ...]:
        """Remove the first `count` rows and return them, one array (count, *leaf.shape) a leaf."""
        return tuple(column.cut(count) for column in self._columns)

    def truncate(self, count: int) -> None:
        """Remove all rows but the first `count`; a sample that failed may be in some columns only."""
        for column in self._columns:
            del column.rows[count:]


class ActionRecorder(SpaceRecorder):
    """Rows of actions, held against their space before the environment sees them.

    Attributes:
        record: As in SpaceRecorder; what it returns goes to the environment.

    Args:
        space: The action space.
        rule: What becomes of an action outside of the space.
        trusted: Whether the actions are in their space by construction.
    """

    def __init__(self, space: gymnasium.Space[Any], rule: OnInvalidAction, *, trusted: bool) -> None:
        super().__init__(space, "the action")
        records = [_action_record(column, rule, trusted=trusted) for column in self._columns]
        self.record = _tree_record(space, records, "the action")


def _tree_record(space: gymnasium.Space[Any], records: list[Record], name: str) -> Record:
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return records[0]
    getters = leaf_getters(space)

    def record(sample: Any) -> Any:
        try:
            values = [get(sample) for get in getters]
        except (KeyError, IndexError, TypeError) as error:
            raise BadValueError(f"{name} lacks {error!r}: {sample!r:.200}, expected a sample of {space}") from error
        kept = [record(value) for value, record in zip(values, records, strict=True)]
        # Only where a value was converted is another tree needed.
        return sample if all(map(operator.is_, values, kept)) else unflatten(space, kept)

    return record


class _Column:
    """The rows of one leaf, as bytes, integers or texts."""

    def __init__(self, leaf: Leaf, name: str) -> None:
        self.leaf, self.name = leaf, name
        self.rows: list[Any] = []
        # A space that was pickled has a dtype object of its own; the usual one lets `is` take the place of `==`.
        self.dtype: np.dtype[Any] = np.dtype(leaf.dtype.type)
        makers = {"discrete": self._integer_record, "text": self._text_record}
        self.record: Record = makers.get(leaf.kind, self._array_record)()

    def cut(self, count: int) -> Array:
        rows = self.rows[:count]
        del self.rows[:count]
        if self.leaf.kind == "discrete":
            return np.array(rows, np.int64)
        if self.leaf.kind == "text":
            texts = np.empty(count, object)
            texts[:] = rows
            return texts
        if not self.leaf.row_bytes:
            return np.zeros((count, *self.leaf.shape), self.dtype)
        # A bytearray rather than bytes, so that the arrays can be written to by whoever gets them.
        return np.frombuffer(bytearray().join(rows), self.dtype).reshape(count, *self.leaf.shape)

    def _array_record(self) -> Record:
        dtype, shape, append, convert, ndarray = self.dtype, self.leaf.shape, self.rows.append, self.convert, np.ndarray

        def record(value: Any) -> Any:
            if type(value) is not ndarray or value.dtype is not dtype or value.shape != shape:
                value = convert(value)
            append(value.tobytes())
            return value

        return record

    def _integer_record(self) -> Record:
        append, integer = self.rows.append, self.integer

        def record(value: Any) -> Any:
            append(value if type(value) is int else integer(value))
            return value

        return record

    def _text_record(self) -> Record:
        append, name, space = self.rows.append, self._place(), self.leaf.space

        def record(value: Any) -> Any:
            append(checked_text(name, value, space))
            return value

        return record

    def convert(self, value: Any) -> Array:
        """Return an array of the leaf's type and shape."""
        try:
            array = np.asarray(value)
        except Exception as error:  # A foreign array (a tensor with a gradient) may refuse in any way.
            raise self.refusal(value) from error
        if array.shape != self.leaf.shape or not np.can_cast(array.dtype, self.dtype, "same_kind"):
            raise self.refusal(value)
        return np.asarray(array, self.dtype)

    def integer(self, value: Any) -> int:
        """Return Python's integer of a number, or of a comparison of numpy values, which gives numpy's bool."""
        try:
            return int(value) if isinstance(value, np.bool_) else operator.index(value)
        except TypeError as error:
            raise self.refusal(value) from error

    def refusal(self, value: Any) -> BadValueError:
        got = f"{value.dtype}{value.shape}" if isinstance(value, np.ndarray) else shown(value)
        leaf = self.leaf
        return BadValueError(f"{self._place()} is {got}, expected {leaf.dtype}{leaf.shape} of {leaf.space}")

    def _place(self) -> str:
        return f"{self.name} at {self.leaf.name!r}" if self.leaf.path else self.name


def _action_record(column: _Column, rule: OnInvalidAction, *, trusted: bool) -> Record:
    leaf = column.leaf
    checked = rule != "warn" and not trusted
    if leaf.kind == "discrete":
        return _discrete_action(column, rule, checked=checked)
    check = action_check(leaf, rule) if checked else None
    if rule == "clip" and leaf.kind == "box" and not trusted:
        return _checked_record(column, check, lambda value: clipped(value, leaf.space))
    return column.record if check is None else _checked_record(column, check, None)


def _checked_record(column: _Column, check: Record | None, before: Record | None) -> Record:
    record = column.record

    def record_checked(value: Any) -> Any:
        value = record(value if before is None else before(value))
        if check is not None:
            check(value)
        return value

    return record_checked


def _discrete_action(column: _Column, rule: OnInvalidAction, *, checked: bool) -> Record:
    """Return a function that appends a number of a Discrete, and returns it as an integer."""
    leaf, append, integer = column.leaf, column.rows.append, column.integer
    kind = np.dtype(leaf.space.dtype).type
    least, greatest = leaf.bounds or (0, -1)
    table = {number: kind(number) for number in range(least, greatest + 1)} if greatest - least < _FEW_NUMBERS else {}

    def record(value: Any) -> Any:
        if type(value) is int and value in table:
            append(value)
            return value  # gymnasium checks Python's integers faster than numpy's.
        number = integer(value)
        append(number)
        found = table.get(number)
        return outside(number) if found is None else found

    def outside(number: int) -> Any:
        if checked and not least <= number <= greatest:
            raise bad_action(leaf, number, rule)
        try:
            return kind(number)
        except OverflowError as error:
            raise bad_action(leaf, number, rule) from error

    return record
