"""Signals that ask a run to end: the first one politely, the second one at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from rollout_cli.errors import InterruptedRunError, RolloutError, TerminatedRunError
from rollout_cli.samplers.worker_loop import WorkerLoop


class StopSignals:
    """Which signal asked the run to end, if any did.

    Attributes:
        stop: Called at the first signal, in its handler: it may only set flags, wake somebody and report.
            Until it is set there is nothing to save, and the first signal raises.
        received: The first signal.
        is_over: All is done but tidying up, which must not be stopped half-way: signals are ignored.
    """

    def __init__(self) -> None:
        self.stop: Callable[[str], None] | None = None
        self.received: signal.Signals | None = None
        self.is_over = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Ask the run to end; raise a `RolloutError` at the second signal, or at once if nothing runs yet."""
        if self.is_over:
            # Its `except Exception` has caught the error: an environment that tries again would never end.
            if self.received is not None and _runs_episodes(frame):
                signal.signal(signal.SIGINT, signal.default_int_handler)  # See `is_interrupt`.
                raise KeyboardInterrupt
            return
        again = self.received is not None
        self.received = self.received or signal.Signals(number)
        if self.stop is not None and not again:
            self.stop(self.name)
            return
        self.is_over = True
        how = f"at once by a second signal ({signal.Signals(number).name})" if again else f"by {self.name}"
        raise self.error(f"the run was ended {how}{'' if again else ' before anything was collected'}")

    @property
    def name(self) -> str:
        return self.received.name if self.received is not None else "no signal"

    def error(self, message: str) -> RolloutError:
        """Return the error that the run ends with."""
        return InterruptedRunError(message) if self.received is signal.SIGINT else TerminatedRunError(message)


def _runs_episodes(frame: FrameType | None) -> bool:
    """Return whether a signal interrupts a worker of this process."""
    while frame is not None and frame.f_code is not WorkerLoop.turn.__code__:
        frame = frame.f_back
    return frame is not None


@contextmanager
def stop_on_signals() -> Iterator[StopSignals]:
    """Handle SIGINT, SIGTERM and SIGHUP inside the block; the former handlers come back after it.

    A SIGHUP that is ignored, as nohup(1) has it, stays ignored. Outside the main thread, which alone may have
    handlers, nothing is changed.
    """
    signals = StopSignals()
    numbers = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    if threading.current_thread() is not threading.main_thread():
        numbers = []
    before = {number: signal.signal(number, signals.handle) for number in numbers}
    try:
        yield signals
    except KeyboardInterrupt as error:
        if signals.received is None:
            raise
        raise signals.error("the run was ended at once by a further signal") from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
