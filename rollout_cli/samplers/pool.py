"""Pool: the interface to a sampler's workers; SegmentRunner: calls functions close to the workers' episodes.

A pool starts workers, transports messages and detects deaths; the sampler makes the decisions. The legal
sequence for each worker is `start`, then any number of `send`, until its `Died` event; then `start` again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from rollout_cli.samplers.messages import ToSampler, ToWorker

Result = TypeVar("Result")

WAIT_SECONDS = 0.1
"""Maximum wait for workers' messages, in seconds; then the sampler checks for stops and stuck workers."""


@dataclass(frozen=True, slots=True)
class Died:
    """A worker ended unexpectedly; the pool has already returned all its messages."""

    worker: int
    reason: str  # How it ended: one line that continues "worker 3 …", such as "was killed by SIGKILL".
    numbers: tuple[int, ...] | None = ()  # The episodes that ran in its last turn; None if unknown.
    details: str = ""  # The traceback in its crash box.
    hint: str = ""  # Advice to the user.
    late: tuple[int, ...] = ()  # The episodes that exceeded the time limit, if it was killed for that.


@dataclass(frozen=True, slots=True)
class Warn:
    """A one-line warning to the user about the pool or about a fault that does not end the call."""

    text: str


Event = ToSampler | Died | Warn


class Pool(Protocol):
    """The workers of one sampler."""

    def start(self, worker: int) -> None:
        """Start a worker that is not running: a new worker, or one with a reported death.

        Raises:
            WorkerError: If the worker cannot be started.
        """

    def send(self, worker: int, command: ToWorker) -> None:
        """Send a command without blocking. A command to a dead worker is dropped; `wait` returns its `Died`."""

    def wait(self) -> list[Event]:
        """Wait for events, at most `WAIT_SECONDS`; return them in order."""

    def close(self) -> None:
        """Ask all workers to exit, then kill the rest; the pool must not be used afterwards."""


class SegmentRunner:
    """Calls functions for the driver: in this process, unless a subclass uses one closer to the episodes.

    With such a subclass the episodes of a segment do not pass through the driver.
    """

    def run(
        self,
        function: Callable[..., Result],
        *args: Any,
        needs_folder: bool = True,  # noqa: ARG002
    ) -> Result:
        """Call the function; return its result or raise its error.

        Args:
            function: The function; it may run again if its process dies.
            args: The function's arguments.
            needs_folder: Whether the function reads or writes a folder of this machine.
        """
        return function(*args)
