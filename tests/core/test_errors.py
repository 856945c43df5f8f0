"""The error tree: hints, and the way across a process border; tests of the documents compare the exit codes."""

from __future__ import annotations

import pickle

import pytest

from rollout_cli import errors
from rollout_cli.errors import RolloutError


def kinds() -> list[type[RolloutError]]:
    return [item for item in vars(errors).values() if isinstance(item, type) and issubclass(item, RolloutError)]


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_an_error_crosses_a_process_border(kind: type[RolloutError]) -> None:
    """Class, message, hint and details survive pickling, so a worker's error reads the same in the parent."""
    sent = kind("worker 3 failed", hint="look below", details="Traceback …")
    arrived = pickle.loads(pickle.dumps(sent))
    assert type(arrived) is kind
    assert ("worker 3 failed", "look below", "Traceback …") == (arrived.message, arrived.hint, arrived.details)
    assert "worker 3 failed" == str(arrived)
    assert ("", "") == (kind("only this").hint, kind("only this").details)
