"""What all tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from rollout_cli.cores import usable_cores
from rollout_cli.samplers import starting

# The same examples every time, and none that fails because the machine was busy.
settings.register_profile("rollout", deadline=None, derandomize=True)
settings.load_profile("rollout")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """Say what `-n auto` is: two processes a core, since many tests wait for processes, time limits and the disk.

    The variable by which pytest-xdist lets its user say so is stronger.
    """
    return None if os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS") else 2 * usable_cores()


@pytest.fixture(scope="session", autouse=True)
def fork_server_that_knows_the_tests() -> Iterator[None]:
    """Let the fork server import what test modules import, rather than each worker whose classes are of a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(starting, "_PRELOADED", [*starting._PRELOADED, "psutil", "pytest"])
        yield
