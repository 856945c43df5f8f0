"""Channel: messages over one end of a socket pair; sending and receiving never wait for the other end.

A message is one frame: a header, the sizes of its pieces, and the pieces. The first piece is a pickle
(protocol 5); the other pieces are its arrays, which are neither copied nor pickled. Bytes that the socket
does not accept immediately stay in the channel's outbox until `flush_nowait` sends them.
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
"""A worker pauses while its channel has more unsent bytes; a fast worker produces this much per lease."""

_SEND_BUFFER = 4 << 20
"""Size of the kernel's send buffer to request; unprivileged users are granted less."""

_HEADER = struct.Struct("<4sIQ")
_MARK = b"\xa7ro\xf2"
_LARGEST = 1 << 40
_ALIGNMENT = 16
_PIECES_A_CALL = 512
# A program with the default action for SIGPIPE, as in command lines, must not die when a worker dies.
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
        """Number of bytes in the outbox; producers of messages pause while it is over OUTBOX_BYTES."""
        return sum(piece.nbytes for piece in self._outbox)

    def put_nowait(self, message: Any) -> None:
        """Queue a message behind the unsent ones, then call `flush_nowait`."""
        self._outbox += [memoryview(piece).cast("B") for piece in _to_frame(message) if len(piece)]
        self.flush_nowait()

    def flush_nowait(self) -> None:
        """Send as much of the outbox as the socket accepts now.

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
            queue.Empty: If no complete message has arrived.
            EOFError: If the other end is closed and every complete message was returned.
            ValueError: If the bytes are not a frame. Unpickling may raise any other exception.
        """
        if self._body is None:
            self._fill(self._header)
            mark, self._n_pieces, size = _HEADER.unpack(self._header)
            if mark != _MARK or not 0 < 8 * self._n_pieces <= size < _LARGEST:
                raise ValueError("received bytes that are not a message")
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
        """Wait until bytes arrive or, if there are unsent bytes, until the socket accepts more."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN | (select.POLLOUT if self._outbox else 0))
        poll.poll()

    def close(self) -> None:
        """Close this end, and drop unsent bytes."""
        self._outbox.clear()
        self._sock.close()


def _to_frame(message: Any) -> list[bytes | memoryview]:
    buffers: list[pickle.PickleBuffer] = []
    # The user's objects may have classes of the main script, which workers cannot import; cloudpickle sends
    # the classes too. Batches contain only arrays and strings, for which plain pickle takes half the time.
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
    # Pickled by a process of this package.
    return pickle.loads(pieces[0], buffers=pieces[1:])  # noqa: S301
