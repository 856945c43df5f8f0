"""Signals that end a run: the first one asks, the second one raises."""

from __future__ import annotations

import contextlib
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from rollout_cli.errors import InterruptedRunError, RolloutError, TerminatedRunError
from rollout_cli.options.config import CollectConfig
from rollout_cli.run.collect import collect
from rollout_cli.run.signals import stop_on_signals
from tests.helpers.envs import FaultyEnv
from tests.helpers.errors import raises


class Stubborn(FaultyEnv):
    """Signals come while it resets, and it goes on whatever they raise."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        for _ in range(3):
            with contextlib.suppress(Exception):
                signal.raise_signal(signal.SIGINT)
        return super().reset(seed=seed, options=options)


@pytest.mark.parametrize(
    ("number", "kind", "code"),
    [
        (signal.SIGINT, InterruptedRunError, "interrupted"),
        (signal.SIGTERM, TerminatedRunError, "terminated"),
        (signal.SIGHUP, TerminatedRunError, "terminated"),
    ],
)
def test_the_first_asks_and_the_second_raises(
    number: signal.Signals, kind: type[RolloutError], code: str
) -> None:
    """The error is that of the first signal; a third one changes nothing."""
    names: list[str] = []
    with stop_on_signals() as signals:
        signals.stop = names.append
        signal.raise_signal(number)
        assert ([number.name], number) == (names, signals.received)
        with raises(kind, code):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(number)
    assert [number.name] == names


def test_an_environment_that_catches_the_second_does_not_catch_the_third(tmp_path: Path) -> None:
    """One that tries again for ever could not be ended otherwise; the handlers are the former ones after it."""
    options: dict[str, Any] = {"env": "tests.run.test_signals:Stubborn", "sampler": "local", "workers": 1}
    before = signal.getsignal(signal.SIGINT)
    with raises(InterruptedRunError, "interrupted"):
        collect(CollectConfig(timesteps=10, output=tmp_path / "out", **options))
    assert not (tmp_path / "out").exists()
    assert before == signal.getsignal(signal.SIGINT)


def test_a_signal_before_anything_runs_raises() -> None:
    """There is nothing to save."""
    with (
        stop_on_signals(),
        raises(TerminatedRunError, "terminated", "SIGTERM"),
    ):
        signal.raise_signal(signal.SIGTERM)


def test_signals_after_the_end_are_ignored() -> None:
    """Whoever tidies up is not stopped half-way."""
    with stop_on_signals() as signals:
        signals.is_over = True
        signal.raise_signal(signal.SIGINT)
        assert signals.received is None


def test_the_former_handlers_come_back() -> None:
    """A SIGHUP that is ignored, as nohup(1) has it, is ignored in the block too."""
    ours = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    before = [signal.getsignal(number) for number in ours]
    with stop_on_signals():
        assert all(handler != signal.getsignal(number) for number, handler in zip(ours, before, strict=True))
    assert before == [signal.getsignal(number) for number in ours]
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signals() as signals:
            signal.raise_signal(signal.SIGHUP)
            assert signals.received is None
    finally:
        signal.signal(signal.SIGHUP, former)


def test_other_threads_change_no_handler() -> None:
    """Only the main thread may have handlers."""
    before = signal.getsignal(signal.SIGINT)
    seen: list[object] = []

    def body() -> None:
        with stop_on_signals():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert [before] == seen
