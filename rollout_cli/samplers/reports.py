"""Errors on their way from a worker to the caller."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Collection
from pathlib import Path
from types import TracebackType

import rollout_cli.errors
from rollout_cli.errors import EnvError, InternalError, PolicyError, RolloutError, UserCodeError
from rollout_cli.user_code import first_line

_OURS = Path(rollout_cli.errors.__file__).parent


def as_reported(error: Exception) -> RolloutError:
    """Return `error` as one of ours; where user code raised while it ran, its traceback becomes the details."""
    if not isinstance(error, RolloutError):
        return InternalError(f"a worker failed: {first_line(error)}", details=_format(error))
    cause = _users_cause(error)
    if isinstance(error, EnvError | PolicyError) and cause is not None and not error.details:
        part = _user_part(cause.__traceback__)
        # Where every frame is ours, user code gave something wrong, and the message says what.
        error.details = _format(cause.with_traceback(part)) if part is not None else ""
    return error


def failed_in(error: Exception, unfinished: Collection[int]) -> tuple[int, ...]:
    """Return in which episodes user code may have failed; none where the fault is not the user's.

    Args:
        error: What was raised while a worker ran episodes.
        unfinished: The episodes that it was to run and had not finished.
    """
    if not isinstance(error, UserCodeError):
        return ()
    if error.episode is not None and error.episode in unfinished:
        return (error.episode,)
    return tuple(sorted(unfinished))


def failed_at_end(error: Exception) -> tuple[int, ...]:
    """Return the finished episode that is at fault, where the error is of one; it was raised while none ran."""
    return (error.episode,) if isinstance(error, UserCodeError) and error.episode is not None else ()


def _users_cause(error: BaseException) -> BaseException | None:
    """Return what user code raised; None where nothing did: a message of ours needs no traceback of ours."""
    seen = [error]
    cause = error.__cause__
    # Nothing keeps a user's code from raising an error from itself, or two from each other.
    while isinstance(cause, RolloutError) and cause not in seen:
        seen.append(cause)
        cause = cause.__cause__
    return None if isinstance(cause, RolloutError) else cause


def _user_part(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback from the first frame that is not ours on; None where every frame is."""
    part = trace
    while part is not None and _OURS in Path(part.tb_frame.f_code.co_filename).parents:
        part = part.tb_next
    return part


def pack_error(error: Exception) -> bytes:
    """Return `error` as bytes that another process can raise it from."""
    return pickle.dumps(as_reported(error))


def unpack_error(data: bytes) -> RolloutError:
    """Return the error that `pack_error` took."""
    error = pickle.loads(data)
    assert isinstance(error, RolloutError)
    return error


def _format(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)).rstrip()
