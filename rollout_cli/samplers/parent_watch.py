"""ParentWatch: a worker's process, and what its environment started, end with the sampler, however that ends.

The system sees to it: it kills the worker's group when the other end of a pipe is closed, which the sampler's process
holds as long as it lives. A thread that waits for the same does so only where the system cannot, for it costs more than
its sleep: in a process with two threads each lock of Python's, numpy's and malloc's is one that another may hold, and
to take them took 2 % of a native vector environment's step. https://man7.org/linux/man-pages/man2/F_GETSIG.2const.html
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import wait
from multiprocessing.process import parent_process

from rollout_cli.errors import InternalError

_HARMLESS = signal.SIGURG
"""What nobody sees who does not wait for it."""


def end_with_parent() -> None:
    """Let this process's group, which must be its own, be killed as soon as the process that started it has ended.

    Raises:
        InternalError: If multiprocessing did not start this process.
    """
    parent = parent_process()
    if parent is None:
        raise InternalError("worker_main must run in a process that multiprocessing started")
    sentinel = int(parent.sentinel)
    if not _system_tells():
        threading.Thread(target=_watch, args=(sentinel, os.killpg), name="rollout-parent-watch", daemon=True).start()
        return
    _signal_at_end(sentinel, signal.SIGKILL)
    if _has_ended(sentinel):  # Before the system knew whom to tell.
        os.killpg(0, signal.SIGKILL)


def _system_tells() -> bool:
    """Return whether the system sends a group the signal that is asked for when a pipe is closed: found by trying."""
    if not hasattr(fcntl, "F_SETSIG"):
        return False  # It is Linux's own.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {_HARMLESS})
    reader, writer = os.pipe()
    try:
        _signal_at_end(reader, _HARMLESS)
        os.close(writer)
        writer = -1
        return signal.sigtimedwait({_HARMLESS}, 0) is not None
    except OSError:
        return False
    finally:
        os.close(reader)
        if writer >= 0:
            os.close(writer)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _signal_at_end(reader: int, what: signal.Signals) -> None:
    """Have a signal sent to this process's group when nobody can write into a pipe any more."""
    fcntl.fcntl(reader, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(reader, fcntl.F_SETSIG, what)
    fcntl.fcntl(reader, fcntl.F_SETFL, fcntl.fcntl(reader, fcntl.F_GETFL) | os.O_ASYNC)


def _has_ended(sentinel: int) -> bool:
    poll = select.poll()
    poll.register(sentinel, select.POLLIN)
    return bool(poll.poll(0))


def _watch(sentinel: int, kill_group: Callable[[int, int], None]) -> None:
    """Wait for the parent's death in a thread, for the environment's step may block for as long as it likes."""
    wait([sentinel])
    kill_group(0, signal.SIGKILL)
