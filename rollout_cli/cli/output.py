"""Printing of results and errors, as lines or as one JSON document."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO, cast

import typer

from rollout_cli import errors
from rollout_cli.cli.streams import MessageStream, writing_results
from rollout_cli.keywords import Record
from rollout_cli.redact import without_secrets
from rollout_cli.sources.loading import first_line, traceback_text
from rollout_cli.sources.untrusted import one_line, printable

if TYPE_CHECKING:
    from rollout_cli.progress import Progress

_MOST_LINES = 20
_FIRST_DETAILS = 10
_LAST_DETAILS = 19
_MIN_WIDTH = 10  # Of a column that is cut to fit the terminal.
_NUMBER = re.compile(r"(-?[\d,.]+(e[+-]?\d+)?( \w+)?|-?inf|nan|)$")
_OUT_OF_MEMORY = ("failed to map segment", "can't start new thread", "error return without exception set")
"""Messages of out-of-memory errors of the dynamic loader, threading and Python 3.12 that are not MemoryError."""


def print_text(text: str) -> None:
    """Write a result and a line break to stdout.

    Raises:
        StorageError: If stdout cannot be written.
    """
    with writing_results():
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


def print_message(text: str) -> None:
    """Write a message and a line break to stderr; drop it if stderr cannot be written."""
    MessageStream(sys.stderr).write(text + "\n")


def print_json(document: Record) -> None:
    """Write one JSON document to stdout."""
    from rollout_cli.episodes.plain import plain_json  # noqa: PLC0415 - imports numpy

    # JSON escapes every other control character.
    print_text(json.dumps(plain_json(document), indent=2).replace("\x7f", "\\u007f"))


def print_rows(rows: Mapping[str, object]) -> None:
    """Write names and values to stdout, one pair per line, with the values aligned."""
    names = [*map(printable, rows)]
    width = max(map(len, names))
    for name, value in zip(names, rows.values(), strict=True):
        print_text(f"{name:<{width}}  {printable(str(value))}")


def print_table(
    names: Sequence[str], rows: Sequence[Sequence[object]], *, yielding: Sequence[str] = ()
) -> None:
    """Write a table to stdout, with numbers aligned to the right, cut to the width of a terminal.

    The `yielding` columns are shortened first, in this order.
    """
    columns = [*zip(*(map(_cell, row) for row in (names, *rows)), strict=True)]
    widths = [max(map(len, column)) for column in columns]
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    for index in map(names.index, yielding):
        excess = sum(widths) + 2 * len(widths) - 2 - room
        widths[index] = min(widths[index], max(_MIN_WIDTH, widths[index] - excess))
    aligned = []
    for column, width in zip(columns, widths, strict=True):
        side = ">" if all(map(_NUMBER.match, column[1:])) else "<"
        aligned.append([f"{_shortened(text, width):{side}{width}}" for text in column])
    print_text("\n".join(_cut("  ".join(line).rstrip(), room) for line in zip(*aligned, strict=True)))


def _cell(value: object) -> str:
    return "" if value is None else printable(str(value))


def _shortened(text: str, room: int) -> str:
    """Return a cell's string cut to a width; a path keeps its end, by which paths differ."""
    return f"…{text[3 - room :]}" if "/" in text and len(text) > room else _cut(text, room)


def _cut(line: str, room: int) -> str:
    # Three characters shorter: a terminal without UTF-8 shows three dots for the ellipsis.
    return line if len(line) <= room else f"{line[: room - 3]}…"


def show(
    document: Record,
    rows: Mapping[str, object],
    *,
    as_json: bool,
    quiet: bool = False,
    path: Any = None,
) -> None:
    """Write a result to stdout: as JSON, as rows, or with `quiet` only its path, if it has one."""
    if as_json:
        print_json(document)
    elif not quiet:
        print_rows(rows)
    elif path is not None:
        print_text(printable(str(path)))


@contextlib.contextmanager
def showing_progress(*, wanted: bool | None = None, quiet: bool) -> Iterator[Progress]:
    """Yield the `Progress` that shows a run on stderr, and finish it when the block ends."""
    from rollout_cli.progress import choose_progress  # noqa: PLC0415 - imports numpy

    stream = cast("TextIO", MessageStream(sys.stderr))
    progress = choose_progress(stream, wanted=wanted, quiet=quiet)
    try:
        yield progress
    finally:
        progress.finish()  # An unfinished bar would overwrite the lines of an error.


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, such as `3 files` or `1 file`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def first_of(lines: Sequence[object]) -> list[str]:
    """Return the first lines of a list, and a last line that counts the others."""
    first = [*map(str, lines[:_MOST_LINES])]
    if len(lines) > _MOST_LINES:
        first.append(f"and {len(lines) - _MOST_LINES:,} more")
    return first


def report(error: BaseException, *, as_json: bool, verbose: bool) -> int:
    """Print an error and return its exit code.

    With `as_json` the error is one JSON document on stdout, unless stdout cannot be written. Otherwise it is
    printed as lines on stderr. With `verbose` it includes the traceback of this process.
    """
    reported = _as_rollout_error(error)
    hint = errors.as_flags(reported.marked_hint)
    if reported.details and isinstance(reported.__cause__, errors.RemoteError):
        reported.__cause__ = None  # The cause repeats the details, which are printed anyway.
    # The traceback shows notes, such as errors during cleanup; the hint is printed separately.
    notes = getattr(reported, "__notes__", [])
    reported.__notes__ = [note for note in notes if not note.startswith("hint: ")]
    details = reported.details
    if verbose:
        details = "\n".join(filter(None, [details, traceback_text(error)]))
    elif not as_json:
        details = _without_middle(details)
    if as_json:
        document = {
            "code": reported.code,
            "class": type(reported).__name__,
            "message": reported.message,
            "hint": hint,
            "exit_code": reported.exit_code,
        }
        if details:
            document["details"] = details
        findings = reported.report if isinstance(reported, errors.VerificationError) else {}
        with contextlib.suppress(errors.StorageError):  # Stdout failed: print lines to stderr instead.
            print_json({**findings, "error": without_secrets(document)})
            return reported.exit_code
    red = dim = plain = ""
    if sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb":
        red = "\x1b[1;31m"
        dim = "\x1b[2m"
        plain = "\x1b[0m"
    message = f"{red}rollout: error:{plain} {one_line(reported.message)} {dim}[{reported.code}]{plain}"
    if hint:
        message += f"\n  hint: {one_line(hint)}"
    if details:
        details = printable(details.rstrip("\n"), keep="\n")
        message += f"\n\n{dim}{details}{plain}"
    print_message(message)
    return reported.exit_code


def _without_middle(details: str) -> str:
    """Return a traceback shortened to fit a screen: its first and its last lines."""
    lines = details.splitlines()
    if (count := len(lines) - _FIRST_DETAILS - _LAST_DETAILS) > 1:
        lines[_FIRST_DETAILS:-_LAST_DETAILS] = [f"  … {count:,} lines omitted; --verbose shows them …"]
    return "\n".join(lines)


def _as_rollout_error(error: BaseException) -> errors.RolloutError:
    """Return a `RolloutError` for an exception: itself, or the kind of error that describes it."""
    if isinstance(error, errors.RolloutError):
        return error
    # A Typer error; older versions of Typer do not export a common base class.
    if hasattr(error, "format_message"):
        command = getattr(getattr(error, "ctx", None), "command_path", "rollout")
        return errors.UsageError(error.format_message(), code="command-line", hint=f"run `{command} --help`")
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return errors.InterruptedRunError("interrupted before anything was written")
    has_message = any(message in first_line(error) for message in _OUT_OF_MEMORY)
    if has_message or isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return errors.WorkerError(
            f"out of memory: {first_line(error)}",
            code="process-out-of-memory",
            hint="use fewer workers, or fewer environments per worker",
        )
    if isinstance(error, OSError):
        place = f": {error.filename}" if error.filename else ""
        return errors.StorageError(
            f"an operation of the system failed: {error.strerror or error}{place}",
            code="system-refused",
            hint="pass --verbose to see where it failed",
        )
    return errors.InternalError(
        f"internal error: {first_line(error)}",
        hint="report this bug of rollout with the lines below",
        details=traceback_text(error),
    )
