"""Writing to stdout and stderr: results as lines or as one JSON document, errors as lines."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import TextIO

from rollout_cli.errors import StorageError
from rollout_cli.escaping import printable
from rollout_cli.standard_streams import give_up


def print_text(text: str) -> None:
    """Write a result to stdout, a line break at its end.

    Raises:
        StorageError: If it cannot be written.
    """
    with writing_results():
        _write(sys.stdout, text)


def print_problem(text: str) -> None:
    """Write to stderr, a line break at its end; where that fails there is nobody to tell."""
    with contextlib.suppress(OSError):
        _write(sys.stderr, text)


@contextlib.contextmanager
def writing_results() -> Iterator[None]:
    """Write to stdout; a reader that has gone (`rollout … | head -1`) is no error.

    Raises:
        StorageError: If it cannot be written to, as where a disk is full.
    """
    try:
        yield
    except BrokenPipeError:
        give_up(sys.stdout)
    except OSError as error:
        raise StorageError(f"cannot write to standard output: {error.strerror or error}") from error


def settle() -> None:
    """Let go what could not be written, when nothing follows any more."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            give_up(stream)


def print_json(document: Mapping[str, object]) -> None:
    """Write one JSON document to stdout; numbers that JSON has no word for (nan, inf) become null."""
    # JSON escapes all other control characters itself.
    print_text(json.dumps(_json_value(document), indent=2).replace("\x7f", "\\u007f"))


def print_rows(rows: Sequence[tuple[str, str]]) -> None:
    """Write names and values to stdout, the values below each other."""
    width = max(len(printable(name)) for name, _ in rows)
    print_text("\n".join(f"{printable(name):<{width}}  {printable(value)}" for name, value in rows))


def print_table(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Draw a table of names and values on the terminal that stdout is."""
    from rich.console import Console  # noqa: PLC0415 - rich is loaded only where a terminal is drawn on
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(title=Text(printable(title)), show_header=False, title_justify="left")
    for name, value in rows:
        table.add_row(Text(printable(name), style="bold"), Text(printable(value)))
    with writing_results():
        Console(file=sys.stdout, markup=False, highlight=False, emoji=False).print(table)


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


def _encodable(text: str, encoding: str | None) -> str:
    """Return the text with escapes for what the stream's encoding has no bytes for, such as letters in ASCII."""
    return text.encode(encoding, "backslashreplace").decode(encoding) if encoding else text


def _write(stream: TextIO | None, text: str) -> None:
    if stream is not None:  # The process may have been started with it closed.
        stream.write(_encodable(text, stream.encoding) + "\n")
        stream.flush()
