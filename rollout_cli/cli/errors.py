"""From an exception to what the user sees: one line, a hint, the worker's traceback, and the exit code."""

from __future__ import annotations

import traceback

import typer

from rollout_cli.cli.output import print_json, print_problem
from rollout_cli.errors import (
    InternalError,
    InterruptedRunError,
    RolloutError,
    StorageError,
    UsageError,
    VerificationError,
)
from rollout_cli.escaping import one_line, printable, text_of


def report(error: BaseException, *, as_json: bool, verbose: bool) -> int:
    """Show an error and return its exit code.

    Args:
        error: Anything that was raised.
        as_json: Write one JSON document to stdout instead of lines to stderr, where stdout can be written to.
        verbose: Show this process's own traceback too.
    """
    known = as_rollout_error(error)
    details = "\n".join(filter(None, [known.details, _traceback(error) if verbose else ""]))
    if not (as_json and _told_as_json(known, details)):
        print_problem(error_text(known, details))
    return known.exit_code


def _told_as_json(error: RolloutError, details: str) -> bool:
    """Write the document of an error; return whether it could be written."""
    try:
        print_json(error_document(error, details))
    except StorageError:
        return False
    return True


def as_rollout_error(error: BaseException) -> RolloutError:
    """Return the error itself if it is one of ours, else the one of ours that it amounts to."""
    if isinstance(error, RolloutError):
        return error
    if isinstance(error, typer.TyperException):
        return _usage_error(error)
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return InterruptedRunError("interrupted before anything was collected")
    return InternalError(
        f"internal error: {type(error).__name__}: {text_of(error)}",
        hint="this is a fault of rollout itself; please report it with the lines below",
        details=_traceback(error),
    )


def error_document(error: RolloutError, details: str) -> dict[str, object]:
    """Return the JSON document of an error; `details` is in it only where there are any.

    That of a verification is its report, with the error beside it.
    """
    known: dict[str, object] = {
        "class": type(error).__name__,
        "message": error.message,
        "hint": error.hint,
        "exit_code": error.exit_code,
    }
    found = error.report if isinstance(error, VerificationError) else {}
    return {**found, "error": known | ({"details": details} if details else {})}


def error_text(error: RolloutError, details: str) -> str:
    """Return the lines of an error: the message, its hint, and below them what happened elsewhere."""
    lines = [f"rollout: error: {one_line(error.message)}"]
    if error.hint:
        lines.append(f"  hint: {one_line(error.hint)}")
    if details:
        lines += ["", printable(details.rstrip("\n"), keep="\n")]
    return "\n".join(lines)


def _usage_error(error: typer.TyperException) -> UsageError:
    context = getattr(error, "ctx", None)
    command = "rollout" if context is None else context.command_path
    return UsageError(error.format_message(), hint=f"see: {command} --help")


def _traceback(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))
