"""Errors on their way from a worker to the caller."""

from __future__ import annotations

import pickle
import traceback

from rollout_cli.errors import InternalError, RolloutError
from rollout_cli.user_code import first_line


def as_reported(error: Exception) -> RolloutError:
    """Return `error` as one of ours, with the traceback of what caused it as its details."""
    if not isinstance(error, RolloutError):
        return InternalError(f"a worker failed: {first_line(error)}", details=_format(error))
    if error.__cause__ is not None and not error.details:
        error.details = _format(error.__cause__)
    return error


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
