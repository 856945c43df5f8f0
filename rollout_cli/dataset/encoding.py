"""Encoders: they carry out the writer's work in order, at once or in a thread of their own.

Encoding a row group takes some ten milliseconds, most of them inside Arrow, which lets other threads run. In a thread
the process goes on receiving episodes meanwhile.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Protocol

Work = Callable[[], None]

MAX_WAITING = 2
"""Pieces of work that may wait: a writer that is ahead by more blocks, so that memory stays flat."""


class Encoder(Protocol):
    """Carries out pieces of work, one after another, in the order in which they were given.

    Where one fails, none after it is begun, and every later verb but `stop` raises its error.
    """

    def submit(self, work: Work) -> None:
        """Give the next piece of work; blocks while too many wait."""

    def check(self) -> None:
        """Raise the error of work that failed, if any did."""

    @property
    def has_failed(self) -> bool:
        """Return whether work has failed, told or not."""

    def finish(self) -> None:
        """Return when all work is done."""

    def stop(self) -> BaseException | None:
        """Begin nothing more, wait for what runs, and return the error that was not raised yet, if there is one."""


class InlineEncoder:
    """Does the work at once, in the caller."""

    def __init__(self) -> None:
        self._error: BaseException | None = None

    def submit(self, work: Work) -> None:
        """Do the work."""
        self.check()
        try:
            work()
        except BaseException as error:
            self._error = error
            raise

    def check(self) -> None:
        """Raise the error of work that failed, if any did."""
        if self._error is not None:
            raise self._error

    @property
    def has_failed(self) -> bool:
        """Return whether work has failed."""
        return self._error is not None

    def finish(self) -> None:
        """Raise the error of work that failed, if any did."""
        self.check()

    def stop(self) -> BaseException | None:
        """Return None: an error was raised where it happened."""
        return None


class EncodingThread:
    """Does the work in one thread, which begins with the first piece and ends with `finish` or `stop`."""

    def __init__(self, *, max_waiting: int = MAX_WAITING) -> None:
        self._waiting: queue.Queue[Work | None] = queue.Queue(max_waiting)
        self._thread: threading.Thread | None = None
        self._drops = False
        self._error: BaseException | None = None
        self._was_raised = False

    def submit(self, work: Work) -> None:
        """Give the next piece of work; blocks while too many wait."""
        self.check()
        if self._thread is None:
            # A daemon: a writer that nobody closes must not keep the interpreter from ending.
            self._thread = threading.Thread(target=self._run, name="rollout-encoding", daemon=True)
            self._thread.start()
        self._waiting.put(work)

    def check(self) -> None:
        """Raise the error of work that failed, if any did."""
        if self._error is not None:
            self._was_raised = True
            raise self._error

    @property
    def has_failed(self) -> bool:
        """Return whether work has failed, told or not."""
        return self._error is not None

    def finish(self) -> None:
        """Return when all work is done; the thread has ended then."""
        self._join()
        self.check()

    def stop(self) -> BaseException | None:
        """Begin nothing more and return when the thread has ended; return the error that was not raised yet."""
        self._drops = True
        self._join()
        return None if self._was_raised else self._error

    def _join(self) -> None:
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (work := self._waiting.get()) is not None:
            if not self._drops:
                self._do(work)

    def _do(self, work: Work) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  Whatever it is, the caller must hear of it.
            self._error = error
            self._drops = True
