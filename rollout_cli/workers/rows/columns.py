"""Column, which checks and records the samples of one leaf of a space in one running episode.

This is the hot path of a worker: one call per step for the observation and one for the action. An array of
the space's dtype and shape costs one comparison and one copy to bytes. Other values take a slower path that
converts them if the conversion is safe and raises BadValueError otherwise.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from rollout_cli.episodes.spaces import Array, Leaf
from rollout_cli.memory import Frames
from rollout_cli.workers.checks import (
    BadValueError,
    as_array,
    bad_action,
    cast_numbers,
    checked_text,
    clipped,
    inside_check,
    shown,
)
from rollout_cli.workers.values import OnInvalidAction

Record = Callable[[Any], Any]

FRAME_BYTES = 1 << 12
"""Samples of at least this size are copied directly into one array, and smaller ones to bytes."""

_FEW_NUMBERS = 4_096  # Maximum size of a Discrete space whose actions are created in advance.


class Column:
    """The samples of one leaf of a space.

    Attributes:
        leaf: The leaf.
        samples: A list of integers, strings or sequences, a Frames array for large samples, or a bytearray.
        cast: A warning about samples that lost digits, or an empty string.
    """

    def __init__(self, leaf: Leaf, name: str) -> None:
        self.leaf = leaf
        self.cast = ""
        self._name = f"{name} at {leaf.name!r}" if leaf.path else name
        # Unpickled spaces have their own dtype objects; the canonical one can be compared with `is`.
        self._dtype: np.dtype[Any] = np.dtype(leaf.dtype.type)
        self.samples: Any = [] if leaf.kind in ("discrete", "text", "sequence") else bytearray()
        self._width = leaf.row_bytes if isinstance(self.samples, bytearray) else 1  # Items per sample.
        if leaf.row_bytes >= FRAME_BYTES:
            self.samples = Frames(self._dtype, leaf.shape)
            self._width = 1

    def cut(self, start: int | None, stop: int | None) -> Any:
        """Return a copy or view of samples `start` to `stop - 1`, a piece for `joined`."""
        width = self._width
        return self.samples[start and start * width : stop and stop * width]

    def joined(self, pieces: Sequence[Any], count: int) -> Array:
        """Join pieces of any columns of this leaf, `count` samples in total, to an array (count, *shape)."""
        if isinstance(self.samples, Frames):
            samples: Any = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        elif isinstance(self.samples, list):
            samples = np.fromiter(chain.from_iterable(pieces), self._dtype, count)
        else:
            # A bytearray rather than bytes, so that the resulting arrays are writable.
            samples = np.frombuffer(bytearray().join(pieces), self._dtype)
        return np.asarray(samples.reshape(count, *self.leaf.shape))

    def recording(self) -> Record:
        """Return the function that appends one sample and returns it, converted to its space's dtype."""
        samples = self.samples
        convert = self._converted
        integer = self._integer
        ndarray = np.ndarray
        append: Any = samples.extend if isinstance(samples, bytearray) else samples.append
        dtype = self._dtype
        shape = self.leaf.shape
        name = self._name
        space = self.leaf.space

        def record_bytes(value: Any) -> Any:
            if type(value) is not ndarray or value.dtype is not dtype or value.shape != shape:
                value = convert(value)
            append(value.tobytes())
            return value

        def record_frame(value: Any) -> Any:
            if type(value) is not ndarray or value.dtype is not dtype or value.shape != shape:
                value = convert(value)
            append(value)
            return value

        def record_integer(value: Any) -> Any:
            number = value if type(value) is int else integer(value)
            if not -(2**63) <= number < 2**63:
                raise self._refusal(value)
            append(number)
            return value

        def record_text(value: Any) -> Any:
            append(checked_text(name, value, space))
            return value

        if self.leaf.kind == "sequence":
            return self._recording_sequences()
        records = {"discrete": record_integer, "text": record_text}
        return records.get(self.leaf.kind, record_frame if isinstance(samples, Frames) else record_bytes)

    def recording_actions(self, rule: OnInvalidAction) -> Record:
        """Return the function that checks and appends one action and returns the action for `env.step`."""
        if self.leaf.kind == "discrete":
            return self._recording_numbers(rule)
        leaf = self.leaf
        record = self.recording()
        if rule == "warn":
            return record
        is_inside = inside_check(leaf)
        clips = rule == "clip" and leaf.kind == "box"

        def record_checked(value: Any) -> Any:
            value = record(clipped(value, leaf.space) if clips else value)
            if not is_inside(value):
                raise bad_action(leaf, value, rule)
            return value

        return record_checked

    def _recording_numbers(self, rule: OnInvalidAction) -> Record:
        leaf = self.leaf
        append = self.samples.append
        integer = self._integer
        kind: Any = np.dtype(leaf.space.dtype).type
        low, high = leaf.bounds or (0, -1)
        # Looking up a numpy integer is several times faster than creating it.
        actions: dict[int, Any] = {}
        if high - low < _FEW_NUMBERS:
            actions = {number: kind(number) for number in range(low, high + 1)}
        if rule == "warn":
            low = np.iinfo(kind).min
            high = np.iinfo(kind).max

        def record(value: Any) -> Any:
            number = value if type(value) is int else integer(value)
            action = actions.get(number)
            if action is None:
                if not low <= number <= high:
                    raise bad_action(leaf, number, rule)
                action = kind(number)
            append(number)
            return action  # A numpy integer, as `sample` returns; gymnasium checks Python integers slower.

        return record

    def _converted(self, value: Any) -> Array:
        """Convert a value to an array of the leaf's dtype and shape."""
        try:
            numbers = as_array(value)
        except Exception as error:  # Arrays of other libraries may raise anything.
            raise self._refusal(value) from error
        if numbers.shape != self.leaf.shape or not np.can_cast(numbers.dtype, self._dtype, "same_kind"):
            raise self._refusal(value)
        # Only arrays are warned about: the user did not choose a dtype for a list.
        loses_digits = self._dtype.kind == "f" and not np.can_cast(numbers.dtype, self._dtype)
        if loses_digits and hasattr(value, "dtype"):
            self.cast = (
                f"{self._name} is {numbers.dtype}, and is cast to {self._dtype}, the dtype of its space"
            )
        # A copy: JAX arrays are read-only, and the policy may overwrite its arrays.
        return cast_numbers(self._name, "has", self.leaf, numbers, self._dtype)

    def _recording_sequences(self) -> Record:
        element = Column(self.leaf.element, self._name)
        space: Any = self.leaf.space

        def record(value: Any) -> Any:
            elements = np.array([*map(element._converted, value)], element._dtype)
            elements = elements.reshape(-1, *element.leaf.shape)
            elements.setflags(write=False)  # A batched policy receives the recorded arrays.
            self.samples.append(elements)
            copied = elements.copy()
            return copied if space.stack else tuple(copied)

        return record

    def _integer(self, value: Any) -> int:
        """Convert a number or a numpy bool, such as the result of a comparison, to a Python integer."""
        try:
            return int(value) if isinstance(value, np.bool_) else operator.index(value)
        except TypeError as error:
            raise self._refusal(value) from error

    def _refusal(self, value: Any) -> BadValueError:
        leaf = self.leaf
        description = f"{value.dtype}{value.shape}" if isinstance(value, np.ndarray) else shown(value)
        return BadValueError(
            f"{self._name} is {description}, expected {leaf.dtype}{leaf.shape} of {leaf.space}",
            code="value-shape",
        )
