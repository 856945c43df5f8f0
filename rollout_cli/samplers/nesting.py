"""Nested runs are refused: a worker that imports an unguarded script must not start that script's workers."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import rollout_cli
from rollout_cli.errors import UserCodeError

_in_worker: ContextVar[bool] = ContextVar("in_worker", default=False)


@contextmanager
def running_worker() -> Iterator[None]:
    """Mark this thread as one that runs a worker, in a process of its own or in the caller's."""
    token = _in_worker.set(True)
    try:
        yield
    finally:
        _in_worker.reset(token)


def refuse_in_worker(what: str) -> None:
    """Raise UserCodeError if a worker runs this code, most likely as it imports the user's script."""
    if _in_worker.get():
        stack = reversed(traceback.extract_stack())
        caller = next(frame for frame in stack if not frame.filename.startswith(rollout_cli.__path__[0]))
        raise UserCodeError(
            f"{what} was used in a worker, which would start workers of its own",
            hint="put the main part of the script under `if __name__ == '__main__':`; "
            "workers import the module that a SPEC such as `module:attr` names",
            place=f"{caller.filename}, line {caller.lineno}",
        )
