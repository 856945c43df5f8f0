"""The three standard streams: which text goes to which descriptor, and what happens where one cannot be written."""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
from collections.abc import Iterator
from typing import TextIO

from rollout_cli.errors import StorageError

STDOUT, STDERR = 1, 2
_PIECE = select.PIPE_BUF if hasattr(select, "PIPE_BUF") else 512
_PATIENCE_MS = 2_000


def open_closed_streams() -> None:
    """Open on nothing the streams that the process was started without.

    The next file that it opened would else get the descriptor of a standard stream, and what is printed into it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        os.set_inheritable(descriptor, True)  # noqa: FBT003 - it takes no keyword
    os.close(descriptor)
    for name, number in (("stdout", STDOUT), ("stderr", STDERR)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w", closefd=False))


class MessageStream(io.TextIOBase):
    """Standard error for messages, for which a run neither waits nor ends: text that cannot be written is lost.

    A pipe that nobody reads is given two seconds once, and nothing from then on until it is read again. Pieces of at
    most PIPE_BUF bytes never block where poll(2) reports room.

    Args:
        stream: The stream; its own buffer is not used where it has a descriptor.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._patience = _PATIENCE_MS
        # A terminal and its size are asked for by these.
        self.fileno, self.isatty = stream.fileno, stream.isatty  # type: ignore[method-assign]

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the stream."""
        return self._stream.encoding or "utf-8"

    def write(self, text: str) -> int:
        """Write what can be written."""
        with contextlib.suppress(OSError, ValueError):  # Its reader has gone, the disk is full, the terminal closed.
            self._stream.flush()
            try:
                descriptor = self._stream.fileno()
            except (OSError, ValueError):
                self._stream.write(encodable(text, self.encoding))
            else:
                self._write_pieces(text.encode(self.encoding, "backslashreplace"), descriptor)
        return len(text)

    def _write_pieces(self, data: bytes, descriptor: int) -> None:
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        while data:
            if not poll.poll(self._patience):
                self._patience = 0
                return
            self._patience = _PATIENCE_MS
            data = data[os.write(descriptor, data[:_PIECE]) :]


def encodable(text: str, encoding: str | None) -> str:
    """Return the text with escapes for characters that the stream's encoding has no bytes for."""
    return text.encode(encoding, "backslashreplace").decode(encoding) if encoding else text


@contextlib.contextmanager
def writing_results() -> Iterator[None]:
    """Write to stdout; a reader that has gone (`rollout … | head -1`) is no error.

    Raises:
        StorageError: If it cannot be written to, as where a disk is full.
    """
    try:
        yield
    except BrokenPipeError:
        _give_up(sys.stdout)
    except OSError as error:
        raise StorageError(f"cannot write to standard output: {error.strerror or error}") from error


def flush_all() -> None:
    """Flush stdout and stderr at the end; drop what cannot be written, or the interpreter would complain at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            _give_up(stream)


def _give_up(stream: TextIO) -> None:
    with contextlib.suppress(OSError, ValueError):  # It has no descriptor, or is closed.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


@contextlib.contextmanager
def user_output_on_stderr() -> Iterator[None]:
    """Send to stderr all output to stdout meanwhile, of Python, C libraries and subprocesses: stdout is for results."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    saved = os.dup(STDOUT)
    os.dup2(STDERR, STDOUT)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(saved, STDOUT)
        os.close(saved)
