"""Progress as lines of text: messages alone, or a line every few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from rollout_cli.escaping import printable
from rollout_cli.progress.protocol import NullProgress
from rollout_cli.progress.tally import Tally

_LINE_EVERY = 3.0


class MessageProgress(NullProgress):
    """Notices and warnings as lines, and nothing else; with `notices=False`, warnings only."""

    def __init__(self, stream: TextIO, *, notices: bool = True) -> None:
        self._stream = stream
        self._notices = notices

    def notice(self, text: str) -> None:
        """Write a line, unless notices are off."""
        if self._notices:
            self._write(f"notice: {text}")

    def warn(self, text: str) -> None:
        """Write a line."""
        self._write(f"warning: {text}")

    def _write(self, text: str) -> None:
        self._stream.write(f"{printable(text)}\n")
        self._stream.flush()


class LineProgress(MessageProgress):
    """A plain line every few seconds, for logs and pipes; the last one tells the end.

    Args:
        stream: Where the lines go.
        clock: Seconds, from any beginning, never backwards.
        every: Seconds between two lines.
    """

    def __init__(
        self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic, every: float = _LINE_EVERY
    ) -> None:
        super().__init__(stream)
        self._clock = clock
        self._every = every
        self._label = ""
        self._tally: Tally | None = None
        self._told_at = 0.0

    def start(self, *, label: str, total_steps: int | None, total_episodes: int | None) -> None:
        """Begin to count; the first line comes after `every` seconds."""
        self._label = label
        self._told_at = self._clock()
        self._tally = Tally(total_steps, total_episodes, self._told_at)

    def go_on_from(self, *, episodes: int, steps: int, return_sum: float) -> None:
        """Count what an earlier run did."""
        assert self._tally is not None, "go_on_from before start"
        self._tally.go_on_from(episodes=episodes, steps=steps, return_sum=return_sum)

    def update(self, *, episodes: int, steps: int, return_sum: float, failures: int = 0) -> None:
        """Count, and write a line when the last one is long enough ago."""
        assert self._tally is not None, "update before start"
        self._tally.add(episodes=episodes, steps=steps, return_sum=return_sum, failures=failures)
        if self._clock() - self._told_at >= self._every:
            self._tell()

    def finish(self) -> None:
        """Write the last line."""
        if self._tally is not None:
            self._tell()
            self._tally = None

    def _tell(self) -> None:
        assert self._tally is not None
        self._told_at = self._clock()
        facts = [*self._tally.facts(self._told_at), self._tally.outlook(self._told_at)]
        self._write(f"{self._label}: " + ", ".join(filter(None, facts)))
