"""Processes that bear a mark in their environment, which all that they start inherit: so nothing of a run is missed."""

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
