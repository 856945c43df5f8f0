"""Pool: the workers of one sampler, wherever they run; and SegmentRunner, which writes beside them.

A pool starts workers, carries messages, and notices deaths; the sampler decides. The legal sequence for each
worker is `start`, then any number of `send`, until its `Died` event; after that `start` again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from rollout_cli.samplers.messages import ToSampler, ToWorker

Result = TypeVar("Result")

WAIT_SECONDS = 0.1
"""After so long a pool that waits for workers looks at other things: whether to stop, and who is stuck."""


@dataclass(frozen=True, slots=True)
class Died:
    """A worker ended without being asked to; all its messages were given before."""

    worker: int
    reason: str  # How it ended, one line that continues "worker 3 …", such as "was killed by SIGKILL".
    numbers: tuple[int, ...] | None = ()  # Of the episodes that ran in its turn; None if unknown.
    details: str = ""  # The traceback that it left.
    hint: str = ""  # What to do about it.
    late: tuple[int, ...] = ()  # The episodes for whose time-out it was killed.


@dataclass(frozen=True, slots=True)
class Warn:
    """What the user should know, in one line, of the pool or of a fault that does not end the call."""

    text: str


Event = ToSampler | Died | Warn


class Pool(Protocol):
    """The workers of one sampler."""

    def start(self, worker: int) -> None:
        """Start a worker that does not run: a new one, or one whose death was reported.

        Raises:
            WorkerError: If it cannot be started.
        """

    def send(self, worker: int, command: ToWorker) -> None:
        """Send a command; never blocks. To a dead worker it is lost: the death is an event of its own."""

    def wait(self) -> list[Event]:
        """Wait until something happens, at most `WAIT_SECONDS`; return what has happened, in order."""

    def close(self) -> None:
        """End all workers, politely at first; nothing may be called after it."""


class SegmentRunner:
    """Calls functions for the driver, in the process that lies best: this one, unless a subclass has another.

    So the episodes of a segment need not cross the driver.
    """

    def run(
        self,
        function: Callable[..., Result],
        *args: Any,
        needs_folder: bool = True,  # noqa: ARG002
    ) -> Result:
        """Return what the function returns, or raise what it raises.

        Args:
            function: May run again where its process is lost.
            args: Its arguments.
            needs_folder: Whether it reads or writes a folder of this machine.
        """
        return function(*args)
