"""Columns: the samples of one leaf of a space in one running episode, checked and recorded one a step.

This is the hot path of a worker: one call a step for the observation and one for the action. An array of its space's
own type costs one comparison and one copy to bytes. Every other value goes a slower way, which converts it where no
meaning is lost, and refuses the rest.
"""

from __future__ import annotations

import operator
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rollout_cli.episodes.spaces import Leaf
from rollout_cli.memory import Frames
from rollout_cli.workers.checks import BadValueError, bad_action, checked_text, clipped, inside_check, shown
from rollout_cli.workers.values import OnInvalidAction

Array = npt.NDArray[Any]
Record = Callable[[Any], Any]

FRAME_BYTES = 1 << 12
"""From so many bytes a sample is copied to its place in one array, and not to bytes first."""

_FEW_NUMBERS = 4_096  # A Discrete of at most so many values has a table of them.
_MOST_UNPACKED = 1_024  # Steps of a running episode that are kept as objects of their own.


class Column:
    """The samples of one leaf, as bytes.

    Attributes:
        leaf: The leaf.
    """

    def __init__(self, leaf: Leaf, name: str) -> None:
        self.leaf = leaf
        self._samples: Any = []
        self._packed = bytearray()
        self._name = f"{name} at {leaf.name!r}" if leaf.path else name
        # A space that was pickled has a dtype object of its own; the usual one lets `is` take the place of `==`.
        self._dtype: np.dtype[Any] = np.dtype(leaf.dtype.type)

    def last(self) -> Any:
        """Return the last sample, as `joined` takes it."""
        return self._samples[-1]

    def pop(self) -> Any:
        """Remove the last sample and return it, as `joined` takes it."""
        return self._samples.pop()

    def cut(self) -> Any:
        """Remove all samples and return them, as `joined` takes them."""
        samples = b"".join((self._packed, *self._samples))
        self.clear()
        return samples

    def clear(self) -> None:
        """Remove all samples; one that failed may be in some columns only."""
        self._samples.clear()
        self._packed.clear()

    def pack(self) -> None:
        """Keep the samples of a long episode in a fifth of the memory, all but the last."""
        if len(self._samples) > _MOST_UNPACKED:
            self._packed += b"".join(self._samples[:-1])
            del self._samples[:-1]

    def joined(self, pieces: Sequence[Any], count: int) -> Array:
        """Return what was cut, `count` samples in all, as an array (count, *shape)."""
        # A bytearray rather than bytes, so that the arrays can be written to by whoever gets them.
        return np.frombuffer(bytearray().join(pieces), self._dtype).reshape(count, *self.leaf.shape)

    def recording(self) -> Record:
        """Return the function that appends one sample, and returns it as its space has it."""
        append, convert, ndarray = self._samples.append, self._converted, np.ndarray
        dtype, shape = self._dtype, self.leaf.shape

        def record(value: Any) -> Any:
            if type(value) is not ndarray or value.dtype is not dtype or value.shape != shape:
                value = convert(value)
            append(value.tobytes())
            return value

        return record

    def recording_actions(self, rule: OnInvalidAction) -> Record:
        """Return the function that appends one sample before the environment gets what it returns."""
        leaf, record = self.leaf, self.recording()
        if rule == "warn":
            return record
        is_inside, clips = inside_check(leaf), rule == "clip" and leaf.kind == "box"

        def record_checked(value: Any) -> Any:
            value = record(clipped(value, leaf.space) if clips else value)
            if not is_inside(value):
                raise bad_action(leaf, value, rule)
            return value

        return record_checked

    def _converted(self, value: Any) -> Array:
        """Return an array of the leaf's type and shape."""
        try:
            numbers = np.asarray(value)
        except Exception as error:  # A foreign array (a tensor with a gradient) may refuse in any way.
            raise self._refusal(value) from error
        if numbers.shape != self.leaf.shape or not np.can_cast(numbers.dtype, self._dtype, "same_kind"):
            raise self._refusal(value)
        with np.errstate(over="ignore"):  # A number that is too large becomes inf, which the checks name.
            return np.asarray(numbers, self._dtype)

    def _refusal(self, value: Any) -> BadValueError:
        got = f"{value.dtype}{value.shape}" if isinstance(value, np.ndarray) else shown(value)
        leaf = self.leaf
        return BadValueError(f"{self._name} is {got}, expected {leaf.dtype}{leaf.shape} of {leaf.space}")


class FrameColumn(Column):
    """The samples of a leaf whose samples are large, as one array."""

    def __init__(self, leaf: Leaf, name: str) -> None:
        super().__init__(leaf, name)
        self._frames = Frames(self._dtype, leaf.shape)

    def last(self) -> Any:
        return self._frames.last()

    def pop(self) -> Any:
        return self._frames.pop()

    def cut(self) -> Any:
        return self._frames.cut()

    def clear(self) -> None:
        self._frames.clear()

    def joined(self, pieces: Sequence[Any], count: int) -> Array:
        frames = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        return np.asarray(frames.reshape(count, *self.leaf.shape))

    def recording(self) -> Record:
        append, convert, ndarray = self._frames.append, self._converted, np.ndarray
        dtype, shape = self._dtype, self.leaf.shape

        def record(value: Any) -> Any:
            if type(value) is not ndarray or value.dtype is not dtype or value.shape != shape:
                value = convert(value)
            append(value)
            return value

        return record


class _ListColumn(Column):
    """The samples of a leaf in a list of their own: integers or texts."""

    def last(self) -> Any:
        return self._samples[-1:]

    def pop(self) -> Any:
        last = self.last()
        del self._samples[-1:]
        return last

    def cut(self) -> Any:
        samples = self._samples[:]
        self.clear()
        return samples

    def clear(self) -> None:
        del self._samples[:]

    def pack(self) -> None:
        pass


class IntegerColumn(_ListColumn):
    """The samples of a Discrete leaf."""

    def __init__(self, leaf: Leaf, name: str) -> None:
        super().__init__(leaf, name)
        self._samples = array("q")

    def recording(self) -> Record:
        append, integer = self._samples.append, self._integer

        def record(value: Any) -> Any:
            append(value if type(value) is int else integer(value))
            return value

        return record

    def recording_actions(self, rule: OnInvalidAction) -> Record:
        leaf, append, integer = self.leaf, self._samples.append, self._integer
        kind: Any = np.dtype(leaf.space.dtype).type
        low, high = leaf.bounds or (0, -1)
        # A number is looked up several times as fast as made.
        table = {number: kind(number) for number in range(low, high + 1)} if high - low < _FEW_NUMBERS else {}
        least, greatest = (np.iinfo(kind).min, np.iinfo(kind).max) if rule == "warn" else (low, high)

        def record(value: Any) -> Any:
            number = value if type(value) is int else integer(value)
            action = table.get(number)
            if action is None:
                if not least <= number <= greatest:
                    raise bad_action(leaf, number, rule)
                action = kind(number)
            append(number)
            return action  # Not Python's integer: gymnasium's check of it takes longer, and `sample` gives numpy's.

        return record

    def _integer(self, value: Any) -> int:
        """Return Python's integer of a number, or of a comparison of numpy values, which gives numpy's bool."""
        try:
            return int(value) if isinstance(value, np.bool_) else operator.index(value)
        except TypeError as error:
            raise self._refusal(value) from error


class TextColumn(_ListColumn):
    """The samples of a leaf of texts."""

    def joined(self, pieces: Sequence[Any], count: int) -> Array:
        texts = np.array([text for piece in pieces for text in piece], object)
        return texts.reshape(count)

    def recording(self) -> Record:
        append, name, space = self._samples.append, self._name, self.leaf.space

        def record(value: Any) -> Any:
            append(checked_text(name, value, space))
            return value

        return record


def column_of(leaf: Leaf, name: str) -> Column:
    """Return an empty column for a leaf; `name` is what messages call a sample."""
    kinds: dict[str, type[Column]] = {"discrete": IntegerColumn, "text": TextColumn}
    is_large = leaf.row_bytes >= FRAME_BYTES
    return kinds.get(leaf.kind, FrameColumn if is_large else Column)(leaf, name)
