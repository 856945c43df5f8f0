"""Writing results and errors: lines, or one JSON document; and which error an exception amounts to."""

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
_LEAST_WIDTH = 10  # Of a column that gives way to others.
_NUMBER = re.compile(r"(-?[\d,.]+(e[+-]?\d+)?( \w+)?|-?inf|nan|)$")
_OUT_OF_MEMORY = ("failed to map segment", "can't start new thread", "error return without exception set")
"""How the dynamic loader, the start of a thread, and Python 3.12 itself say it: they have no class for it."""


def print_text(text: str) -> None:
    """Write a result to stdout, a line break at its end.

    Raises:
        StorageError: If it cannot be written.
    """
    with writing_results():
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


def print_message(text: str) -> None:
    """Write to stderr, a line break at its end; a text that cannot be written is lost."""
    MessageStream(sys.stderr).write(text + "\n")


def print_json(document: Record) -> None:
    """Write one JSON document to stdout."""
    from rollout_cli.episodes.plain import plain_json  # noqa: PLC0415 - it loads numpy

    # JSON escapes all other control characters itself.
    print_text(json.dumps(plain_json(document), indent=2).replace("\x7f", "\\u007f"))


def print_rows(rows: Mapping[str, object]) -> None:
    """Write names and values to stdout, the values below each other."""
    names = [*map(printable, rows)]
    width = max(map(len, names))
    for name, value in zip(names, rows.values(), strict=True):
        print_text(f"{name:<{width}}  {printable(str(value))}")


def print_table(
    names: Sequence[str], rows: Sequence[Sequence[object]], *, yielding: Sequence[str] = ()
) -> None:
    """Write rows below their names to stdout: numbers to the right; a terminal gets what it has room for.

    The `yielding` columns get narrower first, in this order, so that the others stay visible.
    """
    columns = [*zip(*(map(_cell, row) for row in (names, *rows)), strict=True)]
    widths = [max(map(len, column)) for column in columns]
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    for index in map(names.index, yielding):
        excess = sum(widths) + 2 * len(widths) - 2 - room
        widths[index] = min(widths[index], max(_LEAST_WIDTH, widths[index] - excess))
    aligned = []
    for column, width in zip(columns, widths, strict=True):
        side = ">" if all(map(_NUMBER.match, column[1:])) else "<"
        aligned.append([f"{_shortened(text, width):{side}{width}}" for text in column])
    print_text("\n".join(_cut("  ".join(line).rstrip(), room) for line in zip(*aligned, strict=True)))


def _cell(value: object) -> str:
    return "" if value is None else printable(str(value))


def _shortened(text: str, room: int) -> str:
    """Return a cell's text: of a path the end, which tells it from others."""
    return f"…{text[3 - room :]}" if "/" in text and len(text) > room else _cut(text, room)


def _cut(line: str, room: int) -> str:
    # A terminal without UTF-8 gets three dots.
    return line if len(line) <= room else f"{line[: room - 3]}…"


def show(
    document: Record,
    rows: Mapping[str, object],
    *,
    as_json: bool,
    quiet: bool = False,
    path: Any = None,
) -> None:
    """Write a result to stdout: its document, or its rows; with `quiet` its path alone, where it has one."""
    if as_json:
        print_json(document)
    elif not quiet:
        print_rows(rows)
    elif path is not None:
        print_text(printable(str(path)))


@contextlib.contextmanager
def showing_progress(*, wanted: bool | None = None, quiet: bool) -> Iterator[Progress]:
    """Give what shows the progress of a run on stderr, and end it with the run."""
    from rollout_cli.progress import choose_progress  # noqa: PLC0415 - it loads numpy

    stream = cast("TextIO", MessageStream(sys.stderr))
    progress = choose_progress(stream, wanted=wanted, quiet=quiet)
    try:
        yield progress
    finally:
        progress.finish()  # A bar that is left open would swallow an error's lines.


def counted(count: int, noun: str) -> str:
    """Return `3 files`, or `1 file`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def first_of(lines: Sequence[object]) -> list[str]:
    """Return the first lines of many, and the number of the others."""
    first = [*map(str, lines[:_MOST_LINES])]
    if len(lines) > _MOST_LINES:
        first.append(f"and {len(lines) - _MOST_LINES:,} more")
    return first


def report(error: BaseException, *, as_json: bool, verbose: bool) -> int:
    """Show an error and return its exit code.

    With `as_json`, as one document on stdout, where that can be written to; else as lines on stderr. With
    `verbose`, with this process's own traceback.
    """
    reported = _as_rollout_error(error)
    hint = errors.as_flags(reported.marked_hint)
    if reported.details and isinstance(reported.__cause__, errors.RemoteError):
        reported.__cause__ = None  # It shows the details, which are shown in any case.
    # With the traceback stands a note where tidying up failed as well; the hint is shown in any case.
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
        with contextlib.suppress(errors.StorageError):  # Then the lines below are all that is left.
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
    """Return a traceback that fits on a screen: its beginning, and its end, which says most."""
    lines = details.splitlines()
    if (count := len(lines) - _FIRST_DETAILS - _LAST_DETAILS) > 1:
        lines[_FIRST_DETAILS:-_LAST_DETAILS] = [f"  … {count:,} lines left out: --verbose shows all …"]
    return "\n".join(lines)


def _as_rollout_error(error: BaseException) -> errors.RolloutError:
    """Return the error itself if it is one of ours, else the one of ours that it amounts to."""
    if isinstance(error, errors.RolloutError):
        return error
    # One of Typer's: older versions have no name for the class of them all.
    if hasattr(error, "format_message"):
        command = getattr(getattr(error, "ctx", None), "command_path", "rollout")
        return errors.UsageError(error.format_message(), code="command-line", hint=f"see: {command} --help")
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return errors.InterruptedRunError("interrupted before anything was written")
    has_words = any(words in first_line(error) for words in _OUT_OF_MEMORY)
    if has_words or isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return errors.WorkerError(
            f"out of memory: {first_line(error)}",
            code="process-out-of-memory",
            hint="run fewer workers, or fewer environments in each",
        )
    if isinstance(error, OSError):
        place = f": {error.filename}" if error.filename else ""
        return errors.StorageError(
            f"the system refused an operation: {error.strerror or error}{place}",
            code="system-refused",
            hint="--verbose shows where",
        )
    return errors.InternalError(
        f"internal error: {first_line(error)}",
        hint="this is a fault of rollout itself; please report it with the lines below",
        details=traceback_text(error),
    )
