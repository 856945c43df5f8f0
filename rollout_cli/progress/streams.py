"""What a stream can show, and one that may fail."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TextIO, cast


def is_rich_terminal(stream: TextIO | None, environ: Mapping[str, str]) -> bool:
    """Return whether bars and tables can be drawn on the stream; None is one that the process was started without."""
    return stream is not None and stream.isatty() and environ.get("TERM") not in {"dumb", "unknown"}


class ForgivingStream:
    """A stream for messages, for which a run need not end: what cannot be written is lost.

    Its reader may have gone, its disk be full, its terminal be closed; each write tries anew.

    Args:
        stream: Where they go.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write what can be written."""
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush what can be flushed."""
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        """Return all else of the stream itself."""
        return getattr(self._stream, name)


def forgiving(stream: TextIO) -> TextIO:
    """Return a stream that never fails."""
    return cast("TextIO", ForgivingStream(stream))
