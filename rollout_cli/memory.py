"""Memory for large arrays, used again: a process pays for each page that it touches for the first time."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_FIRST_BYTES = 1 << 20


class ReusedMemory:
    """Memory for large messages, reused once no array lies in it; at most `keep` unused bytes are kept.

    The kernel clears memory that a process touches for the first time. For messages of 4 MB that doubles what
    it costs to receive them (470 against 270 us/MB). Whoever takes the arrays may keep them as long as it
    likes.
    """

    def __init__(self, keep: int = 128 << 20) -> None:
        self._keep = keep
        self._free: list[npt.NDArray[np.uint8]] = []

    def take(self, size: int) -> memoryview:
        """Return `size` writable bytes of any content."""
        if size < 1 << 16:
            return memoryview(bytearray(size))
        for at, block in enumerate(self._free):
            if size <= len(block) <= 2 * size:
                del self._free[at]
                break
        else:
            while self._free and sum(map(len, self._free)) + size > self._keep:
                self._free.pop(0)
            # A little larger than asked for: blocks of messages that are nearly alike fit one another.
            block = np.empty(size + size // 8, np.uint8)
        view = block[:size]
        # All arrays in a message are views of the memoryview, and so of `view`, which dies with the last of
        # them.
        weakref.finalize(view, self._release, block).atexit = False
        return view.data

    def _release(self, block: npt.NDArray[np.uint8]) -> None:
        # Another thread may run this while `take` runs, so it moves no other block.
        if sum(map(len, self._free)) + len(block) <= self._keep:
            self._free.append(block)


_FRAME_MEMORY = ReusedMemory()


class Frames:
    """A list of arrays of one large shape, such as images, which is one array itself: each is copied once."""

    def __init__(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self._dtype = dtype
        self._shape = shape
        self._frame_bytes = dtype.itemsize * int(np.prod(shape))
        self._least = -(-_FIRST_BYTES // self._frame_bytes)
        self._rows = self._new_rows(self._least)
        self._count = 0

    def append(self, frame: Array) -> None:
        """Copy an array of the shape behind the others."""
        if self._count == len(self._rows):
            full = self._rows
            self._rows = self._new_rows(2 * self._count)
            self._rows[: self._count] = full
        self._rows[self._count] = frame
        self._count += 1

    def __getitem__(self, part: slice) -> Array:
        """Return some of them, (count, *shape), as a view."""
        return self._rows[: self._count][part]

    def clear(self) -> None:
        """Remove all, with room for as many again: whoever has a view keeps it."""
        if self._count:
            self._rows = self._new_rows(max(self._least, self._count))
            self._count = 0

    def _new_rows(self, size: int) -> Array:
        return np.frombuffer(_FRAME_MEMORY.take(size * self._frame_bytes), self._dtype).reshape(
            size, *self._shape
        )
