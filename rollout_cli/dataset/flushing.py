"""FlushTimer: when the open shards are to be committed, so that a kill costs little."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

FLUSH_SECONDS = 30.0
FLUSH_SHARE = 0.03
"""By default flushing takes no more of the time than this, however long one flush takes."""


class FlushTimer:
    """Tells when a flush is due.

    `due` and `ask` belong to the writer; `begin` and `end` are work for its encoder, which does the flushing.

    Args:
        seconds: How long after a flush the next one is due; None is 30 s, or longer where a flush takes long.
        clock: Gives the time in seconds.
    """

    def __init__(self, seconds: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = FLUSH_SECONDS if seconds is None else seconds
        self._share = FLUSH_SHARE if seconds is None else 1.0
        self._clock = clock
        self._began = 0.0
        self._next = clock() + self._seconds

    def due(self) -> bool:
        """Return whether it is time for a flush, and none was asked for that has not ended."""
        return self._clock() >= self._next

    def ask(self) -> None:
        """A flush was asked for: no other is due until it has ended."""
        self._next = math.inf

    def begin(self) -> None:
        """The flush begins."""
        self._began = self._clock()

    def end(self) -> None:
        """The flush has ended."""
        now = self._clock()
        wait = self._seconds if self._share == 1.0 else max(self._seconds, (now - self._began) / self._share)
        self._next = now + wait
