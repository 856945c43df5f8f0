"""Writing results and errors: lines, or one JSON document; and which error an exception amounts to."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import PurePath

import typer

from rollout_cli.cli.streams import MessageStream, encodable, writing_results
from rollout_cli.errors import (
    InternalError,
    InterruptedRunError,
    RolloutError,
    StorageError,
    UsageError,
    VerificationError,
    WorkerError,
)
from rollout_cli.loading import first_line, one_line, printable, traceback_text

_RED, _DIM, _PLAIN = "\x1b[1;31m", "\x1b[2m", "\x1b[0m"


def print_text(text: str) -> None:
    """Write a result to stdout, a line break at its end.

    Raises:
        StorageError: If it cannot be written.
    """
    with writing_results():
        sys.stdout.write(encodable(text, sys.stdout.encoding) + "\n")
        sys.stdout.flush()


def print_message(text: str) -> None:
    """Write to stderr, a line break at its end; a text that cannot be written is lost."""
    MessageStream(sys.stderr).write(text + "\n")


def print_json(document: Mapping[str, object]) -> None:
    """Write one JSON document to stdout; numbers that JSON does not have (nan, inf) become null."""
    # JSON escapes all other control characters itself.
    print_text(json.dumps(_json_value(document), indent=2).replace("\x7f", "\\u007f"))


def print_rows(rows: Sequence[tuple[str, str]]) -> None:
    """Write names and values to stdout, the values below each other."""
    width = max(len(printable(name)) for name, _ in rows)
    print_text("\n".join(f"{printable(name):<{width}}  {printable(value)}" for name, value in rows))


def counted(count: int, noun: str) -> str:
    """Return `3 files`, or `1 file`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _json_value(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): _json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, PurePath) else value


def report(error: BaseException, *, as_json: bool, verbose: bool) -> int:
    """Show an error and return its exit code.

    Args:
        error: Anything that was raised.
        as_json: Write one JSON document to stdout instead of lines to stderr, where stdout can be written to.
        verbose: Show this process's own traceback too.
    """
    known = _as_rollout_error(error)
    details = "\n".join(filter(None, [known.details, traceback_text(error) if verbose else ""]))
    if as_json:
        with contextlib.suppress(StorageError):  # Then the lines below are all that is left.
            print_json(_document(known, details))
            return known.exit_code
    print_message(_lines(known, details))
    return known.exit_code


def _as_rollout_error(error: BaseException) -> RolloutError:
    """Return the error itself if it is one of ours, else the one of ours that it amounts to."""
    if isinstance(error, RolloutError):
        return error
    if isinstance(error, typer.TyperException):
        context = getattr(error, "ctx", None)
        command = "rollout" if context is None else context.command_path
        return UsageError(error.format_message(), hint=f"see: {command} --help")
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return InterruptedRunError("interrupted before anything was collected")
    if isinstance(error, MemoryError):
        return WorkerError(
            f"out of memory: {first_line(error)}", hint="run fewer workers, or fewer environments in each"
        )
    if isinstance(error, OSError):
        where = f": {error.filename}" if error.filename else ""
        return StorageError(
            f"the system refused an operation: {error.strerror or error}{where}", hint="--verbose shows where"
        )
    return InternalError(
        f"internal error: {first_line(error)}",
        hint="this is a fault of rollout itself; please report it with the lines below",
        details=traceback_text(error),
    )


def _document(error: RolloutError, details: str) -> dict[str, object]:
    """Return the JSON document of an error, with `details` where there are any; a verification's report is in it."""
    known: dict[str, object] = {
        "class": type(error).__name__,
        "message": error.message,
        "hint": error.hint,
        "exit_code": error.exit_code,
    }
    found = error.report if isinstance(error, VerificationError) else {}
    return {**found, "error": known | ({"details": details} if details else {})}


def _lines(error: RolloutError, details: str) -> str:
    """Return the lines of an error: the message, its hint, and below them its details; in colour on a terminal."""
    is_coloured = sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    red, dim, plain = (_RED, _DIM, _PLAIN) if is_coloured else ("", "", "")
    lines = [f"{red}rollout: error:{plain} {one_line(error.message)}"]
    if error.hint:
        lines.append(f"  hint: {one_line(error.hint)}")
    if details:
        text = printable(details.rstrip("\n"), keep="\n")
        lines += ["", f"{dim}{text}{plain}"]
    return "\n".join(lines)
