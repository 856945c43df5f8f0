"""The three standard streams, by their descriptors, which Python, C libraries and child processes share."""

from __future__ import annotations

import contextlib
import os
from typing import TextIO

STDOUT, STDERR = 1, 2


def open_closed_descriptors() -> None:
    """Open on nothing what the process was started without.

    The next file that it opened would else get the descriptor of a standard stream, and what is printed into it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        os.set_inheritable(descriptor, True)  # noqa: FBT003  It takes no keyword.
    os.close(descriptor)


def point_stdout_to_stderr() -> None:
    """Let whatever this process and its children write to standard output go to standard error; else to nowhere."""
    try:
        os.dup2(STDERR, STDOUT)
    except OSError:  # There is no standard error.
        _point_to_nowhere(STDOUT)


def give_up(stream: TextIO) -> None:
    """Let go what is buffered in a stream that failed, or the interpreter would complain about it at exit."""
    with contextlib.suppress(OSError, ValueError):  # It has no descriptor, or is closed.
        _point_to_nowhere(stream.fileno())


def _point_to_nowhere(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
