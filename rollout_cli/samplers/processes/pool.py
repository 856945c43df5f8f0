"""MultiprocessingSampler and its ProcessPool: worker processes, their messages and their deaths."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import queue
import select
import selectors
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import cloudpickle

from rollout_cli.errors import ArgumentError, WorkerError
from rollout_cli.memory import ReusedMemory
from rollout_cli.samplers.messages import Exit, Started, ToSampler, ToWorker
from rollout_cli.samplers.pool import WAIT_SECONDS, Died, Event, Pool
from rollout_cli.samplers.processes.channel import Channel
from rollout_cli.samplers.processes.crash_box import how_it_ended, new_box, read_notes, read_story
from rollout_cli.samplers.processes.fork_server import (
    NO_ROOM,
    RECORD,
    ForkServer,
    StartMethod,
    Status,
    kill_group,
    running_server,
)
from rollout_cli.samplers.sampler import Sampler
from rollout_cli.samplers.supervision import Supervision, Watch
from rollout_cli.samplers.worker_setup import WorkerSetup
from rollout_cli.sources.loading import first_line
from rollout_cli.sources.untrusted import one_line
from rollout_cli.workers.factory import WorkerFactory

EXIT_SECONDS = 2.0
"""Seconds that workers have to close their environments before they are killed."""

_MESSAGES_A_TURN = 32
_clock = time.monotonic
_ids = itertools.count()


@dataclass(slots=True, eq=False)
class _Process:
    """The sampler's side of one worker's process."""

    worker: int
    name: int  # Its id for the fork server.
    server: ForkServer
    channel: Channel
    box: io.FileIO  # The file of its crash box.
    status: io.FileIO  # The pipe on which the server reports its start and end.
    watch: Watch
    pid: int | None = None
    end: tuple[Status, int] | None = None  # The server's last report; None while it runs.
    killed: str = ""  # Why the sampler killed it.
    late: tuple[int, ...] = ()  # The episodes that took too long, if it was killed for that.
    is_silent: bool = False  # Whether its channel is closed, or has sent invalid data.

    def read_status(self) -> None:
        """Read one report of the server, waiting for it if needed."""
        data = os.read(self.status.fileno(), RECORD.size)
        if not data:
            self.server.abandon()  # The socket closes later than the pipe: `is_usable` would still be true.
            self.end = Status.LOST, 0
            return
        kind, value = RECORD.unpack(data)
        if kind == Status.FORKED:
            self.pid = value
            self.server.has_forked = True
        else:
            self.end = Status(kind), value

    def kill(self, reason: str = "") -> None:
        """Kill the worker and its environment's processes."""
        self.killed = self.killed or reason
        self.server.kill(self.name)
        if not self.server.is_usable and self.pid is not None:
            kill_group(self.pid)

    def release(self) -> None:
        """Close its channel, box and pipe; kill it if its server has ended and cannot kill it."""
        if self.end and self.end[0] == Status.LOST:
            self.kill()
        for part in (self.channel, self.box, self.status):
            part.close()


class ProcessPool:
    """Worker processes with these titles; the rules set the time limits of steps and episodes."""

    def __init__(
        self, factory: WorkerFactory, titles: Sequence[str], start_method: StartMethod, rules: Supervision
    ) -> None:
        self._factory: bytes = cloudpickle.dumps(factory)
        self._titles = titles
        self._rules = rules
        self._start_method: StartMethod = start_method
        self._processes: dict[int, _Process] = {}
        self._memory = ReusedMemory()
        try:
            self._selector = selectors.DefaultSelector()
        except OSError as error:
            raise WorkerError(f"cannot start workers: {error}", code="worker-start", hint=NO_ROOM) from error

    def start(self, worker: int) -> None:
        """Start a worker without waiting for its process. If the fork fails, `wait` returns a `Died` event."""
        process = self._processes[worker] = self._forked(worker)
        self._selector.register(process.channel, selectors.EVENT_READ, process)
        self._selector.register(process.status, selectors.EVENT_READ, process)
        self._send(process, WorkerSetup.of(worker, self._titles[worker], self._factory))

    def send(self, worker: int, command: ToWorker) -> None:
        process = self._processes.get(worker)
        if process is not None:
            self._send(process, command)

    def wait(self) -> list[Event]:
        events: list[Event] = []
        ended = []
        for key, ready in self._selector.select(WAIT_SECONDS):
            process: _Process = key.data
            if key.fileobj is process.status:
                process.read_status()
                if process.end:
                    ended.append(process)
            else:
                self._send(process)
                if ready & selectors.EVENT_READ:
                    events += self._messages(process, _MESSAGES_A_TURN)
        for process in ended:
            events += [*self._messages(process), self._reap(process)]
        if self._rules.has_time_out:
            self._kill_overdue()
        return events

    def close(self) -> None:
        for process in self._processes.values():
            self._send(process, Exit())
        self._await_ends(EXIT_SECONDS)
        for process in self._processes.values():
            if process.pid is None and not process.end:  # On a slow disk the server's imports take minutes.
                process.server.abandon()
        for process in self._processes.values():
            process.kill()
        self._await_ends(None)
        for process in self._processes.values():
            process.release()
        self._processes.clear()
        self._selector.close()

    # -- starting ----------------------------------------------------------------------------------

    def _forked(self, worker: int) -> _Process:
        server = running_server(self._start_method)
        with contextlib.ExitStack() as undo:
            try:
                ours, theirs = socket.socketpair()
                channel = undo.enter_context(contextlib.closing(Channel(ours, self._memory)))
                with theirs:
                    box = undo.enter_context(new_box())
                    read_end, write_end = os.pipe()
                    status = undo.enter_context(io.FileIO(read_end))
                    with io.FileIO(write_end, "w"):
                        name = next(_ids)
                        server.fork(name, theirs.fileno(), box.fileno(), write_end)
            except OSError as error:
                raise WorkerError(
                    f"cannot start worker {worker}: {error}", code="worker-start", hint=NO_ROOM
                ) from error
            undo.pop_all()
        return _Process(worker, name, server, channel, box, status, Watch(self._rules))

    # -- messages ----------------------------------------------------------------------------------

    def _send(self, process: _Process, *messages: Any) -> None:
        """Queue the messages, and send as many of the queued bytes as the socket accepts now."""
        if process.is_silent:
            return
        with contextlib.suppress(ConnectionError):
            for message in messages:
                process.channel.put_nowait(message)
            process.channel.flush_nowait()
        # `wait` returns when the socket accepts more of the unsent bytes.
        events = selectors.EVENT_READ
        if process.channel.unsent_bytes:
            events |= selectors.EVENT_WRITE
        key = self._selector.get_map().get(process.channel)  # None if a signal interrupted `start`.
        if key is not None and events != key.events:
            self._selector.modify(process.channel, events, process)

    def _messages(self, process: _Process, limit: int = sys.maxsize) -> Iterator[ToSampler]:
        """Yield at most `limit` messages that a worker has sent."""
        for _ in range(limit):
            if process.is_silent:
                return
            try:
                message = _checked(process.channel.get_nowait(), process.worker)
            except queue.Empty:
                return
            except MemoryError:
                raise
            # Invalid bytes may raise any exception when unpickled; the worker is at fault.
            except Exception as error:  # noqa: BLE001
                self._silence(process)
                if not isinstance(error, EOFError):
                    process.kill(f"sent an invalid message ({first_line(error)})")
                return
            if isinstance(message, Started):  # An episode that ran before restarts, and so does its timer.
                process.watch = Watch(self._rules)
            yield message

    def _silence(self, process: _Process) -> None:
        if not process.is_silent:
            process.is_silent = True
            self._selector.unregister(process.channel)

    # -- deaths ------------------------------------------------------------------------------------

    def _kill_overdue(self) -> None:
        for process in self._processes.values():
            if not process.killed:
                overdue = process.watch.look(read_notes(process.box), _clock())
                if overdue is not None:
                    reason, process.late = overdue
                    process.kill(reason)

    def _reap(self, process: _Process) -> Died:
        """Remove a worker that has ended; return its death."""
        del self._processes[process.worker]
        self._silence(process)
        self._selector.unregister(process.status)
        death = _death(process)
        process.release()
        return death

    def _await_ends(self, seconds: float | None) -> None:
        """Wait until all processes have ended or `seconds` have passed."""
        ends_at = None if seconds is None else _clock() + seconds
        for process in self._processes.values():
            poll = select.poll()
            poll.register(process.status, select.POLLIN)
            while not process.end and poll.poll(
                None if ends_at is None else max(0.0, ends_at - _clock()) * 1000
            ):
                process.read_status()


def _death(process: _Process) -> Died:
    kind, value = process.end or (Status.LOST, 0)
    if kind == Status.FAILED:
        return Died(process.worker, f"cannot be started ({os.strerror(value)})", hint=NO_ROOM)
    if kind == Status.LOST and not process.killed:
        return Died(process.worker, "was killed, because its fork server had ended,")
    notes = read_notes(process.box)
    story = read_story(process.box)
    reason, hint = how_it_ended(value, story)
    if process.killed:
        reason = process.killed
        hint = ""
    return Died(process.worker, reason, notes.numbers if notes.busy else (), story, hint, process.late)


def _checked(message: object, worker: int) -> ToSampler:
    if not isinstance(message, ToSampler) or message.worker != worker:
        raise TypeError(f"worker {worker} sent an unexpected {type(message).__name__}")
    return message


class MultiprocessingSampler(Sampler):
    """Samples with worker processes that wait as little as possible.

    The sampler leases episode numbers to workers in advance, yields finished episodes in the order of their
    numbers, and waits for messages and deaths at the same time. A worker never blocks on sending.

    Args:
        args: As in `Sampler`.
        start_method: `forkserver` or `spawn`.
        kwargs: As in `Sampler`.

    Raises:
        ArgumentError: If `start_method` is unknown (also a ValueError).

    Example:
        >>> import gymnasium
        >>> env = gymnasium.make("CartPole-v1")
        >>> with rollout_cli.MultiprocessingSampler("random", env, n_workers=2, seed=0) as sampler:
        ...     batch = sampler.obtain_exact_episodes(1, agent_update=None)
        >>> batch.numbers.tolist(), batch.lengths.tolist()
        ([0, 1], [37, 18])
    """

    def __init__(self, *args: Any, start_method: StartMethod = "forkserver", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if start_method not in get_args(StartMethod):
            raise ArgumentError(
                f"start_method={start_method!r}; expected 'forkserver' or 'spawn'", code="start-method"
            )
        self._start_method: StartMethod = start_method

    def _make_pool(self) -> Pool:
        titles = [f"worker:{number} {one_line(label)}" for number, label in enumerate(self._updates.labels)]
        return ProcessPool(self._factory, titles, self._start_method, self._supervision)
