"""Signals that end a run: the first lets it commit finished episodes, the second ends it at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from rollout_cli.errors import InterruptedRunError, RolloutError, TerminatedRunError
from rollout_cli.samplers.worker_loop import WorkerLoop


class StopSignals:
    """The signal handler of a run, and the first signal that it received.

    Attributes:
        stop: Called by the handler at the first signal; it may only set flags, wake the sampler and report.
            While it is None, no episode can be lost, and the first signal raises.
        received: The first signal; None if there was none.
        is_over: Whether only cleanup is left, which must not be interrupted: signals are then ignored.
    """

    def __init__(self) -> None:
        self.stop: Callable[[str], None] | None = None
        self.received: signal.Signals | None = None
        self.is_over = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Stop the run; raise a `RolloutError` at the second signal, or at the first if nothing runs yet."""
        if self.is_over:
            # User code may have caught the error with `except Exception`, and would run forever.
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
        """Return the error that ends the run, of the class for the received signal."""
        return InterruptedRunError(message) if self.received is signal.SIGINT else TerminatedRunError(message)


def _runs_episodes(frame: FrameType | None) -> bool:
    """Return whether the signal interrupted a worker that runs in this process."""
    while frame is not None and frame.f_code is not WorkerLoop.turn.__code__:
        frame = frame.f_back
    return frame is not None


@contextmanager
def stop_on_signals() -> Iterator[StopSignals]:
    """Handle SIGINT, SIGTERM and SIGHUP inside the block, and restore the previous handlers after it.

    If SIGHUP is ignored, as under nohup(1), it stays ignored. In a thread other than the main thread, which
    cannot set handlers, signals are not handled.
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
        raise signals.error("the run was ended at once by another signal") from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
