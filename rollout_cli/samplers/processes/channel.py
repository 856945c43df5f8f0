"""Channel: messages over one end of a socket pair; sending and receiving never wait for the other end.

A message is one frame: a header, the sizes of its pieces, and the pieces. The first piece is a pickle
(protocol 5), the others are the arrays in it, which are neither copied nor pickled. What the socket does not
take at once stays in the channel's outbox until `flush_nowait` sends it.
"""

from __future__ import annotations

import contextlib
import pickle
import queue
import select
import socket
import struct
from collections import deque
from itertools import islice
from typing import Any

import cloudpickle

from rollout_cli.memory import ReusedMemory
from rollout_cli.samplers.messages import Batch

OUTBOX_BYTES = 32 << 20
"""A channel with more unsent bytes has no room: what a fast worker makes in the time of a lease."""

_SEND_BUFFER = 4 << 20
"""What the kernel may hold for the other end; it grants less to users without privileges."""

_HEADER = struct.Struct("<4sIQ")
_MARK = b"\xa7ro\xf2"
_LARGEST = 1 << 40
_ALIGNMENT = 16
_PIECES_A_CALL = 512
# A program that has SIGPIPE kill it, as command lines do, must not die of a worker's death.
_NO_SIGPIPE = getattr(socket, "MSG_NOSIGNAL", 0)


class Channel:
    """One end of a two-way channel between a sampler and a worker; large messages arrive in `memory`."""

    def __init__(self, sock: socket.socket, memory: ReusedMemory | None = None) -> None:
        sock.settimeout(0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        self._sock = sock
        self._memory = memory or ReusedMemory()
        self._outbox: deque[memoryview] = deque()
        self._header = memoryview(bytearray(_HEADER.size))
        self._body: memoryview | None = None  # None while the header of a frame is not complete.
        self._filled = self._n_pieces = 0

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def unsent_bytes(self) -> int:
        """Return how much is in the outbox; whoever produces messages waits while it is over OUTBOX_BYTES."""
        return sum(piece.nbytes for piece in self._outbox)

    def put_nowait(self, message: Any) -> None:
        """Queue a message behind the unsent ones, and send as `flush_nowait` does."""
        self._outbox += [memoryview(piece).cast("B") for piece in _to_frame(message) if len(piece)]
        self.flush_nowait()

    def flush_nowait(self) -> None:
        """Send as much of the outbox as the socket takes now.

        Raises:
            ConnectionError: If the other end is closed.
        """
        with contextlib.suppress(BlockingIOError):
            while self._outbox:
                sent = self._sock.sendmsg(islice(self._outbox, _PIECES_A_CALL), (), _NO_SIGPIPE)
                while sent:
                    piece = self._outbox.popleft()
                    if sent < piece.nbytes:
                        self._outbox.appendleft(piece[sent:])
                    sent -= min(sent, piece.nbytes)

    def get_nowait(self) -> Any:
        """Return the next message.

        Raises:
            queue.Empty: If no whole message has arrived.
            EOFError: If the other end is closed and every whole message was returned.
            ValueError: If something arrived that is no frame. Its pickle may raise anything.
        """
        if self._body is None:
            self._fill(self._header)
            mark, self._n_pieces, size = _HEADER.unpack(self._header)
            if mark != _MARK or not 0 < 8 * self._n_pieces <= size < _LARGEST:
                raise ValueError("what arrived is no message")
            self._body = self._memory.take(size)
            self._filled = 0
        self._fill(self._body)
        body = self._body
        self._body = None
        self._filled = 0
        return _from_frame(body, self._n_pieces)

    def _fill(self, target: memoryview) -> None:
        while self._filled < target.nbytes:
            try:
                count = self._sock.recv_into(target[self._filled :])
            except BlockingIOError:
                raise queue.Empty from None
            except ConnectionError as error:
                raise EOFError from error
            if count == 0:
                raise EOFError
            self._filled += count

    def wait(self) -> None:
        """Wait until something arrives, or, with unsent bytes, until the socket takes more."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN | (select.POLLOUT if self._outbox else 0))
        poll.poll()

    def close(self) -> None:
        """Close this end; what is unsent is lost."""
        self._outbox.clear()
        self._sock.close()


def _to_frame(message: Any) -> list[bytes | memoryview]:
    buffers: list[pickle.PickleBuffer] = []
    # What a user gives may be of classes of the main script, which workers cannot import: cloudpickle sends
    # them whole. Episodes are arrays and texts alone, so that plain pickle, in half of the time, is enough.
    dumps = pickle.dumps if isinstance(message, Batch) else cloudpickle.dumps
    body = dumps(message, protocol=5, buffer_callback=buffers.append)
    pieces = [body, *(buffer.raw() for buffer in buffers)]
    table = struct.pack(f"<{len(pieces)}Q", *map(len, pieces))
    padded: list[bytes | memoryview] = []
    for piece in (table, *pieces):
        padded += [piece, bytes(-len(piece) % _ALIGNMENT)]
    return [_HEADER.pack(_MARK, len(pieces), sum(map(len, padded))), *padded]


def _from_frame(body: memoryview, n_pieces: int) -> Any:
    start = 8 * n_pieces
    pieces = []
    for size in struct.unpack_from(f"<{n_pieces}Q", body):
        start += -start % _ALIGNMENT
        pieces.append(body[start : start + size])
        start += size
    # It was pickled by this package's own process.
    return pickle.loads(pieces[0], buffers=pieces[1:])  # noqa: S301
