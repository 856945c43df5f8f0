"""A sampler whose worker processes take their turns when they are told to: nothing happens by itself.

`MultiprocessingSampler` itself runs here, with a pool of simulated processes in the place of real ones. It is suspended
wherever it would wait for an event, and goes on with the one that it is given.
"""

from __future__ import annotations

import itertools
import math
import pickle
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, cast

from rollout_cli.chunk import Chunk
from rollout_cli.errors import RolloutError
from rollout_cli.samplers import call, multiprocessing_sampler, worker_pool, worker_process
from rollout_cli.samplers.messages import Batch, Continue, Start
from rollout_cli.samplers.reorder import EpisodeBuffer, episode_buffer
from rollout_cli.samplers.supervision import Died
from rollout_cli.samplers.worker_handle import WorkerHandle
from rollout_cli.samplers.worker_machine import WorkerState
from rollout_cli.workers import NumberedWorker, WorkerFactory
from tests.unit.samplers.simulation import SimulatedLink
from tests.unit.samplers.tasks import TaskWorker, World

PART_BYTES = 256
"""Episodes of more than this travel in parts."""

_TURNS_TO_EXIT = 50


class SteppedWorld(World):
    """A World whose samplers begin simulated processes, and in which time is the count of turns.

    Attributes:
        heard: The episodes that the sampler of the last call has heard of, whole.
    """

    heard: set[int]

    def patch(self, patch: Any) -> None:
        """Let samplers begin simulated processes, and let time stand still but for the turns that are taken."""
        patch.setattr(multiprocessing_sampler, "WorkerPool", lambda payloads, *rest: SteppedPool(self, payloads))
        patch.setattr(multiprocessing_sampler, "episode_buffer", self.buffer)
        patch.setattr(worker_process, "for_transport", in_parts)
        patch.setattr(worker_process, "_clock", self.clock)
        patch.setattr(call, "_clock", self.clock)

    def buffer(self, *args: Any, **options: Any) -> EpisodeBuffer:
        buffer = episode_buffer(*args, **options, memory_limit=self.memory_limit, disk_limit=self.disk_limit)
        self.heard = set()
        return PausingBuffer(buffer, self.heard)


def in_parts(chunk: Chunk) -> list[Chunk]:
    """Return a chunk, or where it is large, its episodes one by one and the long ones in parts."""
    if chunk.n_bytes <= 2 * PART_BYTES:
        return [chunk]
    episodes = [chunk.episodes(at, at + 1) for at in range(chunk.n_episodes)]
    return [part for episode in episodes for part in episode.parts(PART_BYTES)]


class FreshFactory(WorkerFactory):
    """Builds a new worker each time."""

    def __init__(self, process: SteppedProcess, world: World) -> None:
        super().__init__(n_workers=1, seed=0)
        self._process, self._world = process, world

    def __call__(self, worker_number: int) -> TaskWorker:
        self._process.worker = worker = TaskWorker(worker_number, self._world)
        return worker

    def take(self, worker: NumberedWorker) -> tuple[Chunk | None, RolloutError | None]:
        return worker.take(), None  # They have no columns that could be held against their spaces.


class SteppedProcess(WorkerHandle):
    """A worker's shell in the place of its process.

    Attributes:
        worker: What it has built last.
        death: Set when it was killed.
    """

    def __init__(self, number: int, world: World, payload: bytes) -> None:
        _, agent, env = pickle.loads(payload)
        self.number = number
        self.worker: TaskWorker | None = None
        self.link = SimulatedLink(world.capacity)
        self.killed: Died | None = None
        self.channel = self  # type: ignore[assignment]
        self._ceiling: float = math.inf
        self.shell = worker_process._Shell(FreshFactory(self, world), self.link, number, agent, env)

    @property
    def state(self) -> WorkerState:
        return self.shell._machine.state

    @property
    def open_numbers(self) -> set[int]:
        return set(self.shell._machine.open_numbers)

    @property
    def keeps(self) -> bool:
        """Return whether it has messages that the way back had no room for."""
        return bool(self.shell._backlog)

    @property
    def at_work(self) -> tuple[int, ...]:
        return () if self.worker is None else self.worker.at_work

    @property
    def may_act(self) -> bool:
        """Return whether it has anything to do, or a command to take."""
        if self.killed is not None or self.state is WorkerState.EXITED:
            return False
        has_command = self.state is WorkerState.STREAMING or bool(self.link.inbox)
        return has_command or (self.keeps and self.link.has_room)

    def turn(self) -> None:
        """Do one thing; no episode above the last ceiling is begun."""
        command = self.link.inbox[0] if self.link.inbox else None
        if isinstance(command, Start | Continue):
            self._ceiling = math.inf if command.ceiling is None else command.ceiling
        begun = 0 if self.worker is None else len(self.worker.begun)
        before = self.worker
        self.shell._turn()
        if self.worker is not None and self.worker is before:
            assert all(number <= self._ceiling for number in self.worker.begun[begun:])

    def kill(self, *, busy: bool = False, told: bool = True) -> None:
        """End the process now; what lies in its pipe can still be read."""
        begun = self.at_work if told else None
        self.killed = Died(self.number, "was killed", begun=begun, busy=busy and self.state is WorkerState.STREAMING)

    def put_behind(self, message: Any) -> None:
        """Take a message from the sampler, which leases nothing that it says is above the ceiling."""
        if self.killed is not None:
            return
        if isinstance(message, Start | Continue) and message.ceiling is not None:
            assert all(numbers[-1] <= message.ceiling for numbers in message.lease if numbers)
        self.link.inbox.append(message)

    def end(self, deadline: float) -> None:
        """Let it come to its end, which it does within a few turns, whatever waits in it; nobody reads any more."""
        del deadline
        for _ in range(_TURNS_TO_EXIT):
            if self.may_act:
                self.turn()
        if self.killed is None:
            assert self.state is WorkerState.EXITED
            assert self.worker is None or self.worker.is_shut

    def release(self) -> None:
        """Nothing is held."""


class NoSelector:
    """Stands for the selector that a pool closes."""

    def close(self) -> None:
        """Nothing is open."""


class SteppedPool:
    """Stands for a WorkerPool: gives the sampler what has been put into `arrivals`."""

    def __init__(self, world: World, payloads: Sequence[bytes]) -> None:
        self._world = world
        self.arrivals: deque[Any] = deque()
        self.woken = False
        self.processes: dict[int, SteppedProcess] = {}
        for worker, payload in enumerate(payloads):
            self.restart(worker, payload)

    def restart(self, worker: int, payload: bytes) -> None:
        assert worker not in self.processes, "a worker is started again that lives"
        self.processes[worker] = SteppedProcess(worker, self._world, payload)

    def send(self, worker: int, message: Any) -> None:
        if worker in self.processes:
            self.processes[worker].put_behind(message)

    def wake(self) -> None:
        self.woken = True

    def wait(self, timeout: float | None = None) -> Iterator[Any]:
        assert self.arrivals or self.woken or timeout is not None, "the sampler waits, and nothing is to come"
        self.woken = False
        while self.arrivals:
            event = self.arrivals.popleft()
            if isinstance(event, Died):
                del self.processes[event.worker]
            yield event

    def shutdown(self) -> None:
        selector: Any = NoSelector()
        handles: Any = self.processes
        worker_pool._end_all(handles, selector, ())

    @property
    def actors(self) -> list[SteppedProcess]:
        """Return who has anything to do."""
        return [process for process in self.processes.values() if process.may_act]

    @property
    def senders(self) -> list[SteppedProcess]:
        """Return of whom the sampler can learn something: a message, or its death."""
        return [process for process in self.processes.values() if process.link.outbox or process.killed is not None]

    def load(self, process: SteppedProcess, count: int) -> None:
        """Let the sampler's next waiting end with so many messages of a worker, or after the last with its death."""
        outbox = process.link.outbox
        if not outbox and process.killed is not None:
            self.arrivals.append(process.killed)
        for message in list(itertools.islice(outbox, count)):
            outbox.popleft()
            self.arrivals.append(message)


class Pause:
    """What a stream gives in the place of a chunk where the sampler is about to wait."""

    numbers = (-1,)
    n_steps = n_episodes = 0
    part = None


PAUSE = cast("Chunk", Pause())


class PausingBuffer:
    """A buffer that gives `PAUSE` after all that can go on, and notes in `heard` which episodes have come."""

    def __init__(self, buffer: EpisodeBuffer, heard: set[int]) -> None:
        self._buffer, self._heard = buffer, heard

    def add(self, batch: Batch) -> None:
        if batch.part is None or batch.part.is_last:
            self._heard.update(*batch.numbers)
        self._buffer.add(batch)

    def skip(self, number: int) -> None:
        self._buffer.skip(number)

    def passed(self, number: int) -> bool:
        return self._buffer.passed(number)

    @property
    def is_full(self) -> bool:
        return self._buffer.is_full

    @property
    def n_waiting(self) -> int:
        return self._buffer.n_waiting

    def ready(self) -> Iterator[Chunk]:
        yield from self._buffer.ready()
        yield PAUSE

    def close(self) -> None:
        self._buffer.close()
