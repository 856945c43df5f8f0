"""How a run reports its progress, behind one small interface: nothing, messages only, lines, or a bar on a terminal.

Streams and clocks are passed in. No thread redraws the bar, because threads and forked workers do not mix.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from rollout_cli.loading import printable

_BAR_EVERY, _LINE_EVERY = 0.1, 3.0


class Progress:
    """Receives what happens in a run, and shows nothing of it: for callers that show progress themselves.

    A run calls `start`, `begin`, any number of `update`, and `finish`; messages come at any time.
    """

    def start(self, *, label: str, total_steps: int | None, total_episodes: int | None) -> None:
        """Workers of the run `label`, any text, are being started; one of the totals ends it."""

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
        self._stream, self._notices = stream, notices

    def notice(self, text: str) -> None:
        """Write a line, unless notices are off."""
        if self._notices:
            self._write(f"notice: {printable(text)}")

    def warn(self, text: str) -> None:
        """Write the text."""
        self._write("warning: " + printable(text.strip("\n"), keep="\n"), style="yellow")

    def _write(self, text: str, style: str = "") -> None:
        del style
        self._stream.write(f"{text}\n")
        self._stream.flush()


class LineProgress(MessageProgress):
    """A plain line every few seconds, for logs and pipes; the last one states the end."""

    def __init__(
        self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic, every: float = _LINE_EVERY
    ) -> None:
        super().__init__(stream)
        self._clock, self._every = clock, every
        self._is_open, self._began, self._shown_at = False, 0.0, 0.0
        self._total_steps: int | None = None
        self._total_episodes: int | None = None
        self._episodes = self._steps = self._failures = self._steps_before = 0
        self._label, self._return_sum, self._share_before = "", 0.0, 0.0

    def start(self, *, label: str, total_steps: int | None, total_episodes: int | None) -> None:
        """Remember the totals; the first line comes with an update."""
        self._label, self._total_steps, self._total_episodes = printable(label), total_steps, total_episodes
        self._is_open, self._shown_at = True, self._clock()

    def begin(self, *, episodes: int = 0, steps: int = 0, return_sum: float = 0.0) -> None:
        """Begin to count; what a resumed dataset holds took none of this run's time."""
        self._episodes, self._steps, self._return_sum = episodes, steps, return_sum
        self._began, self._steps_before, self._share_before = self._clock(), steps, self._share or 0.0

    def update(self, *, episodes: int = 0, steps: int = 0, return_sum: float = 0.0, failures: int = 0) -> None:
        """Count, and show it when the last time is long enough ago."""
        self._episodes += episodes
        self._steps += steps
        self._return_sum += return_sum
        self._failures += failures
        if self._is_open and self._clock() - self._shown_at >= self._every:
            self._show()

    def finish(self) -> None:
        """Show the last state, if anything has stepped."""
        if self._is_open and self._steps > self._steps_before:
            self._show()
        self._is_open = False

    @property
    def _share(self) -> float | None:
        """The part that is done, 0 to 1; None where the end is not known."""
        done, total = (self._steps, self._total_steps) if self._total_steps else (self._episodes, self._total_episodes)
        return min(1.0, done / total) if total else None

    def _facts(self) -> list[str]:
        """Return what a person reads, in the same words for lines and bar."""
        if self._steps == self._steps_before:
            return ["starting workers"]
        elapsed = self._clock() - self._began
        pace = (self._steps - self._steps_before) / elapsed if elapsed > 0 else 0.0
        steps, episodes = (
            f"{count:,}" if total is None else f"{count:,}/{total:,}"
            for count, total in ((self._steps, self._total_steps), (self._episodes, self._total_episodes))
        )
        return [
            f"{steps} steps",
            f"{episodes} episodes",
            f"{pace:,.0f} steps/s",
            *([f"mean return {self._return_sum / self._episodes:.4g}"] if self._episodes else []),
            *([f"{self._failures:,} failures"] if self._failures else []),
        ]

    def _outlook(self) -> str:
        """Return how long it will take yet, or took where it is done; empty where neither is known."""
        elapsed, share = self._clock() - self._began, self._share
        if share is None or share == 1.0:
            return f"in {_duration(elapsed)}"
        gained = share - self._share_before
        return f"ETA {_duration(elapsed * (1.0 - share) / gained)}" if gained > 0.0 else ""

    def _show(self) -> None:
        self._shown_at = self._clock()
        self._write(f"{self._label}: {', '.join(filter(None, [*self._facts(), self._outlook()]))}")


class BarProgress(LineProgress):
    """A bar above a line of facts, on a terminal."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream, clock=clock, every=_BAR_EVERY)
        self._console: Any = None
        self._bar: Any = None

    def start(self, *, label: str, total_steps: int | None, total_episodes: int | None) -> None:
        """Draw a bar that moves, until the workers are ready."""
        from rich import progress  # noqa: PLC0415 - loading rich takes as long as a worker takes to build
        from rich.text import Text  # noqa: PLC0415 - as above

        class Display(progress.Progress):
            """The facts stand in a line below the bar, beside which they would not fit."""

            def get_renderables(self) -> Any:
                yield self.make_tasks_table(self.tasks)
                yield from (Text(task.fields["facts"]) for task in self.tasks)

        super().start(label=label, total_steps=total_steps, total_episodes=total_episodes)
        columns = [progress.SpinnerColumn(), progress.TextColumn("{task.description}", markup=False)]
        columns += [progress.BarColumn(), progress.TextColumn("{task.fields[outlook]}", markup=False)]
        self._bar = Display(
            *columns, console=self._opened(), auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        self._bar.add_task(self._label, total=None, outlook="", facts="  starting workers")
        self._bar.start()

    def begin(self, *, episodes: int = 0, steps: int = 0, return_sum: float = 0.0) -> None:
        """Draw an empty bar, or go on moving where the end is not known."""
        super().begin(episodes=episodes, steps=steps, return_sum=return_sum)
        self._show()

    def finish(self) -> None:
        """Draw the bar for the last time and leave its lines."""
        super().finish()
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _opened(self) -> Any:
        from rich.console import Console  # noqa: PLC0415 - as above

        self._console = self._console or Console(file=self._stream, markup=False, highlight=False, emoji=False)
        return self._console

    def _write(self, text: str, style: str = "") -> None:
        """Write a line above the bar."""
        self._opened().print(text, style=style or None, soft_wrap=True)

    def _show(self) -> None:
        self._shown_at = self._clock()
        share = self._share
        total, facts = None if share is None else 1.0, f"  {'  '.join(self._facts())}"
        self._bar.update(0, total=total, completed=share or 0.0, outlook=self._outlook(), facts=facts)
        self._bar.refresh()


def choose_progress(stream: TextIO, *, wanted: bool | None, quiet: bool, environ: Mapping[str, str]) -> Progress:
    """Return what suits the stream: a bar on a terminal, lines elsewhere or with `TERM=dumb`.

    `wanted=False` leaves messages alone, and `quiet` warnings alone. (rich itself honours `NO_COLOR`.)
    """
    if quiet or wanted is False:
        return MessageProgress(stream, notices=not quiet)
    can_draw = stream.isatty() and environ.get("TERM") not in {"dumb", "unknown"}
    return BarProgress(stream) if can_draw else LineProgress(stream)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
