"""Standard streams: encoding, redirection of stdout, and errors when a stream cannot be written."""

from __future__ import annotations

import codecs
import contextlib
import ctypes
import io
import os
import select
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from rollout_cli.errors import StorageError

STDOUT = 1
STDERR = 2
_PATIENCE_MS = 2_000
WITH_ASCII = "rollout-ascii"
"""Name of the codec error handler that the standard streams use."""
_IN_ASCII = str.maketrans("─▏▎▍▌▋▊▉█▁▂▃▄▅▆▇", "----#####..-=++*") | {ord("…"): "..."}
"""ASCII replacements for characters that a stream's encoding lacks; other characters are escaped."""


def _in_ascii(error: Any) -> tuple[str, int]:
    replaced: str = error.object[error.start : error.end].translate(_IN_ASCII)
    return replaced.encode("ascii", "backslashreplace").decode(), error.end


codecs.register_error(WITH_ASCII, _in_ascii)


def prepare_streams() -> None:
    """Open missing standard streams on /dev/null, and replace characters that cannot be encoded.

    If a standard descriptor were closed, the next opened file would get it, and printed text would go there.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        os.set_inheritable(descriptor, True)  # noqa: FBT003 - positional only
    os.close(descriptor)
    sys.stdout = sys.stdout or os.fdopen(STDOUT, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(STDERR, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=WITH_ASCII)


class MessageStream(io.TextIOBase):
    """A stream for messages that never blocks or fails a run: text that cannot be written is dropped.

    If a pipe is full, the first write waits two seconds for its reader; later writes do not wait until the
    pipe is read again. Text is written in pieces of at most PIPE_BUF bytes, after poll(2) has reported room,
    without the stream's buffer. If a worker fills the pipe between poll and write, the write blocks.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._patience = _PATIENCE_MS
        # Callers use these to find out whether the stream is a terminal, and its size.
        self.fileno = stream.fileno  # type: ignore[method-assign]
        self.isatty = stream.isatty  # type: ignore[method-assign]

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding or "utf-8"

    def write(self, text: str) -> int:
        # The reader may have exited, the disk may be full, or the terminal closed.
        with contextlib.suppress(OSError, ValueError):
            with contextlib.suppress(RuntimeError):  # A signal handler writes while the stream is flushed.
                self._stream.flush()
            try:
                descriptor = self._stream.fileno()
            except (OSError, ValueError):  # The stream is in memory.
                self._stream.write(text)
            else:
                self._write_pieces(text.encode(self.encoding, WITH_ASCII), descriptor)
        return len(text)

    def _write_pieces(self, data: bytes, descriptor: int) -> None:
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        while data:
            if not poll.poll(self._patience):
                self._patience = 0
                return
            self._patience = _PATIENCE_MS
            data = data[os.write(descriptor, data[: select.PIPE_BUF]) :]


@contextlib.contextmanager
def writing_results() -> Iterator[None]:
    """Turn errors of writing to stdout into `StorageError`; ignore a closed pipe (`rollout … | head -1`).

    Raises:
        StorageError: If stdout cannot be written, for example because the disk is full.
    """
    try:
        yield
    except BrokenPipeError:
        _discard(sys.stdout)
    except OSError as error:
        raise StorageError(
            f"cannot write to standard output: {error.strerror or error}", code="stdout-failed"
        ) from error


def flush_all() -> None:
    """Flush stdout and stderr; discard output that cannot be written, which Python would report at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            _discard(stream)


def _discard(stream: TextIO) -> None:
    # Redirect to /dev/null, if the stream has a descriptor.
    with (
        contextlib.suppress(OSError, ValueError),
        Path(os.devnull).open("w") as devnull,
    ):
        os.dup2(devnull.fileno(), stream.fileno())


@contextlib.contextmanager
def user_output_on_stderr() -> Iterator[None]:
    """Redirect stdout of Python, C libraries and subprocesses to stderr; stdout is for results only."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    saved = os.dup(STDOUT)
    os.dup2(STDERR, STDOUT)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        # Flush, or buffered user output would be written to the restored stdout.
        with contextlib.suppress(OSError, ValueError):
            if sys.__stdout__ is not None:
                sys.__stdout__.flush()
        ctypes.CDLL(None).fflush(None)
        os.dup2(saved, STDOUT)
        os.close(saved)
