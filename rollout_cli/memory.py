"""Reused memory for large arrays: a process pays for each page that it touches for the first time."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_FIRST_BYTES = 1 << 20


class ReusedMemory:
    """Memory for large messages, reused when no array refers to it; at most `keep` unused bytes are kept.

    The kernel clears memory that a process touches for the first time. For messages of 4 MB, clearing nearly
    doubles the cost of receiving them (470 against 270 us/MB). Arrays in this memory may live any time.
    """

    def __init__(self, keep: int = 128 << 20) -> None:
        self._keep = keep
        self._free: list[npt.NDArray[np.uint8]] = []

    def take(self, size: int) -> memoryview:
        """Return `size` writable bytes with arbitrary content."""
        if size < 1 << 16:
            return memoryview(bytearray(size))
        for at, block in enumerate(self._free):
            if size <= len(block) <= 2 * size:
                del self._free[at]
                break
        else:
            while self._free and sum(map(len, self._free)) + size > self._keep:
                self._free.pop(0)
            # A little larger than requested, for later messages of a slightly larger size.
            block = np.empty(size + size // 8, np.uint8)
        view = block[:size]
        # All arrays in a message are views of the memoryview, and keep `view` alive.
        weakref.finalize(view, self._release, block).atexit = False
        return view.data

    def _release(self, block: npt.NDArray[np.uint8]) -> None:
        # Another thread may call this while `take` runs: only append, never move another block.
        if sum(map(len, self._free)) + len(block) <= self._keep:
            self._free.append(block)


_FRAME_MEMORY = ReusedMemory()


class Frames:
    """A growing list of arrays of one large shape, such as images, stored as one array."""

    def __init__(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self._dtype = dtype
        self._shape = shape
        self._frame_bytes = dtype.itemsize * int(np.prod(shape))
        self._least = -(-_FIRST_BYTES // self._frame_bytes)
        self._rows = self._new_rows(self._least)
        self._count = 0

    def append(self, frame: Array) -> None:
        """Append a copy of an array."""
        if self._count == len(self._rows):
            full = self._rows
            self._rows = self._new_rows(2 * self._count)
            self._rows[: self._count] = full
        self._rows[self._count] = frame
        self._count += 1

    def __getitem__(self, part: slice) -> Array:
        """Return a slice of the arrays as a view, (count, *shape)."""
        return self._rows[: self._count][part]

    def clear(self) -> None:
        """Remove all arrays and allocate room for the same number; existing views stay valid."""
        if self._count:
            self._rows = self._new_rows(max(self._least, self._count))
            self._count = 0

    def _new_rows(self, size: int) -> Array:
        return np.frombuffer(_FRAME_MEMORY.take(size * self._frame_bytes), self._dtype).reshape(
            size, *self._shape
        )
