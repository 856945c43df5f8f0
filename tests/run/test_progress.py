"""Progress on a clock and a stream of the test's own: what a person reads at each moment."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import threading

import pytest

from rollout_cli.progress import BarProgress, LineProgress, choose_progress


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr("rollout_cli.progress._clock", made := Clock())
    return made


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Terminal()


def test_what_ran_before_is_in_the_pace(stream: io.StringIO, clock: Clock) -> None:
    """Workers run episodes from when they are built, while the dataset's folder is still being made."""
    progress = LineProgress(stream, every=100.0)
    progress.start(label="Env", total_steps=100, total_episodes=None)
    clock.now += 60.0
    progress.begin(seconds=3.0)
    clock.now += 1.0
    progress.update(episodes=1, steps=100, return_sum=5.0)
    progress.finish()
    assert "Env: 100/100 steps, 1 episodes, 25 steps/s, mean return 5, in 0:00:04\n" == stream.getvalue()


def test_a_limit_of_time_counts_from_when_the_dataset_is_open(stream: io.StringIO, clock: Clock) -> None:
    """What workers ran before is no part of it: the run goes on."""
    progress = LineProgress(stream, every=0.0)
    progress.start(label="Env", total_steps=None, total_episodes=None, total_seconds=10.0)
    progress.begin(seconds=4.0)
    clock.now += 7.0
    progress.update(episodes=1, steps=110, return_sum=5.0)
    clock.now += 3.0
    progress.finish()
    assert ["ETA 0:00:03", "in 0:00:14"] == [line.split(", ")[-1] for line in stream.getvalue().splitlines()]


def test_lines(stream: io.StringIO, clock: Clock) -> None:
    """A line every few seconds, and one at the end; the time of starting workers is not in the pace."""
    progress = LineProgress(stream, every=2.0)
    progress.start(label="Env", total_steps=100, total_episodes=None)
    clock.now += 60.0
    progress.begin()
    clock.now += 1.0
    progress.update(episodes=1, steps=20, return_sum=5.0)
    clock.now += 1.0
    progress.update(episodes=1, steps=30, return_sum=6.0)
    clock.now += 1.0
    progress.update(failures=2)
    clock.now += 1.0
    progress.update(episodes=2, steps=50, return_sum=9.0)
    progress.finish()
    progress.finish()
    assert [
        "Env: 20/100 steps, 1 episodes, 20 steps/s, mean return 5, ETA 0:00:04",
        "Env: 50/100 steps, 2 episodes, 17 steps/s, mean return 5.5, 2 failures, ETA 0:00:03",
        "Env: 100/100 steps, 4 episodes, 25 steps/s, mean return 5, 2 failures, in 0:00:04",
    ] == stream.getvalue().splitlines()


def test_a_resumed_run(stream: io.StringIO, clock: Clock) -> None:
    """The dataset's steps count as done, and neither in the pace nor in the time that is left."""
    progress = LineProgress(stream, every=0.0)
    progress.start(label="Env", total_steps=100, total_episodes=None)
    progress.begin(episodes=5, steps=50, return_sum=10.0)
    clock.now += 2.0
    progress.update(episodes=1, steps=10, return_sum=2.0)
    assert "Env: 60/100 steps, 6 episodes, 5 steps/s, mean return 2, ETA 0:00:08\n" == stream.getvalue()


def test_episodes_end_the_run(stream: io.StringIO, clock: Clock) -> None:
    """Where episodes are asked for, they give the outlook."""
    progress = LineProgress(stream, every=0.0)
    progress.start(label="Env", total_steps=None, total_episodes=4)
    progress.begin()
    clock.now += 3661.0
    progress.update(episodes=1, steps=10, return_sum=0.0)
    assert "Env: 10 steps, 1/4 episodes, 0 steps/s, mean return 0, ETA 3:03:03\n" == stream.getvalue()


def test_an_amount_that_nobody_reaches(stream: io.StringIO, clock: Clock) -> None:
    """However long it would take, there is an outlook."""
    progress = LineProgress(stream, every=0.0)
    progress.start(label="Env", total_steps=10**18, total_episodes=None)
    progress.begin()
    clock.now += 1.0
    progress.update(episodes=1, steps=10, return_sum=0.0)
    assert stream.getvalue().endswith("ETA 11574 days, 1:46:40\n")


def test_rejected_episodes(stream: io.StringIO, clock: Clock) -> None:
    """They are neither steps nor episodes, and it is said how many were run."""
    progress = LineProgress(stream, every=0.0)
    progress.start(label="Env", total_steps=None, total_episodes=4)
    progress.begin()
    clock.now += 10.0
    progress.ran(40)
    progress.update(episodes=1, steps=10, return_sum=0.0)
    text = "Env: 10 steps, 1/4 episodes of 40 run (2.5 %), 1 steps/s, mean return 0, ETA 0:00:30\n"
    assert text == stream.getvalue()


def test_the_end_that_comes_first_gives_the_outlook(stream: io.StringIO, clock: Clock) -> None:
    """Of steps, episodes and time, that one which is reached first at this pace."""
    progress = LineProgress(stream, every=0.0)
    progress.start(label="Env", total_steps=100, total_episodes=10, total_seconds=9.0)
    progress.begin(episodes=6, steps=10)
    for steps in (10, 60):
        clock.now += 2.0
        progress.update(episodes=1, steps=steps, return_sum=0.0)
    clock.now += 5.0
    progress.finish()
    assert [
        "Env: 20/100 steps, 7/10 episodes, 5 steps/s, mean return 0, ETA 0:00:06",
        "Env: 80/100 steps, 8/10 episodes, 18 steps/s, mean return 0, ETA 0:00:01",
        "Env: 80/100 steps, 8/10 episodes, 8 steps/s, mean return 0, in 0:00:09",
    ] == stream.getvalue().splitlines()


def test_a_run_that_ends_while_starting_shows_no_counts(stream: io.StringIO, clock: Clock) -> None:
    """Its error is all there is to say."""
    progress = LineProgress(stream)
    progress.start(label="Env", total_steps=1, total_episodes=None)
    progress.warn("odd\n  File 'x'\n\x1b")
    progress.update(failures=1)
    progress.finish()
    assert "warning: odd\n  File 'x'\n\\x1b\n" == stream.getvalue()


def test_the_bar(terminal: Terminal, clock: Clock) -> None:
    """`starting workers` until they are ready; then counts, pace and outlook; messages above; no markup, no escapes."""
    progress = BarProgress(terminal)
    progress.start(label="[bold]Env\x07:smile:", total_steps=100, total_episodes=None)
    assert "starting workers" in terminal.getvalue()
    clock.now += 60.0
    progress.begin()
    assert "steps" not in terminal.getvalue()
    clock.now += 1.0
    progress.update(episodes=1, steps=50, return_sum=7.0)
    progress.warn("[red]odd[/red]")
    progress.notice("known")
    clock.now += 1.0
    progress.update(episodes=1, steps=50, return_sum=8.0, failures=3)
    progress.finish()
    progress.finish()
    shown = terminal.getvalue()
    for part in (
        "[bold]Env\\x07:smile:",
        "50/100 steps, 1 episodes, 50 steps/s, mean return 7",
        " ETA 0:00:01",
        "warning: [red]odd[/red]",
        "notice: known",
        "100/100 steps, 2 episodes, 50 steps/s, mean return 7.5, 3 failures",
        " in 0:00:02",
    ):
        assert part in shown
    assert "\x07" not in shown


@pytest.mark.parametrize(
    ("width", "text"),
    [
        (40, "20,000/1,000,000 steps, ETA 0:00:49"),
        (60, "20,000/1,000,000 steps, 20,000 steps/s, ETA 0:00:49"),
        (80, "20,000/1,000,000 steps, 20,000 steps/s, ETA 0:00:49"),
        (110, "Long-v0: 20,000/1,000,000 steps, 900 episodes, 20,000 steps/s, ETA 0:00:49"),
        (
            130,
            "Long-v0: 20,000/1,000,000 steps, 900 episodes, 20,000 steps/s, mean return 22.22, ETA 0:00:49",
        ),
    ],
)
def test_the_bar_fits_on_one_line(
    terminal: Terminal, clock: Clock, monkeypatch: pytest.MonkeyPatch, width: int, text: str
) -> None:
    """The narrower the terminal, the less stands beside steps and ETA; three columns stay free for `^C`."""
    monkeypatch.setenv("COLUMNS", str(width))
    progress = BarProgress(terminal)
    progress.start(label="Long-v0", total_steps=1_000_000, total_episodes=None)
    progress.begin()
    clock.now += 1.0
    progress.update(episodes=900, steps=20_000, return_sum=20_000.0)
    line = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue()).replace("\r", "\n").splitlines()[-1]
    assert line.rstrip().endswith(text)
    assert len(line.rstrip()) <= width - 3
    assert (width >= 80) == ("━" in line)
    progress.finish()


def test_a_bar_without_utf8(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spinner and bar are ASCII on a terminal that has no other characters."""
    terminal = Terminal()
    monkeypatch.setattr(Terminal, "encoding", "ascii", raising=False)
    progress = BarProgress(terminal)
    progress.start(label="Env", total_steps=100, total_episodes=None)
    progress.begin()
    clock.now += 1.0
    progress.update(episodes=1, steps=50)
    progress.finish()
    assert "50/100" in terminal.getvalue()
    assert terminal.getvalue().isascii()


@pytest.mark.parametrize("steps", [50, 100])
def test_a_bar_that_is_cut_short_is_erased(terminal: Terminal, clock: Clock, steps: int) -> None:
    """Above an error it would look as if the run went on; one at its end stays."""
    progress = BarProgress(terminal)
    progress.start(label="Env", total_steps=100, total_episodes=None)
    progress.begin()
    clock.now += 1.0
    progress.update(episodes=1, steps=steps, return_sum=7.0)
    progress.finish()
    after = terminal.getvalue().rpartition("1 episodes")[2]
    assert (steps < 100) == ("\x1b[2K" in after)


def test_the_bar_is_redrawn_ten_times_a_second_at_most(terminal: Terminal, clock: Clock) -> None:
    """A thousand updates in a moment draw nothing; the next one after a tenth of a second does."""
    threads = threading.active_count()
    progress = BarProgress(terminal)
    progress.start(label="e", total_steps=None, total_episodes=None)
    progress.begin()
    # Workers may be forked meanwhile, which no thread would survive.
    assert threads == threading.active_count()
    before = terminal.getvalue()
    for _ in range(1000):
        progress.update(episodes=1, steps=1, return_sum=0.0)
    assert before == terminal.getvalue()
    clock.now += 0.2
    progress.update(episodes=1, steps=1, return_sum=0.0)
    assert "1,001 steps" in terminal.getvalue()
    progress.finish()


def test_no_color(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """NO_COLOR leaves no colour in warnings."""
    BarProgress(terminal).warn("odd")
    assert "\x1b[33m" in terminal.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    plain = Terminal()
    BarProgress(plain).warn("odd")
    assert "warning: odd\n" == plain.getvalue()


@pytest.mark.parametrize(
    ("stream", "wanted", "quiet", "term", "shown"),
    [
        (Terminal(), None, False, "xterm", "bar"),
        (Terminal(), True, False, "xterm", "bar"),
        (Terminal(), None, False, "dumb", "notice line"),
        (io.StringIO(), None, False, "xterm", "notice line"),
        (io.StringIO(), True, False, "xterm", "notice line"),
        (Terminal(), False, False, "xterm", "notice"),
        (Terminal(), True, True, "xterm", ""),
    ],
)
def test_the_choice(
    stream: io.StringIO,
    wanted: bool | None,
    quiet: bool,
    *,
    term: str,
    shown: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A bar on a terminal, lines elsewhere, messages where progress is not wanted; --quiet leaves warnings."""
    monkeypatch.setenv("TERM", term)
    progress = choose_progress(stream, wanted=wanted, quiet=quiet)
    assert (shown == "bar") == isinstance(progress, BarProgress)
    if shown != "bar":
        progress.start(label="e", total_steps=1, total_episodes=None)
        progress.notice("a")
        progress.warn("b")
        progress.begin()
        progress.update(episodes=1, steps=1, return_sum=0.0)
        progress.finish()
        lines = stream.getvalue().splitlines()
        assert ["notice: a"] * ("notice" in shown) + ["warning: b"] == lines[: len(lines) - ("line" in shown)]
        assert ("line" in shown) == lines[-1].startswith("e: 1/1 steps")


def test_rich_is_loaded_only_for_a_bar() -> None:
    """A run with plain lines does not load rich, and one with a bar only when there is something to draw."""
    code = (
        "import sys, rollout_cli.progress as p; p.LineProgress(sys.stderr); p.BarProgress(sys.stderr); "
        "print('rich' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "False\n" == ran.stdout
