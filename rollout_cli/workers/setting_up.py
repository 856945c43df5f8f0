"""What is set up around a worker: a context manager that is entered before its policy is unpickled.

Threads, devices and sessions belong here. Where the user gives nothing, torch is held to one thread, since the workers
share the machine's cores already.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from rollout_cli.errors import RolloutError, UserCodeError
from rollout_cli.user_code import failure

WorkerSetup = Callable[[], AbstractContextManager[Any]]
"""Makes a context manager. It crosses the process border, so it must be picklable (by cloudpickle)."""


def entering(worker_setup: WorkerSetup | None) -> AbstractContextManager[None]:
    """Return a context manager that runs the user's, if there is one.

    Raises:
        UserCodeError: On entry and on exit, if the user's raises.
    """
    return nullcontext() if worker_setup is None else _entered(worker_setup)


@contextmanager
def _entered(worker_setup: WorkerSetup) -> Iterator[None]:
    try:
        manager = worker_setup()
        manager.__enter__()
    except RolloutError:
        raise
    except Exception as error:
        raise _failure("could not be entered", error) from error
    try:
        yield
    except BaseException as error:
        # It learns of the error, but must not swallow it: whoever waits for the worker has to hear of it.
        _leave(manager, error)
        raise
    _leave(manager, None)


def _leave(manager: AbstractContextManager[Any], error: BaseException | None) -> None:
    try:
        if error is None:
            manager.__exit__(None, None, None)
        else:
            manager.__exit__(type(error), error, error.__traceback__)
    except RolloutError as fault:
        if fault is not error:
            raise
    except Exception as fault:
        if fault is not error:
            raise _failure("could not be left", fault) from fault


def _failure(what: str, error: Exception) -> RolloutError:
    hint = "worker_setup is called without arguments and returns a context manager; the traceback below shows where"
    return failure(UserCodeError, f"the worker's set-up {what}", error, hint=hint)


def one_torch_thread() -> None:
    """Let torch, where it is loaded, use as many threads as OMP_NUM_THREADS says, or one."""
    torch = sys.modules.get("torch")
    if torch is not None:
        # The pool gives its workers that variable, except where the user's own environment has it. It comes too late
        # for a torch that was loaded before the worker's process was forked.
        wanted = os.environ.get("OMP_NUM_THREADS", "1")
        torch.set_num_threads(int(wanted) if wanted.isdecimal() and int(wanted) > 0 else 1)
