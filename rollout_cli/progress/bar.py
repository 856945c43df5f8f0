"""Progress as a bar on a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property
from typing import Any, TextIO

from rollout_cli.escaping import printable
from rollout_cli.progress.tally import Tally

_BAR_EVERY = 0.1


class RichProgress:
    """A bar and a line of facts on a terminal, redrawn by the updates themselves.

    A thread that redraws them would be there when workers are forked, so there is none.

    Args:
        stream: The terminal.
        clock: Seconds, from any beginning, never backwards.
    """

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._live: Any = None
        self._bar: Any = None
        self._task: Any = None
        self._tally: Tally | None = None
        self._drawn_at = 0.0

    @cached_property
    def _console(self) -> Any:
        # Loading rich takes as long as a worker takes to build: it waits until there is something to draw.
        from rich.console import Console  # noqa: PLC0415

        return Console(file=self._stream, markup=False, highlight=False, emoji=False)

    def start(self, *, label: str, total_steps: int | None, total_episodes: int | None) -> None:
        """Draw an empty bar, or a moving one where the end is not known."""
        from rich.live import Live  # noqa: PLC0415 - as above
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn  # noqa: PLC0415

        self._drawn_at = self._clock()
        self._tally = Tally(total_steps, total_episodes, self._drawn_at)
        known = total_steps is not None or total_episodes is not None
        name = TextColumn("{task.description}", markup=False)
        outlook = TextColumn("{task.fields[outlook]}", markup=False)
        self._bar = Progress(SpinnerColumn(), name, BarColumn(), outlook, disable=True)
        self._task = self._bar.add_task(printable(label), total=1.0 if known else None, outlook="")
        self._live = Live(
            get_renderable=self._picture,
            console=self._console,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start(refresh=True)

    def go_on_from(self, *, episodes: int, steps: int, return_sum: float) -> None:
        """Count what an earlier run did."""
        assert self._tally is not None, "go_on_from before start"
        self._tally.go_on_from(episodes=episodes, steps=steps, return_sum=return_sum)

    def update(self, *, episodes: int, steps: int, return_sum: float, failures: int = 0) -> None:
        """Count, and redraw when the last time is long enough ago."""
        assert self._tally is not None, "update before start"
        self._tally.add(episodes=episodes, steps=steps, return_sum=return_sum, failures=failures)
        if self._clock() - self._drawn_at >= _BAR_EVERY:
            self._draw()

    def notice(self, text: str) -> None:
        """Write a line above the bar."""
        self._console.print(f"notice: {printable(text)}")

    def warn(self, text: str) -> None:
        """Write a line above the bar."""
        self._console.print(f"warning: {printable(text)}", style="yellow")

    def finish(self) -> None:
        """Draw the bar for the last time and leave its lines."""
        if self._live is not None:
            self._draw()
            self._live.stop()
            self._live = None

    def _draw(self) -> None:
        assert self._tally is not None
        self._drawn_at = self._clock()
        self._bar.update(self._task, completed=self._tally.share or 0.0, outlook=self._tally.outlook(self._drawn_at))
        self._live.refresh()

    def _picture(self) -> Any:
        """Return the bar above the facts, which would not fit beside it."""
        from rich.console import Group  # noqa: PLC0415 - as above
        from rich.text import Text  # noqa: PLC0415

        assert self._tally is not None
        return Group(self._bar, Text("  " + "  ".join(self._tally.facts(self._drawn_at))))
