"""Writing to stdout and stderr: results as lines or as one JSON document, errors as lines."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import TextIO

from rollout_cli.escaping import printable


def print_text(text: str) -> None:
    """Write a result to stdout, a line break at its end."""
    _write(sys.stdout, text)


def print_problem(text: str) -> None:
    """Write to stderr, a line break at its end."""
    _write(sys.stderr, text)


def print_json(document: Mapping[str, object]) -> None:
    """Write one JSON document to stdout; numbers that JSON has no word for (nan, inf) become null."""
    # JSON escapes all other control characters itself.
    _write(sys.stdout, json.dumps(_json_value(document), indent=2).replace("\x7f", "\\u007f"))


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
    Console(file=sys.stdout, markup=False, highlight=False, emoji=False).print(table)


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
    if stream is None:
        return  # The process was started with this stream closed.
    try:
        stream.write(_encodable(text, stream.encoding) + "\n")
        stream.flush()
    except BrokenPipeError:
        # The reader has gone (`rollout … | head -1`), which is no error of the run. What is still buffered goes
        # nowhere, or the interpreter would complain about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
