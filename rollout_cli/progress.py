"""Progress of a run behind one interface: no output, messages only, lines, or a bar.

No thread redraws the bar, because a process with threads must not fork workers.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from importlib.util import find_spec
from typing import Any, TextIO

from rollout_cli.episodes.chunk import AnyChunk, Chunk
from rollout_cli.sources.untrusted import printable

_BAR_EVERY = 0.1
_LINE_EVERY = 3.0
_BAR_WIDTH = 20
_WIDE = 80  # Minimum columns of a terminal for a bar next to the status.
_LONGEST_ETA = 1e9  # Seconds; the maximum of timedelta is 9e13.
_clock = time.monotonic


class Progress:
    """The interface of progress, which shows nothing by default. Callers override methods to show progress.

    A run calls `start`, `begin`, `update` any number of times, and `finish`; messages arrive at any time.

    Example:
        >>> class Announced(rollout_cli.Progress):
        ...     def start(self, *, label, **totals):
        ...         print(label, totals["total_steps"])
        >>> config = rollout_cli.CollectConfig(timesteps=20, seed=0, sampler="local", output="small")
        >>> result = rollout_cli.collect(config, progress=Announced())
        CartPole-v1 20
    """

    def start(
        self,
        *,
        label: str,
        total_steps: int | None,
        total_episodes: int | None,
        total_seconds: float | None = None,
    ) -> None:
        """Handle the start of workers for the run `label`.

        The first total that is reached ends the run: steps, episodes or seconds; None for no such total.
        """

    def begin(
        self, *, episodes: int = 0, steps: int = 0, return_sum: float = 0.0, seconds: float = 0.0
    ) -> None:
        """Handle the end of the workers' start; the first worker was ready `seconds` ago.

        The other arguments are the totals of a resumed dataset.
        """

    def update(
        self, *, episodes: int = 0, steps: int = 0, return_sum: float = 0.0, failures: int = 0
    ) -> None:
        """Add finished episodes, their steps and the sum of their returns, or faults that did not end the run."""

    def add(self, chunk: AnyChunk) -> None:
        """Add the episodes of a chunk."""
        self.update(episodes=chunk.n_episodes, steps=chunk.n_steps, return_sum=chunk.return_sum)

    def ran(self, episodes: int) -> None:
        """Handle the number of episodes that were run so far; `update` adds only the kept episodes."""

    def notice(self, text: str) -> None:
        """Show a notice to the user."""

    def warn(self, text: str) -> None:
        """Show a warning that concerns the data; lines after the first are details, such as a traceback.

        By default the warning goes to the log, where a program can see it.
        """
        logging.getLogger("rollout_cli").warning("%s", text)

    def finish(self) -> None:
        """Handle the end of the run, after success or an error; further calls do nothing."""


class LineProgress(Progress):
    """Write notices and warnings immediately, a status line every few seconds, and a final one.

    `every=None` disables status lines, and `notices=False` disables notices.
    """

    def __init__(self, stream: TextIO, *, every: float | None = _LINE_EVERY, notices: bool = True) -> None:
        self._stream = stream
        self._every = every
        self._notices = notices
        self._is_open = False
        self._started_at = 0.0
        self._shown_at = 0.0
        self._label = ""
        self._return_sum = 0.0
        self._failures = 0
        self._n_run: int | None = None  # Episodes that were run; None if all are kept.
        self._done = self._before = (0, 0)  # Steps and episodes: in total, and in the resumed dataset.
        self._totals: tuple[int | None, int | None, float | None] = (None, None, None)

    def notice(self, text: str) -> None:
        if self._notices:
            self._write(f"notice: {printable(text)}")

    def warn(self, text: str) -> None:
        self._write("warning: " + printable(text.strip("\n"), keep="\n"), style="yellow")

    def start(
        self,
        *,
        label: str,
        total_steps: int | None,
        total_episodes: int | None,
        total_seconds: float | None = None,
    ) -> None:
        self._label = printable(label)
        self._totals = (total_steps, total_episodes, total_seconds)
        self._is_open = self._every is not None
        self._shown_at = _clock()

    def begin(
        self, *, episodes: int = 0, steps: int = 0, return_sum: float = 0.0, seconds: float = 0.0
    ) -> None:
        self._done = self._before = (steps, episodes)
        self._return_sum = return_sum
        self._started_at = _clock() - seconds
        total_steps, total_episodes, limit = self._totals
        self._totals = total_steps, total_episodes, limit and limit + seconds  # The limit counts from now.

    def update(
        self, *, episodes: int = 0, steps: int = 0, return_sum: float = 0.0, failures: int = 0
    ) -> None:
        self._done = (self._done[0] + steps, self._done[1] + episodes)
        self._return_sum += return_sum
        self._failures += failures
        if self._is_open and _clock() - self._shown_at >= (self._every or 0.0):
            self._show()

    def ran(self, episodes: int) -> None:
        self._n_run = episodes

    def finish(self) -> None:
        if self._is_open and self._done[0] > self._before[0]:
            self._show()
        self._is_open = False

    def _status_line(self, width: int = sys.maxsize) -> str:
        """Return the status of the run, for lines and bar; less important parts are omitted if it is too wide.

        The progress towards the total and the remaining time are always included.
        """
        steps, episodes = self._done
        total_steps, total_episodes, _ = self._totals
        new_steps = steps - self._before[0]
        elapsed = _clock() - self._started_at
        if new_steps == 0:
            return f"{self._label}: {'no episode yet' if self._started_at else 'starting workers'}"
        kept = ""
        if self._n_run:
            kept = f" of {self._n_run:,} run ({100 * episodes / self._n_run:.3g} %)"
        facts = {
            "label": f"{self._label}:",
            "steps": f"{_of_total(steps, total_steps)} steps,",
            "episodes": f"{_of_total(episodes, total_episodes)} episodes{kept},",
            "pace": f"{new_steps / elapsed if elapsed else 0:,.0f} steps/s,",
        }
        if episodes:
            facts["return"] = f"mean return {self._return_sum / episodes:.4g},"
        if self._failures:
            facts["failures"] = f"{self._failures:,} failures,"
        before, done, total = self._measure()
        if done >= total:
            facts["time"] = f"in {timedelta(seconds=round(elapsed))}"
        elif done > before:
            left = elapsed * (total - done) / (done - before)
            facts["time"] = f"ETA {timedelta(seconds=round(min(left, _LONGEST_ETA)))}"
        dispensable = ["failures", "pace", "label", "episodes" if total_steps else "steps", "return"]
        while len(text := " ".join(facts.values()).rstrip(",")) > width and dispensable:
            facts.pop(dispensable.pop(), None)
        return text

    def _measure(self) -> tuple[float, float, float]:
        """Return the amount before this run, the amount so far, and the total (0: unknown).

        The unit is steps, episodes or seconds, whichever is closest to its total.
        """
        now = (*self._done, _clock() - self._started_at)
        facts = zip((*self._before, 0.0), now, self._totals, strict=True)
        units = [(before, done, total) for before, done, total in facts if total]
        return min(
            units, key=lambda unit: (unit[2] - unit[1]) / max(unit[1] - unit[0], 1e-9), default=(0, 0, 0)
        )

    def _show(self) -> None:
        self._shown_at = _clock()
        self._write(self._status_line())

    def _write(self, text: str, style: str = "") -> None:  # noqa: ARG002
        self._stream.write(f"{text}\n")
        self._stream.flush()


def _of_total(count: int, total: int | None) -> str:
    return f"{count:,}/{total:,}" if total else f"{count:,}"


class BarProgress(LineProgress):
    """A bar next to the same status, on a terminal."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream, every=_BAR_EVERY)
        self._bar: Any = None

    def start(self, **run: Any) -> None:
        # Loading rich takes as long as a worker takes to build.
        from rich import progress, table  # noqa: PLC0415

        super().start(**run)
        # Erasing a line that wraps leaves a part of it.
        column = table.Column(no_wrap=True, overflow="ellipsis")
        columns: list[Any] = [
            progress.SpinnerColumn("line" if self._console.options.ascii_only else "dots"),
            progress.TextColumn("{task.description}", markup=False, table_column=column),
        ]
        if self._console.width >= _WIDE:
            columns.insert(1, progress.BarColumn(bar_width=_BAR_WIDTH))
        self._bar = progress.Progress(
            *columns,
            console=self._console,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._bar.add_task(self._status_line(), total=None)
        self._bar.start()

    def begin(self, **before: Any) -> None:
        super().begin(**before)
        self._show()

    def finish(self) -> None:
        super().finish()
        if self._bar is not None:
            _, done, total = self._measure()
            self._bar.live.transient = done < total  # An unfinished bar looks like a run that goes on.
            self._bar.stop()
            self._bar = None

    @cached_property
    def _console(self) -> Any:
        from rich.console import Console  # noqa: PLC0415 - as above

        return Console(file=self._stream, markup=False, highlight=False, emoji=False)

    def _write(self, text: str, style: str = "") -> None:
        """Write a line above the bar."""
        self._console.print(text, style=style or None, soft_wrap=True)

    def _show(self) -> None:
        self._shown_at = _clock()
        _, done, total = self._measure()
        # Spinner and bar precede the text, and `^C` may follow it.
        room = self._console.width - (_BAR_WIDTH + 6 if self._console.width >= _WIDE else 5)
        self._bar.update(0, total=total or None, completed=done, description=self._status_line(room))
        self._bar.refresh()


def shown(
    chunks: Iterator[Chunk], *, label: str, total_steps: int | None = None, total_episodes: int | None = None
) -> Iterator[Chunk]:
    """Yield the chunks and show their progress towards one of the totals on stderr."""
    progress = choose_progress(sys.stderr, wanted=True, quiet=False)
    progress.start(label=label, total_steps=total_steps, total_episodes=total_episodes)
    try:
        progress.begin()
        for chunk in chunks:
            progress.add(chunk)
            yield chunk
    finally:
        progress.finish()


@contextmanager
def showing(progress: Progress | bool | None) -> Iterator[Progress]:  # noqa: FBT001 - as `collect` takes it
    """Give a run's progress: the caller's own, or for True a new one on stderr that ends with the block."""
    if isinstance(progress, Progress):
        yield progress
        return
    own = choose_progress(sys.stderr, wanted=True, quiet=False) if progress else Progress()
    try:
        yield own
    finally:
        own.finish()


def choose_progress(stream: TextIO, *, wanted: bool | None, quiet: bool) -> Progress:
    """Return a bar for a terminal; lines for other streams and with `TERM=dumb`.

    `wanted=False` shows only messages, and `quiet` only warnings. (rich itself honors `NO_COLOR`.)
    """
    if quiet or wanted is False:
        return LineProgress(stream, every=None, notices=not quiet)
    is_terminal = stream.isatty() and os.environ.get("TERM") not in {"dumb", "unknown"}
    # In a notebook, rich draws with ipywidgets.
    is_notebook = "ipykernel" in sys.modules and find_spec("ipywidgets") is not None
    return BarProgress(stream) if is_terminal or is_notebook else LineProgress(stream)
