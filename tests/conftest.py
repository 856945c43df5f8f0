"""What all tests share."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import gymnasium
import pytest
from hypothesis import HealthCheck, settings

from rollout_cli.cores import usable_cores

# `ci`: the same examples every time. `nightly`: new ones every time; a failure prints how to repeat it.
examples = os.environ.get("ROLLOUT_TEST_EXAMPLES")
settings.register_profile("ci", deadline=None, derandomize=True, max_examples=int(examples or 20))
settings.register_profile(
    "nightly",
    deadline=None,
    max_examples=int(examples or 1000),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("ROLLOUT_TEST_PROFILE", "ci"))

ENTRIES = pytest.StashKey[set[str]]()

# They are ignored under nohup and in a shell's background, and every process of the tests would inherit that.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)  # Not every environment of .ci/matrix has xdist.
def pytest_xdist_auto_num_workers() -> int:
    """Return the processes of `-n auto`: one more than there are cores, since many tests wait for processes."""
    return usable_cores() + 1


def _entries(session: pytest.Session) -> set[str]:
    """Return what lies in the working folder, without caches."""
    names = (path.name for path in session.config.invocation_params.dir.iterdir())
    return {name for name in names if not name.startswith(".") and name != "MUJOCO_LOG.TXT"}


def pytest_sessionstart(session: pytest.Session) -> None:
    """Remember the working folder, in which the tests must leave nothing."""
    session.config.stash[ENTRIES] = _entries(session)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run that left something there; of several processes, the one that waits for the others looks."""
    before = session.config.stash[ENTRIES]
    left = _entries(session) - before
    if left and not hasattr(session.config, "workerinput"):
        print(f"\nthe tests left in the working folder: {', '.join(sorted(left))}")  # noqa: T201
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the slowest folders: several processes then end at one time."""
    slow = ("tests/gallery/", "tests/faults/", "tests/e2e/")
    items.sort(key=lambda item: not item.nodeid.startswith(slow))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Skip what needs gymnasium's own vector environments under gymnasium 1.0: none of them takes or says its mode."""
    try:
        return (yield)
    except Exception as error:
        if hasattr(gymnasium.vector, "AutoresetMode") or "autoreset_mode" not in f"{error}{error.__cause__}":
            raise
        pytest.skip("gymnasium 1.0 has no AutoresetMode")


@pytest.fixture(autouse=True)
def no_options_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller's own `ROLLOUT_…` variables are options of the command, and none of a test's."""
    for name in [
        name for name in os.environ if name.startswith("ROLLOUT_") and not name.startswith("ROLLOUT_TEST_")
    ]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "200")
