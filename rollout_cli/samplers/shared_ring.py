"""A ring of reused shared memory: large messages are copied into it by one process and out of it by another.

Only their places travel through the pipe. A place is told once the message is wholly there, and used again once the
reader has given it back, so whichever process dies, the other one finds whole messages or none. The memory has no name:
it goes with the last process that holds it, however that ends.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Iterable
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np

from rollout_cli.chunk import Piece

RING_BYTES = 64 << 20
"""Of one worker. Memory is used only as far as it was ever written to."""

RING_MIN_BYTES = 256 << 10
"""Smaller messages go through the pipe: telling a place and giving it back costs as much as piping them."""

_ALIGNMENT = 64


class RingSpace:
    """Which bytes of a ring are in use; knows no memory.

    A slot is contiguous. Slots are given back in the order in which they were taken. While none is in use the ring
    begins anew at its first byte, so that as little memory as possible is touched, and that over and over.

    Args:
        size: Bytes of the ring.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._slots: deque[tuple[int, int]] = deque()

    def take(self, size: int) -> int | None:
        """Return where a slot of `size` bytes (at least 1) begins, or None where there is no room for it now."""
        start = self._place_for(size)
        if start is not None:
            self._slots.append((start, min(self._size, -(-(start + size) // _ALIGNMENT) * _ALIGNMENT)))
        return start

    def _place_for(self, size: int) -> int | None:
        if not self._slots:
            return 0 if size <= self._size else None
        first, last = self._slots[0][0], self._slots[-1][1]
        if last <= first:  # The newest slots lie before the oldest one.
            return last if last + size <= first else None
        if last + size <= self._size:
            return last
        return 0 if size <= first else None

    def give_back(self) -> None:
        """Free the slot that was taken first."""
        self._slots.popleft()


class RingMemory:
    """Memory that processes share: it may be an argument of a process that is started.

    Args:
        descriptor: An anonymous file of `size` bytes, to be owned by this object.
        size: Its bytes.
        least: What it is meant for: messages of so many bytes and more.
    """

    def __init__(self, descriptor: int, size: int, least: int) -> None:
        self.size, self.least = size, least
        self._descriptor: int | None = descriptor
        self._map: mmap.mmap | None = None

    @classmethod
    def create(cls) -> RingMemory:
        """Return new memory; nothing of it is used, or mapped, before somebody reads or writes."""
        return cls(_anonymous_file(RING_BYTES), RING_BYTES, RING_MIN_BYTES)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._descriptor is None:
            raise TypeError("memory that is in use or closed cannot be given to another process")
        return _received, (DupFd(self._descriptor), self.size, self.least)

    @property
    def map(self) -> mmap.mmap:
        """Return the memory, mapped at the first call."""
        if self._map is None:
            assert self._descriptor is not None
            self._map = mmap.mmap(self._descriptor, self.size)
            self._close_descriptor()  # The map has one of its own.
        return self._map

    def close(self) -> None:
        """Let go of the memory; other processes keep theirs."""
        self._close_descriptor()
        if self._map is not None:
            self._map.close()

    def _close_descriptor(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def _received(descriptor: Any, size: int, least: int) -> RingMemory:
    return RingMemory(descriptor.detach(), size, least)


def _anonymous_file(size: int) -> int:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("rollout-ring")
        os.ftruncate(descriptor, size)
        return descriptor
    from multiprocessing.shared_memory import SharedMemory  # noqa: PLC0415  Slow to import, and rarely needed.

    # A segment that loses its name at once; its descriptor goes on alone.
    segment = SharedMemory(create=True, size=size)
    try:
        return os.dup(segment._fd)  # type: ignore[attr-defined]  # noqa: SLF001
    finally:
        segment.close()
        segment.unlink()


class RingWriter:
    """The end that messages are copied into.

    Args:
        memory: Shared with the reader; closed with the writer.
    """

    def __init__(self, memory: RingMemory) -> None:
        self._memory = memory
        self._space = RingSpace(memory.size)

    def takes(self, size: int) -> bool:
        """Return whether a message of `size` bytes is worth the ring."""
        return self._memory.least <= size <= self._memory.size

    def write(self, pieces: Iterable[Piece], size: int) -> int | None:
        """Copy `pieces`, of `size` bytes together, after one another; return where they begin, None without room."""
        start = self._space.take(size)
        if start is None:
            return None
        memory, at = self._memory.map, start
        for piece in pieces:
            memory[at : at + len(piece)] = piece
            at += len(piece)
        return start

    def give_back(self) -> None:
        """Learn that the reader is done with the oldest message."""
        self._space.give_back()

    def close(self) -> None:
        """Let go of the memory."""
        self._memory.close()


class RingReader:
    """The end that messages are copied out of.

    Args:
        memory: Shared with the writer; closed with the reader.
    """

    def __init__(self, memory: RingMemory) -> None:
        self._memory = memory

    def read_into(self, target: memoryview, start: int) -> None:
        """Copy the message at `start` into `target`; the writer may be told then that it has its place back."""
        np.frombuffer(target, np.uint8)[:] = np.frombuffer(self._memory.map, np.uint8, target.nbytes, start)

    def close(self) -> None:
        """Let go of the memory."""
        self._memory.close()
