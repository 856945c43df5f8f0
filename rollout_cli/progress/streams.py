"""What a stream can show, and text that is safe to show on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TextIO


def is_rich_terminal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Return whether bars and tables can be drawn on the stream."""
    return stream.isatty() and environ.get("TERM") not in {"dumb", "unknown"}


def printable(text: str, *, keep: str = "") -> str:
    r"""Return the text with control characters written as escapes, so that no name can drive a terminal.

    Args:
        text: Any text, such as an environment's name.
        keep: Characters to leave as they are, such as "\n" in a traceback.
    """
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode() for char in text
    )
