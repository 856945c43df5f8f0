"""Links: how a worker's shell reaches its sampler, over a pipe or over two queues."""

from __future__ import annotations

import queue
from typing import Any, Protocol

from rollout_cli.buffer_pool import Lender
from rollout_cli.samplers.channel import PipeChannel

RETRY_SECONDS = 0.01
"""How long a worker with kept messages waits for a command before it tries again, where a queue cannot tell."""


class Link(Protocol):
    """What a worker's shell needs of its connection.

    Attributes:
        lend: Lends memory from which large parts of messages are sent without a copy; None where there is none.
    """

    lend: Lender | None

    def poll(self) -> Any | None:
        """Return the next command, or None if there is none; never waits."""

    def wait(self, *, keeping: bool) -> Any | None:
        """Wait for a command and return it; with `keeping`, return None as soon as sending is worth another try."""

    def put_nowait(self, message: Any) -> None:
        """Send a message; raises `queue.Full` where it cannot be taken without waiting."""

    def close(self) -> None:
        """Send what was taken, then close."""


class PipeLink:
    """One two-way channel."""

    def __init__(self, channel: PipeChannel) -> None:
        self._channel = channel
        self.lend: Lender | None = channel.lend

    def poll(self) -> Any | None:
        """Return the next command, or None if there is none."""
        if self._channel.has_unsent:
            self._channel.flush_nowait()
        if not self._channel.readable():
            return None
        try:
            return self._channel.get_nowait()
        except queue.Empty:
            return None

    def wait(self, *, keeping: bool) -> Any | None:
        """Wait for a command, or, with `keeping`, until the channel takes messages again."""
        while True:
            command = self.poll()
            if command is not None or (keeping and not self._channel.is_full):
                return command
            self._channel.wait()

    def put_nowait(self, message: Any) -> None:
        """Send a message or raise `queue.Full`."""
        self._channel.put_nowait(message)

    def close(self) -> None:
        """Close the channel; the sampler asked for the end and wants nothing more."""
        self._channel.close()


class QueueLink:
    """Two queues with the verbs of `multiprocessing.Queue`."""

    def __init__(self, inbox: Any, outbox: Any) -> None:
        self._inbox, self._outbox = inbox, outbox
        self.lend: Lender | None = None

    def poll(self) -> Any | None:
        """Return the next command, or None if there is none."""
        try:
            return self._inbox.get_nowait()
        except queue.Empty:
            return None

    def wait(self, *, keeping: bool) -> Any | None:
        """Wait for a command; with `keeping`, for a moment only, since a queue cannot tell when it has room."""
        try:
            return self._inbox.get(timeout=RETRY_SECONDS) if keeping else self._inbox.get()
        except queue.Empty:
            return None

    def put_nowait(self, message: Any) -> None:
        """Send a message or raise `queue.Full`."""
        self._outbox.put_nowait(message)

    def close(self) -> None:
        """Close both queues."""
        self._inbox.close()
        self._outbox.close()


def link(to_worker: Any, to_sampler: Any) -> Link:
    """Return the link over a PipeChannel (given twice), or over two queues."""
    return PipeLink(to_worker) if isinstance(to_worker, PipeChannel) else QueueLink(to_worker, to_sampler)
