"""WorkerPool: the worker processes, their pipes and their deaths."""

from __future__ import annotations

import multiprocessing
import os
import selectors
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.util import Finalize
from typing import Any

from rollout_cli.buffer_pool import BufferPool
from rollout_cli.errors import UsageError
from rollout_cli.samplers.messages import Batch, Failed, Returned, Started
from rollout_cli.samplers.starting import StartMethod, one_thread_each, start_fork_server
from rollout_cli.samplers.supervision import Died, Supervision
from rollout_cli.samplers.watch import Watch
from rollout_cli.samplers.worker_handle import WorkerHandle
from rollout_cli.user_code import first_line

EXIT_SECONDS = 2.0
"""How long a worker may take to end when it is told to, or has closed its pipe, before it is killed."""

_MESSAGES_A_TURN = 32
_clock = time.monotonic


class WorkerPool:
    """Worker processes 0 to n - 1.

    Args:
        payloads: For each worker, the pickled (factory, agent, env) of `worker_main`.
        titles: For each worker, what its process is called.
        start_method: How processes are started.
        rules: How long a worker may take for a step or an episode.

    Raises:
        UsageError: If `fork` is asked for in a process that has threads.
        WorkerError: If a process cannot be started.
    """

    def __init__(
        self,
        payloads: Sequence[bytes],
        titles: Sequence[str],
        start_method: StartMethod,
        rules: Supervision | None = None,
    ) -> None:
        if start_method == "fork" and threading.active_count() > 1:
            raise UsageError(
                "the start method fork cannot be used in a process that has threads: a lock that one of them holds "
                "would stay locked in the worker for ever",
                hint="use --start-method forkserver or spawn",
            )
        self._start_method: StartMethod = start_method
        self._titles = titles
        self._rules = rules or Supervision()
        self._watch = Watch(self._rules.step_timeout, self._rules.episode_timeout)
        self._selector = selectors.DefaultSelector()
        self._workers: dict[int, WorkerHandle] = {}
        self._buffers = BufferPool()
        self._may_have_more: set[int] = set()
        self._writing: set[int] = set()  # Whose pipes are watched for room.
        self._woken, self._waker = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._waker, False)
        self._selector.register(self._woken, selectors.EVENT_READ, ("waker", -1))
        # Workers may have children of their own, so they cannot be daemons, which multiprocessing would end itself.
        self._finalizer = Finalize(
            self, _end_all, args=(self._workers, self._selector, (self._woken, self._waker)), exitpriority=100
        )
        for number, payload in enumerate(payloads):
            self._start(number, payload)

    def _start(self, number: int, payload: bytes) -> None:
        method = self._start_method
        if method == "fork" and threading.active_count() > 1:
            method = "forkserver"  # Threads have come since the first workers: only these could be forked.
        if method == "forkserver":
            start_fork_server()
        with one_thread_each():
            context = multiprocessing.get_context(method)
            worker = WorkerHandle(
                context,
                number,
                payload,
                self._titles[number],
                each_step=self._rules.step_timeout is not None,
                buffers=self._buffers,
            )
        self._workers[number] = worker
        self._selector.register(worker.channel.fileno(), selectors.EVENT_READ, ("pipe", number))
        self._selector.register(worker.sentinel, selectors.EVENT_READ, ("sentinel", number))

    def restart(self, worker: int, payload: bytes) -> None:
        """Start a worker again whose death was told.

        Args:
            worker: Who.
            payload: As the pool was given, for where the worker is to begin now.

        Raises:
            WorkerError: If the process cannot be started.
        """
        self._start(worker, payload)

    @property
    def pids(self) -> list[int]:
        """Return the process ids."""
        return [worker.process.pid for _, worker in sorted(self._workers.items()) if worker.process.pid is not None]

    def send(self, worker: int, message: Any) -> None:
        """Send a message to a worker; never waits. To a dead worker it is lost: its death is an event of its own."""
        if not self._finalizer.still_active() or worker not in self._workers:
            return  # The pool was shut down while a stream was under way, which is being closed now.
        channel = self._workers[worker].channel
        with suppress(BrokenPipeError):
            channel.put_behind(message)
        self._watch_writes(worker)

    def _watch_writes(self, worker: int) -> None:
        channel = self._workers[worker].channel
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

        It may end with nothing to give.

        Raises:
            UsageError: If the pool was shut down.
        """
        if not self._finalizer.still_active():
            raise UsageError("the workers were shut down while their stream was under way", hint="begin a new stream")
        more, self._may_have_more = self._may_have_more, set()
        dead = []
        for key, _ in self._selector.select(0 if more else self._patience(timeout)):
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
        self._end_the_stuck()

    def _patience(self, timeout: float | None) -> float | None:
        """Return how long to wait for events at most."""
        silent = any(worker.pipe_ended_at is not None for worker in self._workers.values())
        limits = (timeout, self._watch.tick, EXIT_SECONDS if silent else None)
        return min((limit for limit in limits if limit is not None), default=None)

    def _end_the_stuck(self) -> None:
        """Kill whoever closed its pipe a while ago and did not end, or takes too long for a step or an episode."""
        now = _clock()
        for number, worker in self._workers.items():
            if worker.pipe_ended_at is not None and now - worker.pipe_ended_at >= EXIT_SECONDS:
                worker.condemn("closed its pipe and did not end")
            elif self._watch.is_due(number, now):
                overdue = self._watch.look(number, worker.box.noted(), now)
                if overdue is not None:
                    worker.condemn(overdue.reason, late=overdue.episodes)

    def _receive(self, number: int, limit: int | None) -> Iterator[Any]:
        worker = self._workers[number]
        if worker.condemned is not None and worker.pipe_ended_at is not None:
            return
        with suppress(BrokenPipeError):
            worker.channel.flush_nowait()
        self._watch_writes(number)
        count = 0
        try:
            for message in worker.channel.drain():
                yield _checked(message, number)
                count += 1
                if count == limit:
                    self._may_have_more.add(number)
                    return
        except EOFError:
            # The process is about to end; its sentinel says when and how.
            self._end_of_pipe(worker)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001  Whatever a broken message leads to, it is the worker's fault alone.
            self._end_of_pipe(worker)
            worker.condemn(f"sent what is no message ({first_line(error)})")
        else:
            self._watch_writes(number)  # Places in the ring that are given back.

    def _end_of_pipe(self, worker: WorkerHandle) -> None:
        worker.pipe_ended_at = worker.pipe_ended_at or _clock()
        with suppress(KeyError):
            self._selector.unregister(worker.channel.fileno())

    def _bury(self, number: int) -> Died:
        worker = self._workers[number]
        self._end_of_pipe(worker)
        self._selector.unregister(worker.sentinel)
        worker.kill()  # What its environment started.
        death = worker.death()
        worker.release()
        del self._workers[number]
        self._may_have_more.discard(number)
        self._writing.discard(number)
        self._watch.forget(number)
        return death

    def shutdown(self) -> None:
        """Tell all workers to exit, wait for them a while, and kill what is left with all that it started."""
        self._finalizer()


def _checked(message: Any, worker: int) -> Any:
    if not isinstance(message, Started | Batch | Returned | Failed) or message.worker != worker:
        raise TypeError(f"it is none that worker {worker} sends: {message!r:.80}")
    return message


def _end_all(workers: dict[int, WorkerHandle], selector: selectors.BaseSelector, descriptors: tuple[int, ...]) -> None:
    """End every process and close every pipe; also called when the interpreter exits."""
    for worker in workers.values():
        worker.ask_to_exit()
    deadline = _clock() + EXIT_SECONDS
    for worker in workers.values():
        worker.end(deadline)
    selector.close()
    for worker in workers.values():
        worker.release()
    for descriptor in descriptors:
        os.close(descriptor)
