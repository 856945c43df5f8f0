"""A pool whose workers take turns in an order drawn from a seed: every interleaving of messages, deaths and failures.

Clocks are a counter of turns. If nothing can happen any more, a run would hang, and the pool says so.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from rollout_cli.samplers import sampler, stops, worker_loop
from rollout_cli.samplers.leases import LeaseSize
from rollout_cli.samplers.messages import ToSampler, ToWorker
from rollout_cli.samplers.pool import WAIT_SECONDS, Died, Event
from rollout_cli.samplers.worker_loop import WorkerLoop
from tests.helpers.fake_worker import DeadlyEpisode, Script


class SimulatedPool:
    """Workers of a script.

    Args:
        script: What they do.
        n_workers: How many there are.
        seed: Decides who takes the next turn.
        weights: How often each worker takes a turn, and after them how often the sampler takes messages.
        capacity: Messages that the way from each worker to the sampler holds.
        mortality: The share of turns in which a worker dies for no reason of its episodes'.
    """

    def __init__(
        self,
        script: Script,
        n_workers: int,
        *,
        seed: int = 0,
        weights: Sequence[float] = (1.0,),
        capacity: int = 2,
        mortality: float = 0.0,
    ) -> None:
        self.turns = 0
        self.is_closed = False
        self._factory = script.factory(n_workers)
        self._random = random.Random(seed)
        self._weights, self._capacity, self._mortality = weights, capacity, mortality
        self._loops: dict[int, WorkerLoop] = {}
        self._inboxes: dict[int, deque[ToWorker]] = {}
        self._outboxes: dict[int, deque[ToSampler]] = {}
        self._dead: dict[int, Died] = {}

    def clock(self) -> float:
        return self.turns * 0.01

    def start(self, worker: int) -> None:
        assert worker not in self._loops or worker not in self._dead, "a worker was started that runs"
        self._loops[worker] = WorkerLoop(lambda: self._factory, worker)
        self._inboxes[worker], self._outboxes[worker] = deque(), deque()

    def send(self, worker: int, command: ToWorker) -> None:
        if worker not in self._dead:
            self._inboxes[worker].append(command)

    def wait(self) -> list[Event]:
        """Let turns pass until the sampler takes messages, or has waited for long."""
        assert not self.is_closed
        ends_at = self.clock() + WAIT_SECONDS
        while self.clock() < ends_at:
            actors = [worker for worker in self._loops if self._may_act(worker)]
            senders = [worker for worker in self._loops if self._outboxes[worker] or worker in self._dead]
            assert actors or senders, "nothing can happen any more: the run hangs"
            choices = [*actors, *([-1] if senders else [])]
            weights = [self._weights[choice % len(self._weights)] for choice in choices]
            self.turns += 1
            chosen = self._random.choices(choices, weights)[0]
            if chosen == -1:
                return self._received(self._random.choice(senders))
            self._act(chosen)
        return []

    def _received(self, worker: int) -> list[Event]:
        """Return some of a worker's messages; all of a dead one's, and then its death."""
        outbox, is_dead = self._outboxes[worker], worker in self._dead
        count = len(outbox) if is_dead else self._random.randint(1, len(outbox))
        events: list[Event] = [outbox.popleft() for _ in range(count)]
        if is_dead:
            events.append(self._dead.pop(worker))
            del self._loops[worker]
        return events

    def _act(self, worker: int) -> None:
        inbox, loop = self._inboxes[worker], self._loops[worker]
        busy = not loop.idle
        commands = [inbox.popleft() for _ in range(self._random.randint(0 if busy else 1, len(inbox)))]
        try:
            self._outboxes[worker] += loop.turn(commands)
            dies = self._random.random() < self._mortality
        except DeadlyEpisode:
            dies = True
        if dies:
            self._dead[worker] = Died(worker, "was killed", loop.running_numbers)

    def _may_act(self, worker: int) -> bool:
        if worker in self._dead:
            return False
        has_room = len(self._outboxes[worker]) < self._capacity
        return bool(self._inboxes[worker]) or (has_room and not self._loops[worker].idle)

    def close(self) -> None:
        self.is_closed = True
        for loop in self._loops.values():
            loop.close()


class SimulatedSampler(sampler.Sampler):
    """A sampler over simulated pools; use it inside `with simulated_time(sampler)`.

    Args:
        script: What the workers do.
        n_workers: How many there are.
        policy: The first policy, a number; a list has one a worker.
        pool_options: As `SimulatedPool` takes them.
    """

    def __init__(
        self,
        script: Script,
        n_workers: int,
        *,
        policy: Any = 0.0,
        pool_options: dict[str, Any] | None = None,
        memory_limit: int = 1 << 30,
        lease_size: LeaseSize | None = None,
        **kwargs: Any,
    ) -> None:
        self.warnings: list[str] = []
        factory = script.factory(n_workers)
        super().__init__(policy, "CartPole-v1", worker_factory=factory, warn=self.warnings.append, **kwargs)
        self.simulated: SimulatedPool | None = None
        self.script, self.pool_options, self.by_worker = script, pool_options or {}, isinstance(policy, list)
        self._buffer_bytes = memory_limit
        self._lease_size = lease_size or LeaseSize()

    def _make_pool(self) -> SimulatedPool:
        self.simulated = SimulatedPool(self.script, self.n_workers, **self.pool_options)
        return self.simulated

    def clock(self) -> float:
        return 0.0 if self.simulated is None else self.simulated.clock()


@contextmanager
def simulated_time(simulated: SimulatedSampler) -> Iterator[None]:
    """Let all clocks show the turns of the sampler's pool."""
    with (
        mock.patch.object(worker_loop, "_clock", simulated.clock),
        mock.patch.object(sampler, "_clock", simulated.clock),
        mock.patch.object(stops, "_clock", simulated.clock),
    ):
        yield
