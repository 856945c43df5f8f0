"""An in-memory twin of the worker processes: both state machines and their shells, with no process and no time.

The sampler's shell asks a `SimulatedPool` for events; the pool lets one worker's shell take one turn at a time, in an
order drawn from a seed, until something has arrived. Clocks are a counter of turns. If nothing can happen any more, the
run would hang, and the pool says so.
"""

from __future__ import annotations

import math
import queue
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
import pytest

from rollout_cli.chunk import Chunk
from rollout_cli.episode_batch import EnvSpec, EpisodeBatch
from rollout_cli.infos import InfoTable
from rollout_cli.samplers import multiprocessing_sampler, worker_process
from rollout_cli.samplers.leasing import LeaseSizer
from rollout_cli.samplers.plan import Order, Plan
from rollout_cli.samplers.plan_states import begin_plan
from rollout_cli.samplers.reorder import episode_buffer
from rollout_cli.samplers.sampler_machine import SamplerMachine
from rollout_cli.samplers.worker_machine import WorkerState
from rollout_cli.workers import NumberedWorker, WorkerFactory

SPEC = EnvSpec(gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(2))

Lengths = Callable[[int], int]
"""From an episode's number to its length."""


class Counter:
    """A clock that counts turns."""

    def __init__(self) -> None:
        self.turns = 0

    def __call__(self) -> float:
        return self.turns * 0.01


class CountingWorker(NumberedWorker):
    """Counts steps instead of taking them, in several episodes at once; its rewards are its policy's number.

    Args:
        number: Which worker this is.
        lengths: How long each episode is.
        speed: Steps of each running episode in one turn.
        at_once: How many episodes it runs at the same time; they end in any order.
    """

    def __init__(self, number: int, lengths: Lengths, speed: int, at_once: int) -> None:
        super().__init__(seed=0, max_episode_length=None, worker_number=number)
        self.begun: list[int] = []
        self._lengths, self._speed, self._at_once = lengths, speed, at_once
        self._policy = 0.0
        self._left: dict[int, int] = {}
        self._finished: list[int] = []

    def update_agent(self, agent_update: Any) -> None:
        self._policy = self._policy if agent_update is None else float(agent_update)

    def update_env(self, env_update: Any) -> None:
        pass

    @property
    def env_spec(self) -> EnvSpec:
        return SPEC

    def start_episode(self) -> None:
        number = self._next_number()
        self._left[number] = self._lengths(number)
        self.begun.append(number)

    def step_episode(self) -> bool:
        self._left = {number: left - 1 for number, left in self._left.items()}
        ended = [number for number, left in self._left.items() if left <= 0]
        for number in ended:
            del self._left[number]
        self._finished += ended
        return bool(ended)

    def collect_episode(self) -> EpisodeBatch:
        raise NotImplementedError

    def advance(self, deadline: float) -> None:
        for _ in range(self._speed):
            while self._waiting and len(self._left) < self._at_once:
                self.start_episode()
            self.step_episode()

    def take(self) -> Chunk | None:
        numbers, self._finished = sorted(self._finished), []
        return chunk_of(numbers, self._lengths, self._policy, self._worker_number) if numbers else None

    @property
    def finished_numbers(self) -> list[int]:
        return self._finished

    @property
    def finished_lengths(self) -> list[int]:
        return [self._lengths(number) for number in self._finished]

    @property
    def finished_rows(self) -> int:
        return sum(self.finished_lengths)

    @property
    def running(self) -> bool:
        return bool(self._left)

    def retract(self, *, above: int | None = None) -> None:
        super().retract(above=above)
        self._left = {n: left for n, left in self._left.items() if above is not None and n <= above}


class ReadyFactory(WorkerFactory):
    """Gives workers that are there already."""

    def __init__(self, workers: Sequence[NumberedWorker]) -> None:
        super().__init__(n_workers=len(workers), seed=0)
        self._workers = workers

    def __call__(self, worker_number: int) -> NumberedWorker:
        return self._workers[worker_number]


def chunk_of(numbers: Sequence[int], lengths: Lengths, policy: float = 0.0, worker: int = 0) -> Chunk:
    """Return episodes without observations and actions, whose rewards are all `policy`."""
    sizes = [lengths(number) for number in numbers]
    rows = sum(sizes)
    return Chunk(
        numbers=np.array(numbers, np.int64),
        seeds=np.array(numbers, np.int64),
        lengths=np.array(sizes, np.int64),
        terminated=np.ones(len(numbers), bool),
        truncated=np.zeros(len(numbers), bool),
        workers=np.full(len(numbers), worker, np.int32),
        wall_times=np.zeros(len(numbers)),
        observations=(),
        actions=(),
        rewards=np.full(rows, policy),
        last_observations=(),
        env_infos=InfoTable(rows),
        agent_infos=InfoTable(rows),
        episode_infos=InfoTable(len(numbers)),
    )


class SimulatedLink:
    """Both directions between one worker and the sampler; the way back holds `capacity` messages."""

    def __init__(self, capacity: int) -> None:
        self.inbox: deque[Any] = deque()
        self.outbox: deque[Any] = deque()
        self._capacity = capacity

    @property
    def has_room(self) -> bool:
        return len(self.outbox) < self._capacity

    def poll(self) -> Any | None:
        return self.inbox.popleft() if self.inbox else None

    def wait(self, *, keeping: bool) -> Any | None:
        command = self.poll()
        assert command is not None or keeping, "a worker waited for a command that nobody had sent"
        return command

    def put_nowait(self, message: Any) -> None:
        if not self.has_room:
            raise queue.Full
        self.outbox.append(message)

    def close(self) -> None:
        self.inbox.clear()


@dataclass
class SimulatedPool:
    """Workers whose turns come in an order drawn from `seed`.

    Args:
        lengths: How long each episode is.
        n_workers: How many workers there are.
        seed: Decides who takes the next turn.
        speeds: Steps that each worker takes in one turn.
        weights: How often each worker takes a turn, and after them how often the sampler takes a message.
        capacity: Messages that the way from each worker to the sampler holds.
        at_once: How many episodes each worker runs at the same time.
    """

    lengths: Lengths
    n_workers: int
    seed: int
    speeds: Sequence[int]
    weights: Sequence[float]
    capacity: int
    at_once: int = 1
    clock: Counter = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self.workers = [
            CountingWorker(number, self.lengths, self.speeds[number % len(self.speeds)], self.at_once)
            for number in range(self.n_workers)
        ]
        self.links = [SimulatedLink(self.capacity) for _ in range(self.n_workers)]
        self._shells = [
            worker_process._Shell(ReadyFactory(self.workers), link, number, 0.0, None)
            for number, link in enumerate(self.links)
        ]

    def send(self, worker: int, message: Any) -> None:
        self.links[worker].inbox.append(message)

    def wait(self, timeout: float | None = None) -> Iterator[Any]:
        """Let turns pass until the sampler takes a message, or the time-out has passed."""
        ends_at = math.inf if timeout is None else self.clock() + timeout
        while self.clock() < ends_at:
            actors = [number for number in range(self.n_workers) if self._may_act(number)]
            senders = [number for number, link in enumerate(self.links) if link.outbox]
            assert actors or senders, "nothing can happen any more: the run hangs"
            choices = [*actors, self.n_workers] if senders else actors
            weights = [self.weights[choice % len(self.weights)] for choice in choices]
            self.clock.turns += 1
            chosen = self._random.choices(choices, weights)[0]
            if chosen < self.n_workers:
                self._shells[chosen]._turn()
                continue
            outbox = self.links[self._random.choice(senders)].outbox
            for _ in range(self._random.randint(1, len(outbox))):
                yield outbox.popleft()
            return

    def _may_act(self, worker: int) -> bool:
        shell, link = self._shells[worker], self.links[worker]
        if shell._machine.state is WorkerState.STREAMING:
            return True
        return bool(link.inbox) or (bool(shell._backlog) and link.has_room)


@dataclass
class SimulatedSampler:
    """Runs plans with a pool, as MultiprocessingSampler does with real workers."""

    pool: SimulatedPool
    memory_limit: int = 1 << 20
    disk_limit: int = 1 << 30
    version: int = 0

    def stream(
        self,
        plan: Plan,
        sizer: LeaseSizer,
        monkeypatch: pytest.MonkeyPatch,
        *,
        by_worker: bool = False,
        base: int = 0,
        policy: float | None = None,
        order: Order = "index",
        grace: Callable[[], float | None] = lambda: None,
    ) -> Iterator[Chunk]:
        monkeypatch.setattr(worker_process, "_clock", self.pool.clock)
        monkeypatch.setattr(multiprocessing_sampler, "_clock", self.pool.clock)
        self.version += 1
        n_workers = self.pool.n_workers
        state = begin_plan(plan, n_workers=n_workers, by_worker=by_worker, block=self.pool.at_once, order=order)
        machine = SamplerMachine(state, base=base, version=self.version, n_workers=n_workers, sizer=sizer)
        buffer = episode_buffer(state, base, order=order, memory_limit=self.memory_limit, disk_limit=self.disk_limit)
        pool: Any = self.pool
        call = multiprocessing_sampler._Call(
            machine, buffer, pool, learn=lambda spec, facts: None, note=lambda reason: None
        )
        yield from call.run([(policy, None)] * n_workers, grace=grace)  # type: ignore[list-item]


def serial_prefix(lengths: Lengths, timesteps: int, base: int = 0) -> list[int]:
    """Return the numbers of the shortest run of episodes from `base` on with at least `timesteps` steps."""
    numbers: list[int] = []
    while sum(map(lengths, numbers)) < timesteps:
        numbers.append(base + len(numbers))
    return numbers
