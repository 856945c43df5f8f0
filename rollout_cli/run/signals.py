"""Signals that ask a run to end: the first one politely, the second one at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from rollout_cli.errors import InterruptedRunError, RolloutError, TerminatedRunError


class StopSignals:
    """Which signal asked the run to end, if any did.

    Attributes:
        stop: Called at the first signal, in its handler: it may only set flags, wake somebody and report. Until it is
            set there is nothing to save, and the first signal raises.
        received: The first signal.
    """

    def __init__(self) -> None:
        self.stop: Callable[[str], None] | None = None
        self.received: signal.Signals | None = None
        self._ended = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Ask the run to end; at the second signal, end it.

        Raises:
            RolloutError: At the second signal, or at the first where nothing runs yet.
        """
        del frame
        if self._ended:
            return  # The run is ending: whoever tidies up must not be stopped half-way.
        if self.received is not None:
            self._ended = True
            raise self.error(f"the run was ended at once by a second signal ({signal.Signals(number).name})")
        self.received = signal.Signals(number)
        if self.stop is None:
            self._ended = True
            raise self.error(f"the run was ended by {self.name} before anything was collected")
        self.stop(self.name)

    def end_quietly(self) -> None:
        """Ignore signals from now on: all is done but tidying up."""
        self._ended = True

    @property
    def name(self) -> str:
        """The name of the signal that was received."""
        return self.received.name if self.received is not None else "no signal"

    def error(self, message: str) -> RolloutError:
        """Return the error that the run ends with."""
        return InterruptedRunError(message) if self.received is signal.SIGINT else TerminatedRunError(message)


def _handled() -> list[signal.Signals]:
    hang_up = [signal.SIGHUP] if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN else []
    return [signal.SIGINT, signal.SIGTERM, *hang_up]


@contextmanager
def stop_on_signals() -> Iterator[StopSignals]:
    """Handle SIGINT, SIGTERM and SIGHUP inside the block; the former handlers come back after it.

    A SIGHUP that is ignored, as nohup(1) has it, stays ignored. Outside the main thread, which alone may have handlers,
    nothing is changed.
    """
    signals = StopSignals()
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    before = {number: signal.signal(number, signals.handle) for number in _handled()}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
