"""PipeChannel: messages over one end of a pipe, never blocking on a message that is only half there.

It has the four verbs of the worker's machine (`get`, `get_nowait`, `put_nowait`, `close`), as `multiprocessing.Queue`
has them, and lets its owner wait for "readable or writable". What does not fit into the pipe at once stays in the
channel and is written as the other end reads. Large messages go by shared memory (`shared_ring.py`) where there is room
in it, and only their places go through the pipe.
"""

from __future__ import annotations

import os
import queue
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from rollout_cli.buffer_pool import BufferPool
from rollout_cli.packing import Piece
from rollout_cli.samplers.frames import FrameKind, FrameReader, frame_head
from rollout_cli.samplers.messages import from_wire, to_wire
from rollout_cli.samplers.shared_ring import Place, RingReader, RingWriter

PIPE_BYTES = 1 << 20
"""How much is written ahead into a pipe that `widen` was called for; the kernel may allow less."""

_JOINED_BYTES = 1 << 16
"""Smaller messages are joined before they are written: handling their pieces would cost more."""

_PLACE = struct.Struct("<QQ")
_IOV_MAX = 512
_Taken = TypeVar("_Taken")


class PipeChannel:
    """One end of a two-way pipe between a sampler and a worker.

    Args:
        connection: The end to take over; it is set to non-blocking and closed with the channel.
        keeps: How many bytes may wait to be written, where one message more is still taken.
        writer: Where large messages are put; closed with the channel.
        reader: Where the other end puts them; closed with the channel.
        buffers: Gives the memory that large messages are read into; one of its own where it is None.
    """

    def __init__(
        self,
        connection: Connection[Any, Any],
        *,
        keeps: int = 0,
        writer: RingWriter | None = None,
        reader: RingReader | None = None,
        buffers: BufferPool | None = None,
    ) -> None:
        self._connection = connection
        self._fd = connection.fileno()
        os.set_blocking(self._fd, False)
        self._keeps, self._writer, self._reader = keeps, writer, reader
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        self._buffers = BufferPool() if buffers is None else buffers
        self._frames = FrameReader(self._fd, self._buffers)
        self._arrived: deque[memoryview] = deque()
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)

    def widen(self) -> None:
        """Ask the kernel to let more be written ahead, so that the other end may do something else for a while."""
        with socket.socket(fileno=os.dup(self._fd)) as raw:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PIPE_BYTES)

    def fileno(self) -> int:
        """Return the file descriptor, for a selector."""
        return self._fd

    @property
    def has_unsent(self) -> bool:
        """Return whether something is not in the pipe yet."""
        return bool(self._unsent)

    @property
    def is_full(self) -> bool:
        """Return whether so much is not in the pipe yet that no message is taken."""
        return self._unsent_bytes > self._keeps

    def put_nowait(self, message: Any) -> None:
        """Send a message without waiting; what does not fit now is sent by `flush_nowait`.

        Raises:
            queue.Full: If too much of earlier messages waits; this one was not taken.
            BrokenPipeError: If the other end is closed.
        """
        self.flush_nowait()
        if self.is_full:
            raise queue.Full
        self.put_behind(message)

    def put_behind(self, message: Any) -> None:
        """Send a message after those that wait, however many: for the side that never runs ahead of the other."""
        pieces = to_wire(message)
        size = sum(map(len, pieces))
        places = self._put_into_ring(pieces, size)
        if places is not None:
            self._push(frame_head(FrameKind.PLACES, _PLACE.size * len(places)), *(_PLACE.pack(*at) for at in places))
        elif size < _JOINED_BYTES:
            self._push(b"".join([frame_head(FrameKind.MESSAGE, size), *pieces]))
        else:
            self._push(frame_head(FrameKind.MESSAGE, size), *pieces)
        self.flush_nowait()

    def _put_into_ring(self, pieces: list[Piece], size: int) -> list[Place] | None:
        return self._in_ring(size, lambda ring: ring.write(pieces))

    def lend(self, size: int) -> memoryview | None:
        """Return `size` bytes to make a part of a message in, which need not be copied then; None without room."""
        return self._in_ring(size, lambda ring: ring.lend(size))

    def _in_ring(self, size: int, take: Callable[[RingWriter], _Taken | None]) -> _Taken | None:
        """Take room, after a look at what came back where there is none; None without, or where it is not worth it."""
        if self._writer is None or not self._writer.takes(size):
            return None
        taken = take(self._writer)
        return take(self._writer) if taken is None and self._take_in() else taken

    def _push(self, *pieces: Piece) -> None:
        for piece in pieces:
            if piece:
                self._unsent.append(memoryview(piece))
                self._unsent_bytes += len(piece)

    def flush_nowait(self) -> bool:
        """Write as much as the pipe takes; return whether nothing is left.

        Raises:
            BrokenPipeError: If the other end is closed.
        """
        while self._unsent:
            try:
                written = os.writev(self._fd, list(islice(self._unsent, _IOV_MAX)))
            except BlockingIOError:
                return False
            self._unsent_bytes -= written
            self._drop(written)
        return True

    def _forget_unsent(self) -> None:
        self._unsent.clear()
        self._unsent_bytes = 0

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
        body = self._arrived.popleft() if self._arrived else self._next_message()
        if body is None:
            raise queue.Empty
        return from_wire(body)

    def _next_message(self) -> memoryview | None:
        while (frame := self._frames.next_frame()) is not None:
            kind, body = frame
            if kind == FrameKind.MESSAGE:
                return body
            if kind == FrameKind.PLACES:
                return self._copied_out(body)
            assert self._writer is not None
            self._writer.give_back()
        return None

    def _copied_out(self, told: memoryview) -> memoryview:
        assert self._reader is not None
        places = list(_PLACE.iter_unpack(told))
        body = self._buffers.take(sum(size for _, size in places))
        at = 0
        for start, size in places:
            self._reader.read_into(body[at : at + size], start)
            at += size
        self._push(frame_head(FrameKind.GIVEN_BACK, 0))
        try:
            self.flush_nowait()
        except BrokenPipeError:
            self._forget_unsent()  # Its writer is dead, but what it had sent goes on being read.
        return body

    def _take_in(self) -> bool:
        """Read all that is there, so that places that were given back are known; return whether there was anything."""
        found = False
        with suppress(EOFError):  # It is told again to whoever reads next.
            while self._may_read():
                found = True
                body = self._next_message()
                if body is not None:
                    self._arrived.append(body)
        return found

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
        return bool(self._arrived) or self._may_read()

    def _may_read(self) -> bool:
        return self._frames.has_frame or bool(self._poll.poll(0))

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
        self._forget_unsent()
        self._connection.close()
        for ring in (self._writer, self._reader):
            if ring is not None:
                ring.close()
