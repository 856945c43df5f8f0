"""PipeChannel: messages over one end of a pipe, never blocking on a message that is only half there.

It has the four verbs of the worker's machine (`get`, `get_nowait`, `put_nowait`, `close`), as `multiprocessing.Queue`
has them, and lets its owner wait for "readable or writable". A message that does not fit into the pipe at once stays in
the channel and is written as the other end reads; until then the channel is full.
"""

from __future__ import annotations

import os
import queue
import select
import struct
import time
from collections import deque
from collections.abc import Iterable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from rollout_cli.chunk import pack, unpack

_SIZE = struct.Struct("<Q")
_IOV_MAX = 512
_READ = 1 << 16


class PipeChannel:
    """One end of a two-way pipe between a sampler and a worker.

    Args:
        connection: The end to take over; it is set to non-blocking and closed with the channel.
    """

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self._fd = connection.fileno()
        os.set_blocking(self._fd, False)
        self._unsent: deque[memoryview] = deque()
        self._reader = _FrameReader(self._fd)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)

    def fileno(self) -> int:
        """Return the file descriptor, for a selector."""
        return self._fd

    @property
    def has_unsent(self) -> bool:
        """Return whether a message is not wholly in the pipe yet."""
        return bool(self._unsent)

    def put_nowait(self, message: Any) -> None:
        """Send a message without waiting; what does not fit now is sent by `flush_nowait`.

        Raises:
            queue.Full: If an earlier message is not wholly sent yet; this one was not taken.
            BrokenPipeError: If the other end is closed.
        """
        if not self.flush_nowait():
            raise queue.Full
        self._append(message)
        self.flush_nowait()

    def put_behind(self, message: Any) -> None:
        """Send a message after those that wait, however many: for the side that never runs ahead of the other."""
        self._append(message)
        self.flush_nowait()

    def _append(self, message: Any) -> None:
        pieces = [memoryview(piece).cast("B") for piece in pack(message)]
        size = sum(piece.nbytes for piece in pieces)
        self._unsent.append(memoryview(_SIZE.pack(size)))
        self._unsent.extend(piece for piece in pieces if piece.nbytes)

    def flush_nowait(self) -> bool:
        """Write as much as the pipe takes; return whether nothing is left.

        Raises:
            BrokenPipeError: If the other end is closed.
        """
        while self._unsent:
            try:
                written = os.writev(self._fd, [self._unsent[at] for at in range(min(len(self._unsent), _IOV_MAX))])
            except BlockingIOError:
                return False
            self._drop(written)
        return True

    def _drop(self, written: int) -> None:
        while written:
            piece = self._unsent[0]
            if written < piece.nbytes:
                self._unsent[0] = piece[written:]
                return
            written -= piece.nbytes
            self._unsent.popleft()

    def get_nowait(self) -> Any:
        """Return the next message.

        Raises:
            queue.Empty: If no whole message is there. It may come once more just after one has arrived, and not twice
                in a row.
            EOFError: If the other end is closed and every whole message was given.
        """
        frame = self._reader.next_frame()
        if frame is None:
            raise queue.Empty
        return unpack(frame)

    def get(self, timeout: float | None = None) -> Any:
        """Return the next message, waiting for it; unsent messages go on being written meanwhile.

        Raises:
            queue.Empty: If none came within `timeout` seconds.
            EOFError: As `get_nowait`.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                return self.get_nowait()
            except queue.Empty:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise
                self.wait(left)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until there is something to read, or room for what is unsent; write what fits."""
        events = select.POLLIN | (select.POLLOUT if self._unsent else 0)
        self._poll.modify(self._fd, events)
        self._poll.poll(None if timeout is None else max(0.0, timeout * 1000))
        self._poll.modify(self._fd, select.POLLIN)
        self.flush_nowait()

    def readable(self) -> bool:
        """Return whether something can be read now; cheap enough to ask every millisecond."""
        return self._reader.has_frame or bool(self._poll.poll(0))

    def drain(self) -> Iterable[Any]:
        """Give every whole message that can be read now.

        Raises:
            EOFError: After the last one, if the other end is closed.
        """
        while True:
            try:
                yield self.get_nowait()
            except queue.Empty:
                return

    def close(self) -> None:
        """Close this end; unsent messages are lost."""
        self._unsent.clear()
        self._connection.close()


class _FrameReader:
    """Cuts what arrives into frames: a size of eight bytes, then as many bytes.

    Small frames are cut from a buffer; the body of a large one is read straight into its own memory.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        # Read into the same memory each time: fresh memory of this size would cost more than the reading.
        self._scratch = bytearray(_READ)
        self._pipe_is_empty = False
        self._buffer = bytearray()
        self._at = 0
        self._body: memoryview | None = None
        self._filled = 0

    @property
    def has_frame(self) -> bool:
        """Return whether a whole frame was read ahead."""
        have = len(self._buffer) - self._at
        return have >= _SIZE.size and have - _SIZE.size >= _SIZE.unpack_from(self._buffer, self._at)[0]

    def next_frame(self) -> memoryview | None:
        """Return the next frame if it is whole; it has its own memory.

        Raises:
            EOFError: If the pipe is closed and no whole frame is left.
        """
        while True:
            frame = self._fill_body() if self._body is not None else self._cut()
            if frame is not None:
                return frame
            if self._body is None and not self._read_ahead():
                return None
            if self._body is not None and self._filled < self._body.nbytes and not self._read_body():
                return None

    def _cut(self) -> memoryview | None:
        have = len(self._buffer) - self._at
        if have < _SIZE.size:
            return None
        (size,) = _SIZE.unpack_from(self._buffer, self._at)
        start = self._at + _SIZE.size
        if have - _SIZE.size >= size:
            frame = memoryview(bytearray(memoryview(self._buffer)[start : start + size]))
            self._at = start + size
            return frame
        if size > _READ:
            self._begin_body(size, start)
        return None

    def _begin_body(self, size: int, start: int) -> None:
        # numpy's empty memory is not zeroed first, as a bytearray's would be.
        self._body = np.empty(size, np.uint8).data
        rest = memoryview(self._buffer)[start:]
        self._filled = rest.nbytes
        self._body[: self._filled] = rest
        rest.release()
        self._buffer, self._at = bytearray(), 0

    def _fill_body(self) -> memoryview | None:
        assert self._body is not None
        if self._filled < self._body.nbytes:
            return None
        body, self._body, self._filled = self._body, None, 0
        return body

    def _read_body(self) -> bool:
        assert self._body is not None
        count = self._read_into(self._body[self._filled :])
        if count is None:
            return False
        self._filled += count
        return True

    def _read_ahead(self) -> bool:
        if self._pipe_is_empty:
            self._pipe_is_empty = False
            return False
        count = self._read_into(self._scratch)
        if count is None:
            return False
        # A short read took all there was; whoever asks again after waiting asks the pipe again.
        self._pipe_is_empty = count < _READ
        # What was cut already is dropped here, once a read, so that the buffer stays small.
        self._buffer = self._buffer[self._at :] + memoryview(self._scratch)[:count]
        self._at = 0
        return True

    def _read_into(self, target: bytearray | memoryview) -> int | None:
        """Read what is there; None where that is nothing.

        Raises:
            EOFError: If the pipe is closed.
        """
        try:
            count = os.readv(self._fd, [target])
        except BlockingIOError:
            return None
        except ConnectionResetError as error:
            raise EOFError from error
        if count == 0:
            raise EOFError
        return count
