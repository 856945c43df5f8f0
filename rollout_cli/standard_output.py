"""Standard output belongs to a command's results; what user code prints goes to standard error."""

from __future__ import annotations

import os

STDOUT, STDERR = 1, 2
"""Their file descriptors."""


def point_stdout_to_stderr() -> None:
    """Let whatever this process and its children write to standard output go to standard error; else to nowhere."""
    try:
        os.dup2(STDERR, STDOUT)
    except OSError:  # There is no standard error.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, STDOUT)
        os.close(nowhere)
