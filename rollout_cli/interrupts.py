"""Signals that ask a run to end: the first one politely, the second one at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from rollout_cli.errors import InterruptedRunError, RolloutError, TerminatedRunError

_ENDINGS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Which signal asked the run to end, if any did.

    Args:
        stop: Called at the first signal, from the signal's handler: it may only set flags and wake somebody.
    """

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._ended = False
        self.received: signal.Signals | None = None

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Ask the run to end; at the second signal, end it."""
        del frame
        if self._ended:
            return  # It is on its way out: whoever tidies up must not be stopped half-way.
        if self.received is not None:
            self._ended = True
            raise self.error("the run was ended at once; what was committed stays")
        self.received = signal.Signals(number)
        self._stop()

    @property
    def name(self) -> str:
        """Return what the signal is called that was received."""
        return self.received.name if self.received is not None else "no signal"

    def error(self, message: str) -> RolloutError:
        """Return the error that the run ends with."""
        terminated = self.received is signal.SIGTERM
        return TerminatedRunError(message) if terminated else InterruptedRunError(message)


@contextmanager
def stop_on_signals(stop: Callable[[], None]) -> Iterator[StopSignals]:
    """Call `stop` at the first SIGINT or SIGTERM inside the block; the handlers before come back after it.

    Outside the main thread, which alone may have handlers, nothing is changed.
    """
    signals = StopSignals(stop)
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    before: dict[int, Any] = {number: signal.signal(number, signals.handle) for number in _ENDINGS}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
