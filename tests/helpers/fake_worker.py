"""A worker without an environment: its episodes have the lengths, failures and deaths that a test asks for."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.chunk import Chunk, concatenate
from rollout_cli.episodes.infos import InfoTable
from rollout_cli.errors import EnvError
from rollout_cli.workers.factory import WorkerFactory
from rollout_cli.workers.kinds import DefaultWorker
from rollout_cli.workers.values import WorkerReport
from tests.helpers.chunks import BOX_SPEC


class DeadlyEpisode(BaseException):
    """Ends a worker: no Exception, so nobody gets over it in its process."""


@dataclass(eq=False)
class Script:
    """What the workers of a factory do.

    Args:
        lengths: How long each episode is.
        n_envs: How many episodes each worker runs at the same time.
        speeds: Steps that each worker takes in one turn.
        deadly: Episodes that end their worker, each time.
        failing: Episodes that fail, as often as they are counted here.
        is_vague: Whether a failure names all running episodes.
        keep: Which episodes are kept, an expression.
        begun: By worker, the numbers that it began, in order.
    """

    lengths: Callable[[int], int] = lambda number: 1 + number % 5
    n_envs: int = 1
    speeds: tuple[int, ...] = (3,)
    deadly: Collection[int] = ()
    failing: Counter[int] = field(default_factory=Counter)
    is_vague: bool = False
    keep: str | None = None
    begun: dict[int, list[int]] = field(default_factory=dict)

    def factory(self, n_workers: int = 1, **options: Any) -> WorkerFactory:
        """Return a factory of such workers."""
        return WorkerFactory(
            worker_class=FakeWorker,
            worker_args={"script": self},
            n_workers=n_workers,
            seed=0,
            keep=self.keep,
            **options,
        )


def bare_episode(number: int, length: int, *, reward: float = 0.0, worker: int = 0) -> Chunk:
    """Return an episode that costs little to make: `length` rows of zeros."""
    return Chunk(
        numbers=np.array([number], np.int64),
        seeds=np.array([number], np.int64),
        lengths=np.array([length], np.int64),
        terminated=np.ones(1, np.bool_),
        truncated=np.zeros(1, np.bool_),
        workers=np.array([worker], np.int32),
        wall_times=np.zeros(1),
        observations=(np.zeros((length, 4), np.float32),),
        actions=(np.zeros(length, np.int64),),
        rewards=np.full(length, reward),
        last_observations=(np.zeros((1, 4), np.float32),),
        env_infos=InfoTable(length),
        agent_infos=InfoTable(length),
        episode_infos=InfoTable(1),
    )


class FakeWorker(DefaultWorker):
    """Runs the episodes of a script; the reward of every step is the policy, a number."""

    def __init__(self, *, script: Script, **common: Any) -> None:
        super().__init__(**common)
        self.script = script
        self.policy = float("nan")
        self.is_closed = False
        self._random = random.Random(0)
        self._waiting: list[int] = []
        self._running: dict[int, int] = {}  # By number, how many steps are left.
        self._done: dict[int, Chunk] = {}

    @classmethod
    def numbers_at_once(cls, worker_args: dict[str, Any]) -> int:
        n_envs: int = worker_args["script"].n_envs
        return n_envs

    def update_agent(self, agent_update: Any) -> None:
        self.policy = self.policy if agent_update is None else agent_update

    def update_env(self, env_update: Any) -> None:
        """Need none."""

    def report(self) -> WorkerReport:
        return WorkerReport()

    def shutdown(self) -> None:
        self.is_closed = True

    @property
    def env_spec(self) -> EnvSpec:
        return BOX_SPEC

    def assign(self, numbers: Iterable[range]) -> None:
        self._waiting = sorted([*self._waiting, *chain.from_iterable(numbers)])

    def advance(self, deadline: float, enough: float = math.inf) -> None:
        for _ in range(self.script.speeds[self.worker_number % len(self.script.speeds)]):
            if not self.has_work or self.finished_rows >= enough:
                return
            self._step()

    def _step(self) -> None:
        while self._waiting and len(self._running) < self.script.n_envs:
            number = self._waiting.pop(0)
            self._running[number] = self.script.lengths(number)
            self.script.begun.setdefault(self.worker_number, []).append(number)
        for number in list(self._running):
            self._running[number] -= 1
            if number in self.script.deadly:
                raise DeadlyEpisode(f"episode {number}")
            if self.script.failing[number] > 0:
                self.script.failing[number] -= 1
                error = EnvError(f"episode {number} failed")
                error.episodes = tuple(self._running) if self.script.is_vague else (number,)
                raise error
            if self._running[number] == 0:
                del self._running[number]
                length = self.script.lengths(number)
                self._done[number] = bare_episode(
                    number, length, reward=self.policy, worker=self.worker_number
                )

    def take(self, *, everything: bool = False) -> list[Chunk]:
        lowest = min([*self._waiting, *self._running], default=None)
        # Now and then one has waited too long for a lower number.
        everything = everything or self._random.random() < 0.2
        numbers = [n for n in sorted(self._done) if everything or lowest is None or n < lowest]
        return [concatenate([self._done.pop(number) for number in numbers])] if numbers else []

    def retract(self, *, above: int | None) -> None:
        last = -1 if above is None else above
        self._waiting = [number for number in self._waiting if number <= last]
        self._running = {number: left for number, left in self._running.items() if number <= last}
        self._done = {number: chunk for number, chunk in self._done.items() if number <= last}

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    @property
    def running_numbers(self) -> tuple[int, ...]:
        return tuple(self._running)

    @property
    def finished_rows(self) -> int:
        return sum(chunk.n_steps for chunk in self._done.values())

    @property
    def finished_bytes(self) -> int:
        return sum(chunk.n_bytes for chunk in self._done.values())
