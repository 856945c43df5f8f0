"""Whether the system tells of a parent's end is found by trying, which leaves nothing behind."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rollout_cli.errors import InternalError
from rollout_cli.samplers import parent_watch


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


TRIAL = """
import os, signal
from rollout_cli.samplers import parent_watch

seen = []
signal.signal(signal.SIGURG, lambda number, _: seen.append(number))
before = signal.pthread_sigmask(signal.SIG_BLOCK, ()), os.listdir("/proc/self/fd")
assert parent_watch._system_tells()
assert before == (signal.pthread_sigmask(signal.SIG_BLOCK, ()), os.listdir("/proc/self/fd"))
assert [] == seen
os.kill(os.getpid(), signal.SIGURG)
assert [signal.SIGURG] == seen
"""


def test_trying_leaves_nothing_behind() -> None:
    """No descriptor, no signal that waits, none that is blocked, and no handler is called."""
    # A process and a group of its own: another thread of the tests', or another of their processes, might take it.
    subprocess.run([sys.executable, "-c", TRIAL], check=True, start_new_session=True, timeout=60)


@pytest.mark.parametrize("lacks", ["the constant", "the call", "the signal"])
def test_a_system_that_does_not_tell_is_found_out(monkeypatch: pytest.MonkeyPatch, lacks: str) -> None:
    """Because it is another one, refuses to, or says that it would and does not."""
    if lacks == "the constant":
        monkeypatch.delattr(fcntl, "F_SETSIG")
    elif lacks == "the call":
        monkeypatch.setattr(fcntl, "fcntl", _refuse)
    else:
        monkeypatch.setattr(parent_watch, "_signal_at_end", lambda reader, what: None)
    n_open = descriptors()
    assert not parent_watch._system_tells()
    assert n_open == descriptors()


def _refuse(*_: Any) -> None:
    raise PermissionError


def test_who_was_not_started_has_no_parent_to_end_with() -> None:
    """It is an error of this package's."""
    with pytest.raises(InternalError, match="multiprocessing"):
        parent_watch.end_with_parent()
