"""Progress: what is written, when, and where a bar is drawn."""

from __future__ import annotations

import io
import subprocess
import sys
import threading

import pytest

from rollout_cli.progress import (
    LineProgress,
    MessageProgress,
    NullProgress,
    Progress,
    RichProgress,
    choose_progress,
    printable,
)


class Clock:
    """Seconds that pass when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class ClosedPipe(io.StringIO):
    """A pipe whose reader has gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    return Terminal()


def test_a_line_every_few_seconds(clock: Clock) -> None:
    """Updates are summed; a line comes only when the last one is long enough ago."""
    stream = io.StringIO()
    progress = LineProgress(stream, clock=clock, every=3.0)
    progress.start(label="CartPole-v1", total_steps=1000, total_episodes=None)
    for _ in range(4):
        clock.now += 1.0
        progress.update(episodes=2, steps=50, return_sum=30.0)
    assert stream.getvalue().splitlines() == [
        "CartPole-v1: 150/1,000 steps, 6 episodes, 50 steps/s, mean return 15, ETA 0:00:17"
    ]


def test_the_last_line_tells_the_end_once(clock: Clock) -> None:
    """Finish writes where it ended, also where no line was due before, and nothing when called again."""
    stream = io.StringIO()
    progress = LineProgress(stream, clock=clock)
    progress.start(label="e", total_steps=None, total_episodes=2)
    clock.now += 2.0
    progress.update(episodes=2, steps=3000, return_sum=1.0, failures=1)
    progress.finish()
    progress.finish()
    assert stream.getvalue().splitlines() == [
        "e: 3,000 steps, 2/2 episodes, 1,500 steps/s, mean return 0.5, 1 failures, in 0:00:02"
    ]


def test_what_an_earlier_run_did_took_none_of_the_time(clock: Clock) -> None:
    """It counts as done and in the mean, but not in the pace, nor in how long the rest will take."""
    stream = io.StringIO()
    progress = LineProgress(stream, clock=clock, every=3)
    progress.start(label="Env-v0", total_steps=1000, total_episodes=None)
    progress.go_on_from(episodes=10, steps=500, return_sum=20.0)
    clock.now += 10
    progress.update(episodes=10, steps=100, return_sum=60.0)
    assert "Env-v0: 600/1,000 steps, 20 episodes, 10 steps/s, mean return 4, ETA 0:00:40\n" == stream.getvalue()


def test_nothing_collected_yet(clock: Clock) -> None:
    """Without an episode there is no mean, and without a share no end in sight."""
    stream = io.StringIO()
    progress = LineProgress(stream, clock=clock)
    progress.start(label="e", total_steps=10, total_episodes=None)
    progress.finish()
    assert stream.getvalue() == "e: 0/10 steps, 0 episodes, 0 steps/s\n"


def test_finish_without_start_is_silent() -> None:
    """A run that failed before it began leaves no line."""
    stream = io.StringIO()
    LineProgress(stream).finish()
    assert stream.getvalue() == ""


def test_messages() -> None:
    """Notices can be turned off, warnings cannot; nothing in them can drive a terminal."""
    loud, quiet = io.StringIO(), io.StringIO()
    for progress in (MessageProgress(loud), MessageProgress(quiet, notices=False)):
        progress.start(label="e", total_steps=1, total_episodes=None)
        progress.notice("no limit in \x1b[31mred")
        progress.update(episodes=1, steps=1, return_sum=0.0)
        progress.warn("left out\n2 infos")
        progress.finish()
    assert loud.getvalue() == "notice: no limit in \\x1b[31mred\nwarning: left out\\n2 infos\n"
    assert quiet.getvalue() == "warning: left out\\n2 infos\n"


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("is_terminal", [True, False])
@pytest.mark.parametrize("quiet", [True, False])
def test_a_reader_that_has_gone_ends_no_run(*, wanted: bool, quiet: bool, is_terminal: bool) -> None:
    """What cannot be written is lost, without an error."""
    stream = ClosedPipe()
    stream.isatty = lambda: is_terminal  # type: ignore[method-assign]
    progress = choose_progress(stream, wanted=wanted, quiet=quiet, environ={})
    progress.start(label="e", total_steps=1, total_episodes=None)
    progress.notice("zero")
    progress.warn("one")
    progress.update(episodes=1, steps=1, return_sum=0.0)
    progress.finish()


def test_the_bar(terminal: Terminal, clock: Clock) -> None:
    """A bar shows the facts; names are shown as they are, without markup and control characters."""
    progress = RichProgress(terminal, clock=clock)
    progress.start(label="[bold]Env\x07:smile:", total_steps=100, total_episodes=None)
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
        "50/100 steps  1 episodes  50 steps/s  mean return 7",
        " ETA 0:00:01",
        "warning: [red]odd[/red]",
        "notice: known",
        "100/100 steps  2 episodes  50 steps/s  mean return 7.5  3 failures",
        " in 0:00:02",
    ):
        assert part in shown
    assert "\x07" not in shown


def test_the_bar_is_redrawn_ten_times_a_second_at_most(terminal: Terminal, clock: Clock) -> None:
    """A thousand updates in a moment draw nothing; the next one after a tenth of a second does."""
    progress = RichProgress(terminal, clock=clock)
    progress.start(label="e", total_steps=None, total_episodes=None)
    before = terminal.getvalue()
    for _ in range(1000):
        progress.update(episodes=1, steps=1, return_sum=0.0)
    assert terminal.getvalue() == before
    clock.now += 0.2
    progress.update(episodes=1, steps=1, return_sum=0.0)
    assert "1,001 steps" in terminal.getvalue()
    progress.finish()


def test_the_bar_starts_no_thread(terminal: Terminal) -> None:
    """Worker processes may be forked while the bar is up, which no thread would survive."""
    before = threading.active_count()
    progress = RichProgress(terminal)
    progress.start(label="e", total_steps=1, total_episodes=None)
    assert threading.active_count() == before
    progress.finish()


def test_a_bar_that_never_started_can_finish(terminal: Terminal) -> None:
    """A run that failed before it began leaves nothing on the terminal."""
    progress = RichProgress(terminal)
    progress.finish()
    assert terminal.getvalue() == ""


def test_no_color(terminal: Terminal, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    """NO_COLOR leaves no colour in bar and warnings."""

    def colours(stream: Terminal) -> bool:
        progress = RichProgress(stream, clock=clock)
        progress.start(label="e", total_steps=2, total_episodes=None)
        progress.update(episodes=1, steps=1, return_sum=0.0)
        progress.warn("odd")
        progress.finish()
        return "\x1b[33m" in stream.getvalue() or "\x1b[38;5" in stream.getvalue()

    assert colours(terminal)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not colours(Terminal())


@pytest.mark.parametrize(
    ("stream", "wanted", "quiet", "term", "expected"),
    [
        (Terminal(), None, False, "xterm", RichProgress),
        (Terminal(), True, False, "xterm", RichProgress),
        (Terminal(), None, False, "dumb", LineProgress),
        (io.StringIO(), None, False, "xterm", LineProgress),
        (io.StringIO(), True, False, "xterm", LineProgress),
        (Terminal(), False, False, "xterm", MessageProgress),
        (Terminal(), True, True, "xterm", MessageProgress),
    ],
)
def test_the_choice(stream: io.StringIO, wanted: bool | None, quiet: bool, term: str, expected: type[object]) -> None:
    """A bar on a terminal, lines elsewhere, messages where progress is not wanted."""
    assert type(choose_progress(stream, wanted=wanted, quiet=quiet, environ={"TERM": term})) is expected


def test_quiet_keeps_warnings() -> None:
    """--quiet leaves warnings, and no notices."""
    stream = io.StringIO()
    progress = choose_progress(stream, wanted=None, quiet=True, environ={})
    progress.notice("a")
    progress.warn("b")
    assert stream.getvalue() == "warning: b\n"


def test_every_kind_keeps_the_protocol() -> None:
    """All of them can be handed to a run, and go through one."""
    kinds: list[Progress] = [
        NullProgress(),
        MessageProgress(io.StringIO()),
        LineProgress(io.StringIO()),
        RichProgress(io.StringIO()),
    ]
    for progress in kinds:
        progress.notice("before")
        progress.start(label="e", total_steps=None, total_episodes=3)
        progress.update(episodes=1, steps=1, return_sum=0.0)
        progress.warn("during")
        progress.finish()


def test_printable() -> None:
    """Control characters, line separators and direction marks become escapes; other text stays."""
    assert printable("é ok\t\x1b\u202e\u2028\n", keep="\n") == "é ok\\t\\x1b\\u202e\\u2028\n"


def test_rich_is_loaded_only_for_a_bar() -> None:
    """A run with plain lines does not load rich, and one with a bar only when there is something to draw."""
    code = (
        "import sys, rollout_cli.progress as p; p.LineProgress(sys.stderr); p.RichProgress(sys.stderr); "
        "print('rich' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"
