"""The standard streams: which text goes to which descriptor, and what happens if one cannot be written."""

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
"""The error handler of codecs by which streams encode."""
_IN_ASCII = str.maketrans("─▏▎▍▌▋▊▉█▁▂▃▄▅▆▇", "----#####..-=++*") | {ord("…"): "..."}
"""What stands for these characters where a stream's encoding lacks them; others are escaped."""


def _in_ascii(error: Any) -> tuple[str, int]:
    lacking: str = error.object[error.start : error.end].translate(_IN_ASCII)
    return lacking.encode("ascii", "backslashreplace").decode(), error.end


codecs.register_error(WITH_ASCII, _in_ascii)


def prepare_streams() -> None:
    """Open on nothing the streams that the process was started without; let all of them write any character.

    The next file that it opened would else get the descriptor of a standard stream, and what is printed into
    it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        os.set_inheritable(descriptor, True)  # noqa: FBT003 - it takes no keyword
    os.close(descriptor)
    sys.stdout = sys.stdout or os.fdopen(STDOUT, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(STDERR, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=WITH_ASCII)


class MessageStream(io.TextIOBase):
    """A stream for messages, for which a run neither waits nor ends: text that cannot be written is lost.

    A pipe that nobody reads is given two seconds once, and nothing from then on until it is read again.
    Pieces of at most PIPE_BUF bytes, written after poll(2) has reported room. The stream's own buffer is not
    used. (Where a worker fills the pipe at that moment, the piece waits for the reader, as the worker does.)
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._patience = _PATIENCE_MS
        # A terminal and its size are asked for by these.
        self.fileno = stream.fileno  # type: ignore[method-assign]
        self.isatty = stream.isatty  # type: ignore[method-assign]

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding or "utf-8"

    def write(self, text: str) -> int:
        # Its reader has gone, the disk is full, the terminal closed.
        with contextlib.suppress(OSError, ValueError):
            with contextlib.suppress(RuntimeError):  # A signal has come while it is being flushed.
                self._stream.flush()
            try:
                descriptor = self._stream.fileno()
            except (OSError, ValueError):  # It is in memory.
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
    """Write to stdout; a reader that has gone (`rollout … | head -1`) is no error.

    Raises:
        StorageError: If it cannot be written to, as where a disk is full.
    """
    try:
        yield
    except BrokenPipeError:
        _give_up(sys.stdout)
    except OSError as error:
        raise StorageError(
            f"cannot write to standard output: {error.strerror or error}", code="stdout-failed"
        ) from error


def flush_all() -> None:
    """Flush stdout and stderr at the end; drop what cannot be written, or Python would complain at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            _give_up(stream)


def _give_up(stream: TextIO) -> None:
    # It may have no descriptor.
    with (
        contextlib.suppress(OSError, ValueError),
        Path(os.devnull).open("w") as nowhere,
    ):
        os.dup2(nowhere.fileno(), stream.fileno())


@contextlib.contextmanager
def user_output_on_stderr() -> Iterator[None]:
    """Redirect stdout of Python, C libraries and subprocesses to stderr: stdout is for results."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    saved = os.dup(STDOUT)
    os.dup2(STDERR, STDOUT)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        # What is still buffered would be written to the results.
        with contextlib.suppress(OSError, ValueError):
            if sys.__stdout__ is not None:
                sys.__stdout__.flush()
        ctypes.CDLL(None).fflush(None)
        os.dup2(saved, STDOUT)
        os.close(saved)
