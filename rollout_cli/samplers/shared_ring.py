"""A ring of reused shared memory: large messages are put into it by one process and copied out of it by another.

Only their places travel through the pipe. A place is told once the message is wholly there, and used again once the
reader has given it back, so whichever process dies, the other one finds whole messages or none. The memory has no name:
it goes with the last process that holds it, however that ends.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np
import numpy.typing as npt

from rollout_cli.packing import Piece

RING_BYTES = 64 << 20
"""Of one worker. Memory is used only as far as it was ever written to."""

RING_MIN_BYTES = 256 << 10
"""Smaller messages go through the pipe: telling a place and giving it back costs as much as piping them."""

_ALIGNMENT = 64


class RingSpace:
    """Which bytes of a ring are in use; knows no memory.

    A slot is contiguous. Slots may be given back in any order, and by any thread; there is room again once none is in
    use that was taken earlier. While none at all is, the ring begins anew at its first byte, so that as little memory
    as possible is touched, and that over and over.

    Args:
        size: Bytes of the ring.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._slots: deque[tuple[int, int]] = deque()
        self._returned: deque[int] = deque()
        self._free: set[int] = set()

    def take(self, size: int) -> int | None:
        """Return where a slot of `size` bytes (at least 1) begins, or None where there is no room for it now."""
        self._forget_returned()
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

    def give_back(self, start: int) -> None:
        """Free the slot that begins at `start`."""
        self._returned.append(start)

    def _forget_returned(self) -> None:
        while self._returned:
            self._free.add(self._returned.popleft())
        for end, forget in ((0, self._slots.popleft), (-1, self._slots.pop)):
            while self._slots and self._slots[end][0] in self._free:
                self._free.remove(forget()[0])


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
            # Who still has an array in it keeps the memory, and lets it go with the array.
            with suppress(BufferError):
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


Place = tuple[int, int]
"""Where bytes of a message begin in a ring, and how many they are."""


class RingWriter:
    """The end that messages are put into.

    What is to be sent may be made in the ring to begin with, in memory that is lent; all else is copied into it.

    Args:
        memory: Shared with the reader; closed with the writer.
    """

    def __init__(self, memory: RingMemory) -> None:
        self._memory = memory
        self._space = RingSpace(memory.size)
        self._first_byte = 0
        # Of each message that was told and not given back: all that lies in the ring of it.
        self._told: deque[tuple[Any, ...]] = deque()

    def takes(self, size: int) -> bool:
        """Return whether `size` bytes are worth the ring."""
        return self._memory.least <= size <= self._memory.size

    def lend(self, size: int) -> memoryview | None:
        """Return `size` writable bytes of the ring, at least 1, lent until nobody holds them; None without room."""
        taken = self._take(size)
        return None if taken is None else taken[1]

    def _take(self, size: int) -> tuple[int, memoryview] | None:
        start = self._space.take(size)
        if start is None:
            return None
        lent = np.frombuffer(self._memory.map, np.uint8, size, start)
        self._first_byte = _address(lent) - start
        # Only this view is given away, as a memoryview, which every part of it refers to: it dies when nobody has any.
        weakref.finalize(lent, self._space.give_back, start).atexit = False
        return start, lent.data

    def write(self, pieces: Sequence[Piece]) -> list[Place] | None:
        """Copy into the ring what of `pieces` does not lie there; return where they lie, None without room.

        They stay there until `give_back` was called for this message, and for each one before it.
        """
        starts = [self._start_of(piece) for piece in pieces]
        size = sum(len(piece) for piece, start in zip(pieces, starts, strict=True) if start is None)
        taken = self._take(size) if size else (0, memoryview(b""))
        if taken is None:
            return None
        at, memory = taken
        places = []
        for piece, start in zip(pieces, starts, strict=True):
            if start is None:
                memory[: len(piece)] = piece
                places.append((at, len(piece)))
                at, memory = at + len(piece), memory[len(piece) :]
            else:
                places.append((start, len(piece)))
        self._told.append((pieces, taken))
        return _joined(places)

    def _start_of(self, piece: Piece) -> int | None:
        """Return where a piece lies in the ring; None for one elsewhere, or too small to ask for."""
        if len(piece) < self._memory.least or not self._first_byte:
            return None
        start = _address(np.frombuffer(piece, np.uint8)) - self._first_byte
        return start if 0 <= start <= self._memory.size - len(piece) else None

    def give_back(self) -> None:
        """Learn that the reader is done with the oldest message."""
        self._told.popleft()

    def close(self) -> None:
        """Let go of the memory."""
        self._told.clear()
        self._memory.close()


def _address(array: npt.NDArray[np.uint8]) -> int:
    return int(array.__array_interface__["data"][0])


def _joined(places: Sequence[Place]) -> list[Place]:
    """Return the same bytes in as few places as they lie in."""
    joined: list[Place] = []
    for start, size in places:
        if joined and sum(joined[-1]) == start:
            joined[-1] = joined[-1][0], joined[-1][1] + size
        elif size:
            joined.append((start, size))
    return joined


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
