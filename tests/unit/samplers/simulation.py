"""An in-memory twin of the worker processes: both state machines and their shells, with no process and no time.

The sampler's shell asks a `SimulatedPool` for events; the pool lets one worker's shell take one turn at a time, in an
order drawn from a seed, until something has arrived. Clocks are a counter of turns. If nothing can happen any more, the
run would hang, and the pool says so.
"""

from __future__ import annotations

import math
import queue
import random
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from rollout_cli.buffer_pool import Lender
from rollout_cli.chunk import Chunk
from rollout_cli.samplers import call, worker_process
from rollout_cli.samplers.leasing import LeaseSizer
from rollout_cli.samplers.messages import Start
from rollout_cli.samplers.plan import Order, Plan
from rollout_cli.samplers.plan_states import begin_plan
from rollout_cli.samplers.reorder import episode_buffer
from rollout_cli.samplers.sampler_machine import SamplerMachine
from rollout_cli.samplers.supervision import Died, Supervision, Supervisor
from rollout_cli.samplers.worker_machine import WorkerState
from tests.unit.samplers.counting_worker import Clock, CountingWorker, DeadlyEpisode, Lengths, ReadyFactory


class SimulatedLink:
    """Both directions between one worker and the sampler; the way back holds `capacity` messages."""

    lend: Lender | None = None

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
        deadly: Episodes that kill their worker, each time.
        failing: Episodes that fail, as often as they stand here.
        mortality: The share of busy turns in which a worker dies for no reason of its episodes'.
    """

    lengths: Lengths
    n_workers: int
    seed: int
    speeds: Sequence[int]
    weights: Sequence[float]
    capacity: int
    at_once: int = 1
    deadly: Collection[int] = ()
    failing: Counter[int] = field(default_factory=Counter)
    mortality: float = 0.0
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self.workers: dict[int, CountingWorker] = {}
        self.links: dict[int, SimulatedLink] = {}
        self._shells: dict[int, worker_process._Shell] = {}
        self._dead: dict[int, Died] = {}
        for number in range(self.n_workers):
            self.restart(number)

    def restart(self, number: int) -> None:
        """Put a new worker in the place of one that died."""
        self.workers[number] = worker = CountingWorker(
            number,
            self.lengths,
            self.speeds[number % len(self.speeds)],
            self.at_once,
            deadly=self.deadly,
            failing=self.failing,
        )
        self.links[number] = link = SimulatedLink(self.capacity)
        factory = ReadyFactory([worker] * self.n_workers)
        self._shells[number] = worker_process._Shell(factory, link, number, 0.0, None)

    def send(self, worker: int, message: Any) -> None:
        if worker not in self._dead:
            self.links[worker].inbox.append(message)

    def wait(self, timeout: float | None = None) -> Iterator[Any]:
        """Let turns pass until the sampler takes a message, or the time-out has passed."""
        ends_at = math.inf if timeout is None else self.clock() + timeout
        while self.clock() < ends_at:
            actors = [number for number in range(self.n_workers) if self._may_act(number)]
            senders = [number for number, link in self.links.items() if link.outbox or number in self._dead]
            assert actors or senders, "nothing can happen any more: the run hangs"
            choices = [*actors, self.n_workers] if senders else actors
            weights = [self.weights[choice % len(self.weights)] for choice in choices]
            self.clock.turns += 1
            chosen = self._random.choices(choices, weights)[0]
            if chosen < self.n_workers:
                self._act(chosen)
                continue
            sender = self._random.choice(senders)
            yield from self._messages(sender)
            return

    def _messages(self, sender: int) -> Iterator[Any]:
        """Give some of a worker's messages; all of a dead one's, and then its death."""
        outbox, dead = self.links[sender].outbox, sender in self._dead
        for _ in range(len(outbox) if dead else self._random.randint(1, len(outbox))):
            yield outbox.popleft()
        if dead:
            yield self._dead.pop(sender)

    def _act(self, number: int) -> None:
        busy = self._shells[number]._machine.state is WorkerState.STREAMING
        try:
            self._shells[number]._turn()
            dies = busy and self._random.random() < self.mortality
        except DeadlyEpisode:
            dies = True
        if dies:
            self._dead[number] = Died(number, "was killed", begun=self.workers[number].at_work, busy=busy)

    def _may_act(self, worker: int) -> bool:
        if worker in self._dead:
            return False
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
    rules: Supervision = field(default_factory=lambda: Supervision(max_worker_restarts=10**6))
    skipped: dict[int, str] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)

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
        monkeypatch.setattr(call, "_clock", self.pool.clock)
        self.version += 1
        n_workers = self.pool.n_workers
        state = begin_plan(plan, n_workers=n_workers, by_worker=by_worker, block=self.pool.at_once, order=order)
        machine = SamplerMachine(
            state,
            base=base,
            version=self.version,
            n_workers=n_workers,
            sizer=sizer,
            supervisor=Supervisor(self.rules, seed=0),
        )
        buffer = episode_buffer(state, base, order=order, memory_limit=self.memory_limit, disk_limit=self.disk_limit)
        hooks = call.Hooks(
            learn=lambda spec, facts: None,
            note_reason=lambda reason: None,
            restart=lambda worker, start: self.bring_up(worker, policy, start, anew=False),
            rebuild=lambda worker, start: self.bring_up(worker, policy, start, anew=True),
            note_skipped=self.skipped.__setitem__,
            tell=self.told.append,
        )
        updates: Any = [(policy, None)] * n_workers
        yield from call.Call(machine, buffer, self.pool, hooks).run(updates, grace=grace)

    def bring_up(self, worker: int, policy: Any, start: Start, *, anew: bool) -> None:
        """Restart or rebuild a worker, which then has the policy of this call."""
        if not anew:
            self.pool.restart(worker)
        self.pool.send(worker, Start(start.version - 1, policy, anew=anew))
        self.pool.send(worker, start)


def serial_prefix(lengths: Lengths, timesteps: int, base: int = 0) -> list[int]:
    """Return the numbers of the shortest run of episodes from `base` on with at least `timesteps` steps."""
    numbers: list[int] = []
    while sum(map(lengths, numbers)) < timesteps:
        numbers.append(base + len(numbers))
    return numbers
