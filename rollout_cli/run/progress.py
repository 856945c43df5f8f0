"""How a run reports its progress, behind one small interface: nothing, messages only, lines, or a bar on a terminal.

The run calls a `Progress` and knows no stream; streams and clocks are passed in, so that tests need no terminal and no
time. No thread redraws the bar, because threads and forked workers do not mix: the updates themselves do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TextIO

from rollout_cli.loading import printable

_BAR_EVERY, _LINE_EVERY = 0.1, 3.0
STARTING = "starting workers"


class Progress:
    """Receives what happens in a run, and shows nothing of it: for callers that show progress themselves.

    A run calls `start`, `begin`, any number of `update`, and `finish`; messages come at any time.
    """

    def start(self, *, label: str, total_steps: int | None, total_episodes: int | None) -> None:
        """Workers are being started; nothing is counted yet.

        Args:
            label: A name of the run, such as the environment's; any text.
            total_steps: How many steps end the run, where steps end it.
            total_episodes: How many episodes end the run, where episodes end it.
        """

    def begin(self, *, episodes: int = 0, steps: int = 0, return_sum: float = 0.0) -> None:
        """Workers are ready, and time is counted from here; the arguments are what a resumed dataset holds already."""

    def update(self, *, episodes: int = 0, steps: int = 0, return_sum: float = 0.0, failures: int = 0) -> None:
        """Add finished episodes, their steps and the sum of their returns, or faults that the run survived."""

    def notice(self, text: str) -> None:
        """Report something worth knowing."""

    def warn(self, text: str) -> None:
        """Report something that may spoil the data; lines after the first are details, such as a traceback."""

    def finish(self) -> None:
        """End, whether the run went well or not; again does nothing."""


class MessageProgress(Progress):
    """Notices and warnings as lines, and nothing else; with `notices=False`, warnings only."""

    def __init__(self, stream: TextIO, *, notices: bool = True) -> None:
        self._stream = stream
        self._notices = notices

    def notice(self, text: str) -> None:
        """Write a line, unless notices are off."""
        if self._notices:
            self._write(f"notice: {printable(text)}")

    def warn(self, text: str) -> None:
        """Write the text."""
        self._write(f"warning: {_kept_lines(text)}")

    def _write(self, text: str) -> None:
        self._stream.write(f"{text}\n")
        self._stream.flush()


@dataclass(slots=True)
class _Tally:
    """The sums of a run so far, and what they mean against the clock."""

    total_steps: int | None
    total_episodes: int | None
    began: float | None = None
    episodes: int = 0
    steps: int = 0
    return_sum: float = 0.0
    failures: int = 0
    steps_before: int = 0
    share_before: float = 0.0

    def begin(self, now: float, episodes: int, steps: int, return_sum: float) -> None:
        """Begin to count; what a resumed dataset holds took none of this run's time."""
        self.add(episodes, steps, return_sum, 0)
        self.began, self.steps_before, self.share_before = now, steps, self.share or 0.0

    def add(self, episodes: int, steps: int, return_sum: float, failures: int) -> None:
        self.episodes += episodes
        self.steps += steps
        self.return_sum += return_sum
        self.failures += failures

    @property
    def has_stepped(self) -> bool:
        """Whether this run has added a step."""
        return self.steps > self.steps_before

    @property
    def share(self) -> float | None:
        """The part that is done, 0 to 1; None where the end is not known."""
        done, total = (self.steps, self.total_steps) if self.total_steps else (self.episodes, self.total_episodes)
        return min(1.0, done / total) if total else None

    def facts(self, now: float) -> list[str]:
        """Return what a person reads, in the same words for lines and bar."""
        if self.began is None or not self.has_stepped:
            return [STARTING]
        elapsed = now - self.began
        pace = (self.steps - self.steps_before) / elapsed if elapsed > 0 else 0.0
        return [
            _amount(self.steps, self.total_steps, "steps"),
            _amount(self.episodes, self.total_episodes, "episodes"),
            f"{pace:,.0f} steps/s",
            *([f"mean return {self.return_sum / self.episodes:.4g}"] if self.episodes else []),
            *([f"{self.failures:,} failures"] if self.failures else []),
        ]

    def outlook(self, now: float) -> str:
        """Return how long it will take yet, or took where it is done; empty where neither is known."""
        if self.began is None:
            return ""
        elapsed, share = now - self.began, self.share
        if share is None or share == 1.0:
            return f"in {_duration(elapsed)}"
        gained = share - self.share_before
        return f"ETA {_duration(elapsed * (1.0 - share) / gained)}" if gained > 0.0 else ""


class LineProgress(MessageProgress):
    """A plain line every few seconds, for logs and pipes; the last one states the end.

    Args:
        stream: Where the lines go.
        clock: Seconds, from any beginning, never backwards.
        every: Seconds between two lines.
    """

    def __init__(
        self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic, every: float = _LINE_EVERY
    ) -> None:
        super().__init__(stream)
        self._clock, self._every, self._label, self._shown_at = clock, every, "", 0.0
        self._tally: _Tally | None = None

    def start(self, *, label: str, total_steps: int | None, total_episodes: int | None) -> None:
        """Remember the totals; the first line comes with an update."""
        self._label, self._shown_at = label, self._clock()
        self._tally = _Tally(total_steps, total_episodes)

    def begin(self, *, episodes: int = 0, steps: int = 0, return_sum: float = 0.0) -> None:
        """Begin to count."""
        assert self._tally is not None, "begin before start"
        self._tally.begin(self._clock(), episodes, steps, return_sum)

    def update(self, *, episodes: int = 0, steps: int = 0, return_sum: float = 0.0, failures: int = 0) -> None:
        """Count, and show it when the last time is long enough ago."""
        if self._tally is None:
            return  # A fault before the start is a message alone.
        self._tally.add(episodes, steps, return_sum, failures)
        if self._clock() - self._shown_at >= self._every:
            self._show()

    def finish(self) -> None:
        """Show the last state, if anything has stepped."""
        if self._tally is not None and self._tally.has_stepped:
            self._show()
        self._tally = None

    def _show(self) -> None:
        assert self._tally is not None
        self._shown_at = self._clock()
        facts = [*self._tally.facts(self._shown_at), self._tally.outlook(self._shown_at)]
        self._write(printable(f"{self._label}: {', '.join(filter(None, facts))}"))


class BarProgress(LineProgress):
    """A bar above a line of facts, on a terminal."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream, clock=clock, every=_BAR_EVERY)
        self._bar: Any = None

    @cached_property
    def _console(self) -> Any:
        # Loading rich takes as long as a worker takes to build: it waits until there is something to draw.
        from rich.console import Console  # noqa: PLC0415

        return Console(file=self._stream, markup=False, highlight=False, emoji=False)

    def start(self, *, label: str, total_steps: int | None, total_episodes: int | None) -> None:
        """Draw a bar that moves, until the workers are ready."""
        super().start(label=label, total_steps=total_steps, total_episodes=total_episodes)
        assert self._tally is not None
        self._bar = _rich_bar(self._console, lambda: "  ".join(self._tally.facts(self._clock()) if self._tally else []))
        self._bar.add_task(printable(label), total=None, outlook="")
        self._bar.start()

    def begin(self, *, episodes: int = 0, steps: int = 0, return_sum: float = 0.0) -> None:
        """Draw an empty bar, or go on moving where the end is not known."""
        super().begin(episodes=episodes, steps=steps, return_sum=return_sum)
        self._show()

    def notice(self, text: str) -> None:
        """Write a line above the bar."""
        self._console.print(f"notice: {printable(text)}", soft_wrap=True)

    def warn(self, text: str) -> None:
        """Write the text above the bar."""
        self._console.print(f"warning: {_kept_lines(text)}", style="yellow", soft_wrap=True)

    def finish(self) -> None:
        """Draw the bar for the last time and leave its lines."""
        super().finish()
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _show(self) -> None:
        assert self._tally is not None
        self._shown_at = self._clock()
        share, outlook = self._tally.share, self._tally.outlook(self._shown_at)
        self._bar.update(0, total=None if share is None else 1.0, completed=share or 0.0, outlook=outlook)
        self._bar.refresh()


def _rich_bar(console: Any, facts: Callable[[], str]) -> Any:
    """Return rich's progress display with one more line below it, because the facts would not fit beside the bar."""
    from rich import progress  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415

    class Bar(progress.Progress):
        def get_renderables(self) -> Any:
            yield self.make_tasks_table(self.tasks)
            yield Text(f"  {facts()}")

    name = progress.TextColumn("{task.description}", markup=False)
    outlook = progress.TextColumn("{task.fields[outlook]}", markup=False)
    return Bar(
        *(progress.SpinnerColumn(), name, progress.BarColumn(), outlook),
        console=console,
        auto_refresh=False,
        redirect_stdout=False,
        redirect_stderr=False,
    )


def is_drawable(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Return whether a bar can be drawn on the stream."""
    return stream.isatty() and environ.get("TERM") not in {"dumb", "unknown"}


def choose_progress(stream: TextIO, *, wanted: bool | None, quiet: bool, environ: Mapping[str, str]) -> Progress:
    """Return what suits the stream: a bar on a terminal, lines elsewhere.

    Args:
        stream: Where it is shown.
        wanted: True and False decide; None shows progress.
        quiet: Show warnings only, whatever is wanted.
        environ: `TERM=dumb` makes a terminal one without bars. (rich itself honours `NO_COLOR`.)
    """
    if quiet or wanted is False:
        return MessageProgress(stream, notices=not quiet)
    return BarProgress(stream) if is_drawable(stream, environ) else LineProgress(stream)


def _kept_lines(text: str) -> str:
    return printable(text.strip("\n"), keep="\n")


def _amount(number: int, total: int | None, unit: str) -> str:
    return f"{number:,} {unit}" if total is None else f"{number:,}/{total:,} {unit}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
