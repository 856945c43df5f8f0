"""WorkerPool: the worker processes, their pipes and their deaths."""

from __future__ import annotations

import multiprocessing
import os
import selectors
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import Any

from rollout_cli.errors import UsageError
from rollout_cli.samplers.buffer_pool import BufferPool
from rollout_cli.samplers.channel import PipeChannel
from rollout_cli.samplers.messages import Exit
from rollout_cli.samplers.sampler_machine import Died
from rollout_cli.samplers.shared_ring import RingMemory, RingReader
from rollout_cli.samplers.starting import StartMethod, one_thread_each, start_fork_server
from rollout_cli.samplers.worker_process import worker_main

EXIT_SECONDS = 2.0
"""How long a worker may take to end when it is told to, before it is killed."""

_MESSAGES_A_TURN = 32


class WorkerPool:
    """Worker processes 0 to n - 1.

    Args:
        payloads: For each worker, the pickled (factory, agent, env) of `worker_main`.
        titles: For each worker, what its process is called.
        start_method: How processes are started.

    Raises:
        UsageError: If `fork` is asked for in a process that has threads.
    """

    def __init__(self, payloads: Sequence[bytes], titles: Sequence[str], start_method: StartMethod) -> None:
        if start_method == "fork" and threading.active_count() > 1:
            raise UsageError(
                "the start method fork cannot be used in a process that has threads: a lock that one of them holds "
                "would stay locked in the worker for ever",
                hint="use --start-method forkserver or spawn",
            )
        context = multiprocessing.get_context(start_method)
        self._selector = selectors.DefaultSelector()
        self._processes: list[BaseProcess] = []
        self._channels: list[PipeChannel] = []
        self._buffers = BufferPool()
        self._may_have_more: set[int] = set()
        self._writing: set[int] = set()  # Whose pipes are watched for room.
        self._woken, self._waker = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._waker, False)
        self._selector.register(self._woken, selectors.EVENT_READ, ("waker", -1))
        # Workers may have children of their own, so they cannot be daemons, which multiprocessing would end itself.
        self._finalizer = Finalize(
            self,
            _end_all,
            args=(self._processes, self._channels, self._selector, (self._woken, self._waker)),
            exitpriority=100,
        )
        if start_method == "forkserver":
            start_fork_server()
        with one_thread_each():
            for number, (payload, title) in enumerate(zip(payloads, titles, strict=True)):
                self._start(context, number, payload, title)

    def _start(self, context: BaseContext, number: int, payload: bytes, title: str) -> None:
        ours, theirs = context.Pipe(duplex=True)
        ring = RingMemory.create()
        channel = PipeChannel(ours, reader=RingReader(ring), buffers=self._buffers)
        self._channels.append(channel)
        args = (theirs, ring, payload, number, title)
        process = context.Process(target=worker_main, args=args, name=title)  # type: ignore[attr-defined]
        process.start()
        theirs.close()
        self._processes.append(process)
        self._selector.register(channel.fileno(), selectors.EVENT_READ, ("pipe", number))
        self._selector.register(process.sentinel, selectors.EVENT_READ, ("sentinel", number))

    @property
    def pids(self) -> list[int]:
        """Return the process ids."""
        return [process.pid for process in self._processes if process.pid is not None]

    def send(self, worker: int, message: Any) -> None:
        """Send a message to a worker; never waits. To a dead worker it is lost: its death is an event of its own."""
        if not self._finalizer.still_active():
            return  # The pool was shut down while a stream was under way, which is being closed now.
        channel = self._channels[worker]
        with suppress(BrokenPipeError):
            channel.put_behind(message)
        self._watch_writes(worker)

    def _watch_writes(self, worker: int) -> None:
        channel = self._channels[worker]
        if channel.has_unsent == (worker in self._writing):
            return
        self._writing.symmetric_difference_update([worker])
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if channel.has_unsent else 0)
        with suppress(KeyError):  # A pipe that came to its end is watched no more.
            self._selector.modify(channel.fileno(), events, ("pipe", worker))

    def wake(self) -> None:
        """Let `wait` return; may be called from a signal's handler."""
        with suppress(BlockingIOError):  # It is full of earlier calls: it will wake.
            os.write(self._waker, b"w")

    def wait(self, timeout: float | None = None) -> Iterator[Any]:
        """Wait until a worker sent something or died; give the messages, and `Died` after a dead worker's last one.

        Raises:
            UsageError: If the pool was shut down.
        """
        if not self._finalizer.still_active():
            raise UsageError("the workers were shut down while their stream was under way", hint="begin a new stream")
        more, self._may_have_more = self._may_have_more, set()
        dead = []
        for key, _ in self._selector.select(0 if more else timeout):
            match key.data:
                case ("pipe", worker):
                    more.add(worker)
                case ("sentinel", worker):
                    dead.append(worker)
                case _:
                    os.read(self._woken, 1 << 12)
        for worker in more:
            yield from self._receive(worker, _MESSAGES_A_TURN)
        for worker in dead:
            # Once more after all was read, for a reading that ended early says only that the pipe was empty then.
            yield from self._receive(worker, None)
            yield from self._receive(worker, None)
            yield self._bury(worker)

    def _receive(self, worker: int, limit: int | None) -> Iterator[Any]:
        channel = self._channels[worker]
        with suppress(BrokenPipeError):
            channel.flush_nowait()
        self._watch_writes(worker)
        count = 0
        try:
            for message in channel.drain():
                yield message
                count += 1
                if count == limit:
                    self._may_have_more.add(worker)
                    return
        except EOFError:
            # The process is about to end; its sentinel says when and how.
            with suppress(KeyError):
                self._selector.unregister(channel.fileno())
        self._watch_writes(worker)  # Places in the ring that are given back.

    def _bury(self, worker: int) -> Died:
        process = self._processes[worker]
        self._selector.unregister(process.sentinel)
        with suppress(KeyError):
            self._selector.unregister(self._channels[worker].fileno())
        process.join()
        return Died(worker, _how_it_ended(process.exitcode))

    def shutdown(self) -> None:
        """Tell all workers to exit, wait for them a while, and kill what is left with all that it started."""
        self._finalizer()


def _end_all(
    processes: list[BaseProcess],
    channels: list[PipeChannel],
    selector: selectors.BaseSelector,
    descriptors: tuple[int, ...],
) -> None:
    """End every process and close every pipe; also called when the interpreter exits."""
    for channel in channels:
        with suppress(OSError):  # A dead worker's pipe.
            channel.put_behind(Exit())
    deadline = time.monotonic() + EXIT_SECONDS
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        # Its children end with it, whether it ended by itself or not.
        _kill_group(process)
        process.join()
    selector.close()
    for channel in channels:
        channel.close()
    for descriptor in descriptors:
        os.close(descriptor)


def _kill_group(process: BaseProcess) -> None:
    """Kill a worker and whatever its environment started."""
    if process.pid is not None:
        # The group bears the worker's own number from its first moments on, and outlives it while it has members.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def _how_it_ended(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        with suppress(ValueError):
            return f"was killed by {signal.Signals(-exit_code).name}"
    return f"ended with exit code {exit_code}"
