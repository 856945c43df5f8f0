"""How a run tells that it gets on, behind a small protocol: nothing, messages only, lines, or a bar on a terminal.

The use case speaks to a `Progress` and knows no stream; clocks and streams are given, so that tests need neither time
nor a terminal. rich is imported only where a bar is made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TextIO

_LINE_EVERY = 3.0
_BAR_EVERY = 0.1


class Progress(Protocol):
    """What a run tells while it goes on.

    `start` comes once, then any number of `update`, then `finish`, which may be called again and does nothing then.
    `notice` and `warn` may come at any time.
    """

    def start(self, *, label: str, total_steps: int | None, total_episodes: int | None) -> None:
        """Begin.

        Args:
            label: What is run, such as the environment's name; any text.
            total_steps: How many steps end the run, where steps end it.
            total_episodes: How many episodes end the run, where episodes end it.
        """

    def update(self, *, episodes: int, steps: int, return_sum: float, failures: int = 0) -> None:
        """Add finished episodes, their steps, the sum of their returns, and failures that were got over."""

    def notice(self, text: str) -> None:
        """Tell something worth knowing."""

    def warn(self, text: str) -> None:
        """Tell something that may spoil the data."""

    def finish(self) -> None:
        """End, whether the run went well or not."""


class NullProgress:
    """Says nothing: for callers that show progress themselves."""

    def start(self, *, label: str, total_steps: int | None, total_episodes: int | None) -> None:
        """Say nothing."""

    def update(self, *, episodes: int, steps: int, return_sum: float, failures: int = 0) -> None:
        """Say nothing."""

    def notice(self, text: str) -> None:
        """Say nothing."""

    def warn(self, text: str) -> None:
        """Say nothing."""

    def finish(self) -> None:
        """Say nothing."""


@dataclass(slots=True)
class Tally:
    """The sums so far, and what they mean against the clock."""

    total_steps: int | None
    total_episodes: int | None
    started: float
    episodes: int = 0
    steps: int = 0
    return_sum: float = 0.0
    failures: int = 0

    def add(self, *, episodes: int, steps: int, return_sum: float, failures: int) -> None:
        """Add one update."""
        self.episodes += episodes
        self.steps += steps
        self.return_sum += return_sum
        self.failures += failures

    @property
    def share(self) -> float | None:
        """The part that is done, 0 to 1, or None where the end is not known."""
        if self.total_steps:
            return min(1.0, self.steps / self.total_steps)
        if self.total_episodes:
            return min(1.0, self.episodes / self.total_episodes)
        return None

    def facts(self, now: float) -> list[str]:
        """Return what a person reads, in the same words for lines and bar."""
        elapsed = now - self.started
        facts = [
            _amount(self.steps, self.total_steps, "steps"),
            _amount(self.episodes, self.total_episodes, "episodes"),
            f"{self.steps / elapsed if elapsed > 0 else 0:,.0f} steps/s",
        ]
        if self.episodes:
            facts.append(f"mean return {self.return_sum / self.episodes:.4g}")
        if self.failures:
            facts.append(f"{self.failures:,} failures")
        return facts

    def outlook(self, now: float) -> str:
        """Return how long it takes yet, or took where it is done or has no known end; empty where nothing is known."""
        elapsed = now - self.started
        if self.share is None or self.share == 1.0:
            return f"in {_duration(elapsed)}"
        return f"ETA {_duration(elapsed / self.share - elapsed)}" if self.share > 0.0 else ""


def _amount(number: int, total: int | None, unit: str) -> str:
    return f"{number:,} {unit}" if total is None else f"{number:,}/{total:,} {unit}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"


class MessageProgress(NullProgress):
    """Notices and warnings as lines, and nothing else; with `notices=False`, warnings only."""

    def __init__(self, stream: TextIO, *, notices: bool = True) -> None:
        self._stream: TextIO | None = stream
        self._notices = notices

    def notice(self, text: str) -> None:
        """Write a line, unless notices are off."""
        if self._notices:
            self._write(f"notice: {text}")

    def warn(self, text: str) -> None:
        """Write a line."""
        self._write(f"warning: {text}")

    def _write(self, text: str) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(f"{printable(text)}\n")
            self._stream.flush()
        except BrokenPipeError:
            # Whoever read this has gone; the run is not over for that.
            self._stream = None


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


class RichProgress:
    """A bar and a line of facts on a terminal, redrawn by the updates themselves.

    A thread that redraws them would be there when workers are forked, so there is none.

    Args:
        stream: The terminal.
        clock: Seconds, from any beginning, never backwards.
    """

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        from rich.console import Console  # noqa: PLC0415 - rich is loaded only where a bar is drawn

        self._console = Console(file=stream, markup=False, highlight=False, emoji=False)
        self._clock = clock
        self._live: Any = None
        self._bar: Any = None
        self._task: Any = None
        self._tally: Tally | None = None
        self._drawn_at = 0.0

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


def choose_progress(
    stream: TextIO, *, wanted: bool | None, quiet: bool, environ: Mapping[str, str]
) -> NullProgress | RichProgress:
    """Return what suits the stream: a bar on a terminal, lines elsewhere.

    Args:
        stream: Where it is shown.
        wanted: True and False decide; None shows progress.
        quiet: Show warnings only, whatever is wanted.
        environ: `TERM=dumb` makes a terminal one without bars. (`NO_COLOR` is honoured by rich itself.)
    """
    if quiet:
        return MessageProgress(stream, notices=False)
    if wanted is False:
        return MessageProgress(stream)
    return RichProgress(stream) if is_rich_terminal(stream, environ) else LineProgress(stream)


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
