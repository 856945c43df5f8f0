"""The error tree: exit codes, hints, and the way across a process border."""

from __future__ import annotations

import pickle

import pytest

from rollout_cli import errors
from rollout_cli.errors import RolloutError

EXIT_CODES = {
    "RolloutError": 1,
    "InternalError": 1,
    "UsageError": 2,
    "ConfigError": 2,
    "UserCodeError": 3,
    "PolicyLoadError": 3,
    "EnvLoadError": 3,
    "UnsupportedSpaceError": 3,
    "PolicyError": 3,
    "EnvError": 3,
    "WorkerError": 4,
    "StorageError": 5,
    "DatasetExistsError": 5,
    "DatasetLockedError": 5,
    "NotReproducibleError": 3,
    "DatasetFormatError": 5,
    "VerificationError": 6,
    "InterruptedRunError": 130,
    "TerminatedRunError": 143,
}


def kinds() -> list[type[RolloutError]]:
    return [item for item in vars(errors).values() if isinstance(item, type) and issubclass(item, RolloutError)]


def test_exit_codes() -> None:
    """Every class of the tree has the exit code that the documents give it, and there is no other class."""
    assert {kind.__name__: kind.exit_code for kind in kinds()} == EXIT_CODES


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_an_error_crosses_a_process_border(kind: type[RolloutError]) -> None:
    """Class, message, hint and details survive pickling, so a worker's error reads the same in the parent."""
    sent = kind("worker 3 failed", hint="look below", details="Traceback …")
    arrived = pickle.loads(pickle.dumps(sent))
    assert type(arrived) is kind
    assert ("worker 3 failed", "look below", "Traceback …") == (arrived.message, arrived.hint, arrived.details)
    assert "worker 3 failed" == str(arrived)
    assert ("", "") == (kind("only this").hint, kind("only this").details)
