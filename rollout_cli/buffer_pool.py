"""BufferPool: memory for what is large and comes and goes, used again once nobody holds anything that lies in it.

Memory that is touched for the first time has to be cleared by the system, which costs more than what is copied into it.
Whoever takes the episodes may keep them as long as it likes: it holds views, and memory is lent until the last is gone.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Block = npt.NDArray[np.uint8]

Lender = Callable[[int], memoryview | None]
"""Lends so many bytes, at least 1, which are writable; None where it has no room for them."""


def lent_array(shape: tuple[int, ...], dtype: np.dtype[Any], *lenders: Lender) -> npt.NDArray[Any]:
    """Return an array in the memory of the first lender that has room; nothing is said of what it holds.

    One of objects, or of no bytes, has memory of its own.
    """
    size = math.prod(shape) * dtype.itemsize
    if not dtype.hasobject and size:
        for lend in lenders:
            memory = lend(size)
            if memory is not None:
                return np.frombuffer(memory, dtype).reshape(shape)
    return np.empty(shape, dtype)


KEPT_BYTES = 128 << 20
"""Memory that is kept although nobody uses it."""

_STEPS = 8
"""In so many steps the sizes of blocks double: few sizes, so that blocks fit again."""


class BufferPool:
    """Lends memory; one thread takes it, any may be the last to hold it.

    Args:
        keeps: How many bytes are kept that nobody uses.
    """

    def __init__(self, keeps: int = KEPT_BYTES) -> None:
        self._keeps = keeps
        self._free: list[Block] = []

    @property
    def free_bytes(self) -> int:
        """Return how many bytes are kept that nobody uses."""
        return sum(map(len, self._free.copy()))

    def take(self, size: int) -> memoryview:
        """Return `size` writable bytes, at least 1; nothing is said of what they hold."""
        block = self._fitting(size)
        if block is None:
            block = self._new(size)
        lent = block[:size]
        # Only this view is given away, as a memoryview, which every part of it refers to: it dies when nobody has any.
        weakref.finalize(lent, _give_back, weakref.ref(self), block).atexit = False
        return lent.data

    def _fitting(self, size: int) -> Block | None:
        """Return a kept block that is large enough and not far too large: the last such one that came back."""
        # Another thread may add blocks at the end meanwhile; none takes any away.
        for at in reversed(range(len(self._free))):
            if size <= len(self._free[at]) <= 2 * size:
                return self._free.pop(at)
        return None

    def _new(self, size: int) -> Block:
        step = max(1, (1 << size.bit_length() - 1) // _STEPS)
        capacity = -(-size // step) * step
        # What does not fit gives way, so that there is never more memory than was once in use.
        dropped = 0
        while self._free and dropped < capacity:
            dropped += len(self._free.pop(0))
        # numpy's empty memory is not zeroed first, as a bytearray's would be.
        return np.empty(capacity, np.uint8)

    def _returned(self, block: Block) -> None:
        if self.free_bytes + len(block) <= self._keeps:
            self._free.append(block)


def _give_back(pool: Any, block: Block) -> None:
    # The pool's owner may be gone: then the memory goes, too.
    if (living := pool()) is not None:
        living._returned(block)  # noqa: SLF001
