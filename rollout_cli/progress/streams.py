"""What a stream can show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TextIO


def is_rich_terminal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Return whether bars and tables can be drawn on the stream."""
    return stream.isatty() and environ.get("TERM") not in {"dumb", "unknown"}
