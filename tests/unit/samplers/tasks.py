"""Workers whose episodes tell by their rewards which updates they were run under."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rollout_cli.chunk import Chunk
from rollout_cli.envs import EnvUpdate
from rollout_cli.errors import EnvError
from tests.unit.samplers.counting_worker import Clock, CountingWorker, Lengths


class AddToTask(EnvUpdate):
    """Builds on the environment before it."""

    def __init__(self, amount: int) -> None:
        self.amount = amount


@dataclass(frozen=True, slots=True)
class Given:
    """What a worker works with; a whole policy voids parameters, and a new environment what was added to its task."""

    policy: float = math.nan
    parameters: float = 0.0
    task: float = math.nan

    def after(self, agent: Any, env: Any) -> Given:
        """Return what the updates make of it; whatever is no update changes nothing."""
        policy, parameters, task = self.policy, self.parameters, self.task
        if isinstance(agent, dict):
            parameters = agent["parameters"]
        elif agent is not None:
            policy, parameters = agent, 0.0
        if isinstance(env, AddToTask):
            task += env.amount
        elif env is not None:
            task = 0.0
        return Given(policy, parameters, task)

    @property
    def reward(self) -> float:
        """Return what stands in each step that was run with it."""
        return self.policy * 10**6 + self.parameters * 10**3 + self.task


@dataclass
class World:
    """What all workers have in common.

    Attributes:
        lengths: How long each episode is.
        speeds: Steps that each worker takes in one turn.
        at_once: How many episodes each worker runs at the same time.
        capacity: Messages that the way from each worker to the sampler holds.
        memory_limit: Bytes that wait in memory for their order.
        disk_limit: Bytes on disk from which on no new number is leased.
        failing: Episodes that fail, as often as they stand here.
        unblamed: Failures of these do not tell which episode it was.
    """

    lengths: Lengths
    speeds: Sequence[int]
    at_once: int
    capacity: int
    memory_limit: int
    disk_limit: int
    failing: Counter[int] = field(default_factory=Counter)
    unblamed: set[int] = field(default_factory=set)
    clock: Clock = field(default_factory=Clock)


class TaskWorker(CountingWorker):
    """A CountingWorker that applies updates; its rewards tell all of them.

    Args:
        number: Which worker this is.
        world: What it runs.
    """

    def __init__(self, number: int, world: World) -> None:
        speed = world.speeds[number % len(world.speeds)]
        super().__init__(number, world.lengths, speed, world.at_once, failing=world.failing)
        self.is_shut = self._is_spoilt = False
        self._world = world
        self._given = Given()
        self._rewards: dict[int, float] = {}  # Of each episode, as it was begun.

    @classmethod
    def numbers_at_once(cls, worker_args: dict[str, Any]) -> int:
        return int(worker_args["at_once"])

    def update_agent(self, agent_update: Any) -> None:
        self._given = self._given.after(agent_update, None)

    def update_env(self, env_update: Any) -> None:
        self._given = self._given.after(None, env_update)

    def start_episode(self) -> None:
        super().start_episode()
        self._rewards[self.begun[-1]] = self._given.reward

    def take(self) -> Chunk | None:
        chunk = super().take()
        if chunk is None:
            return None
        rewards = [self._rewards[number] for number in chunk.numbers.tolist()]
        return replace(chunk, rewards=np.repeat(rewards, chunk.lengths))

    def step_episode(self) -> bool:
        assert not self._is_spoilt, "a worker that has failed is of no use any more"
        try:
            return super().step_episode()
        except EnvError as error:
            self._is_spoilt = True
            error.episode = None if error.episode in self._world.unblamed else error.episode
            raise

    def shutdown(self) -> None:
        self.is_shut = True
