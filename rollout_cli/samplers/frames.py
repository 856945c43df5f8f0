"""Frames: how messages lie in a pipe, and the reader that cuts them out of what arrives.

A frame is eight bytes and a body. The eight bytes are a number: the body's size, above it two bytes that are always the
same, so that what is no frame is seen to be none, and above these the frame's kind.
"""

from __future__ import annotations

import enum
import os
import struct

from rollout_cli.buffer_pool import BufferPool

_HEAD = struct.Struct("<Q")
_KIND_SHIFT = 56
_MARK_SHIFT = 40
_MARK = 0xA7F2
_SIZE_MASK = (1 << _MARK_SHIFT) - 1
_READ = 1 << 18
"""What does not go by shared memory comes with one reading."""


class FrameKind(enum.IntEnum):
    """What a frame's body is.

    MESSAGE: a message. PLACES: where the parts of a message lie in the ring. GIVEN_BACK: nothing; those of the oldest
    message are free again.
    """

    MESSAGE = 0
    PLACES = 1
    GIVEN_BACK = 2


def frame_head(kind: FrameKind, size: int) -> bytes:
    """Return what a frame with a body of `size` bytes begins with."""
    return _HEAD.pack(kind << _KIND_SHIFT | _MARK << _MARK_SHIFT | size)


class FrameReader:
    """Cuts what arrives into frames.

    Small frames are cut from a buffer that is read into again and again; the body of a large one is read straight into
    its own memory, and what follows it into the buffer by the same call.

    Args:
        fd: A pipe that does not block.
        buffers: Gives the memory for large ones.
    """

    def __init__(self, fd: int, buffers: BufferPool) -> None:
        self._fd, self._buffers = fd, buffers
        # Read into the same memory each time: fresh memory of this size would cost more than the reading.
        self._buffer = memoryview(bytearray(_READ))
        self._start = self._stop = 0
        self._pipe_is_empty = False
        self._large: tuple[int, memoryview] | None = None
        self._filled = 0

    @property
    def has_frame(self) -> bool:
        """Return whether a whole frame was read ahead."""
        have = self._stop - self._start - _HEAD.size
        return have >= 0 and have >= _HEAD.unpack_from(self._buffer, self._start)[0] & _SIZE_MASK

    def next_frame(self) -> tuple[int, memoryview] | None:
        """Return kind and body of the next frame if it is whole; the body has its own memory.

        Raises:
            EOFError: If the pipe is closed and no whole frame is left.
            ValueError: If what came is no frame.
        """
        while True:
            frame = self._whole_large() if self._large is not None else self._cut()
            if frame is not None:
                return frame
            if not self._read():
                return None

    def _cut(self) -> tuple[int, memoryview] | None:
        have = self._stop - self._start - _HEAD.size
        if have < 0:
            return None
        (head,) = _HEAD.unpack_from(self._buffer, self._start)
        if head >> _MARK_SHIFT & 0xFFFF != _MARK:
            raise ValueError("what came through the pipe is no message")
        size, start = head & _SIZE_MASK, self._start + _HEAD.size
        if have >= size:
            self._start = start + size
            return head >> _KIND_SHIFT, memoryview(bytearray(self._buffer[start : self._start]))
        if size > _READ - _HEAD.size:
            body = self._buffers.take(size)
            body[:have] = self._buffer[start : self._stop]
            self._large, self._filled = (head >> _KIND_SHIFT, body), have
            self._start = self._stop = 0
        return None

    def _whole_large(self) -> tuple[int, memoryview] | None:
        assert self._large is not None
        if self._filled < self._large[1].nbytes:
            return None
        frame, self._large = self._large, None
        return frame

    def _read(self) -> bool:
        """Read what is there; return whether that was anything.

        Raises:
            EOFError: If the pipe is closed.
        """
        if self._pipe_is_empty:
            self._pipe_is_empty = False
            return False
        if self._start:  # The rest of a frame goes to the front, for the buffer's end to have room.
            rest = self._stop - self._start
            self._buffer[:rest] = self._buffer[self._start : self._stop]
            self._start, self._stop = 0, rest
        targets = [self._buffer[self._stop :]]
        if self._large is not None:
            targets.insert(0, self._large[1][self._filled :])
        try:
            count = os.readv(self._fd, targets)
        except BlockingIOError:
            return False
        except ConnectionResetError as error:
            raise EOFError from error
        if count == 0:
            raise EOFError
        # A short read took all there was; whoever asks again after waiting asks the pipe again.
        self._pipe_is_empty = count < sum(target.nbytes for target in targets)
        if self._large is not None:
            in_body = min(count, targets[0].nbytes)
            self._filled += in_body
            count -= in_body
        self._stop += count
        return True
