"""Errors on their way from a worker to the caller: any exception becomes an error of ours that can be pickled."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import rollout_cli
from rollout_cli.errors import EnvError, InternalError, PolicyError, RolloutError, WorkerError
from rollout_cli.loading import first_line, traceback_text

_OURS = Path(rollout_cli.__file__).parent
_MEMORY_HINT = "run fewer workers or environments at once, or shorter episodes"


def as_reported(error: Exception) -> RolloutError:
    """Return `error` as one of ours that can be pickled; where user code raised, its traceback becomes the details."""
    if isinstance(error, MemoryError):
        message = f"a worker ran out of memory: {first_line(error)}"
        return _from(error, WorkerError(message, hint=_MEMORY_HINT, details=traceback_text(error)))
    if not isinstance(error, RolloutError):
        return _from(error, InternalError(f"a worker failed: {first_line(error)}", details=traceback_text(error)))
    # A class of the user's own may not be importable in the caller's process, or want other arguments.
    kind = next(kind for kind in type(error).__mro__ if kind.__module__.startswith(f"{rollout_cli.__name__}."))
    if kind is not type(error):
        error = _from(error, kind(str(error.message), hint=str(error.hint), details=str(error.details)))
    cause = _users_cause(error)
    if isinstance(error, EnvError | PolicyError) and cause is not None and not error.details:
        part = _users_part(cause.__traceback__)
        # Where every frame is ours, user code gave something wrong, and the message says what.
        error.details = traceback_text(cause.with_traceback(part)) if part is not None else ""
    return error


def _from(cause: Exception, error: RolloutError) -> RolloutError:
    """Return `error` as if it had been raised from `cause`: in the same process a debugger still finds the frames."""
    error.__cause__ = cause
    error.__traceback__ = cause.__traceback__
    return error


def _users_cause(error: BaseException) -> BaseException | None:
    """Return the first cause that is no error of ours; None where there is none."""
    seen = [error]
    cause = error.__cause__
    # Nothing keeps a user's code from raising an error from itself, or two from each other.
    while isinstance(cause, RolloutError) and cause not in seen:
        seen.append(cause)
        cause = cause.__cause__
    return None if isinstance(cause, RolloutError) else cause


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback from the first frame that is not ours on; None where every frame is."""
    while trace is not None and _OURS in Path(trace.tb_frame.f_code.co_filename).parents:
        trace = trace.tb_next
    return trace
