"""Processes of a run: those that bear its mark, which all that they start inherit; and its workers."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import psutil

ROLLOUT = str(Path(sys.executable).with_name("rollout"))
"""The installed command."""

MARK = "ROLLOUT_TEST_RUN"
"""The environment variable that holds the mark."""


def new_mark() -> str:
    """Return a mark that no other run has."""
    return f"{os.getpid()}-{time.monotonic_ns()}"


def environment(mark: str) -> dict[str, str]:
    """Return the environment of a run that bears the mark.

    A process that changes its title writes it over the environment that others see of it, unless it is told not to.
    """
    return {**os.environ, MARK: mark, "SPT_NOENV": "1"}


def marked(mark: str) -> list[psutil.Process]:
    """Return the living processes that bear a mark."""
    found = []
    for candidate in psutil.process_iter():
        try:
            if candidate.environ().get(MARK) == mark and candidate.status() != psutil.STATUS_ZOMBIE:
                found.append(candidate)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def outlive(mark: str, seconds: float) -> list[psutil.Process]:
    """Return the processes of a run that are still there after so long; none as soon as there is none."""
    deadline = time.monotonic() + seconds
    while left := marked(mark):
        if time.monotonic() > deadline:
            return left
        time.sleep(0.02)
    return []


def worker_title(process: psutil.Process) -> str | None:
    """Return what a worker's process calls itself; None for every other process."""
    try:
        title = " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # It ended while we looked.
        return None
    return title if title.startswith("rollout-worker[") else None


def workers_below(process: psutil.Process) -> list[psutil.Process]:
    """Return the worker processes that a process has started."""
    return [child for child in process.children(recursive=True) if worker_title(child) is not None]
