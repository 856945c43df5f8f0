"""Whatever the user's policy and environment print in this process goes to standard error: stdout is for results."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TextIO

from rollout_cli.standard_streams import STDOUT, point_stdout_to_stderr


@contextlib.contextmanager
def user_output_on_stderr() -> Iterator[None]:
    """Send to standard error what is written to standard output meanwhile: by Python, C libraries, and subprocesses."""
    try:
        saved = os.dup(STDOUT)
    except OSError:  # There is no standard output that anything could get into.
        with contextlib.redirect_stdout(sys.stderr):
            yield
        return
    stdout = sys.stdout
    _flush(stdout)
    point_stdout_to_stderr()
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        _flush(stdout)
        os.dup2(saved, STDOUT)
        os.close(saved)
        if stdout is sys.__stdout__:
            # What user code, or a library's own buffer, has left to say at exit comes behind the results. Registered
            # last, this is called first.
            atexit.register(point_stdout_to_stderr)


def _flush(stream: TextIO | None) -> None:
    with contextlib.suppress(OSError, ValueError):  # It is closed, or its reader has gone: there is nobody to tell.
        if stream is not None:
            stream.flush()
