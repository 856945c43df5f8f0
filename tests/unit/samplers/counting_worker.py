"""A worker that counts steps instead of taking them, what it is built by, and the episodes that it gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import gymnasium
import numpy as np

from rollout_cli.chunk import Chunk
from rollout_cli.episode_batch import EnvSpec, EpisodeBatch
from rollout_cli.errors import EnvError, RolloutError
from rollout_cli.infos import InfoTable
from rollout_cli.workers import NumberedWorker, WorkerFactory

SPEC = EnvSpec(gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(2))

Lengths = Callable[[int], int]
"""From an episode's number to its length."""


class Clock:
    """A clock that counts turns."""

    def __init__(self) -> None:
        self.turns = 0

    def __call__(self) -> float:
        return self.turns * 0.01


class DeadlyEpisode(BaseException):
    """Stands for the end of a process."""


class CountingWorker(NumberedWorker):
    """Counts steps instead of taking them, in several episodes at once; its rewards are its policy's number.

    Args:
        number: Which worker this is.
        lengths: How long each episode is.
        speed: Steps of each running episode in one turn.
        at_once: How many episodes it runs at the same time; they end in any order.
        deadly: Episodes that end the process in their first step.
        failing: Episodes that raise in their first step, as often as they stand here.
    """

    def __init__(
        self,
        number: int,
        lengths: Lengths,
        speed: int,
        at_once: int,
        *,
        deadly: Collection[int] = (),
        failing: Counter[int] | None = None,
    ) -> None:
        super().__init__(seed=0, max_episode_length=None, worker_number=number)
        self.begun: list[int] = []
        self._lengths, self._speed, self._at_once = lengths, speed, at_once
        self._deadly, self._failing = deadly, Counter[int]() if failing is None else failing
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

    @property
    def at_work(self) -> tuple[int, ...]:
        return tuple(self._left)

    def step_episode(self) -> bool:
        for number in self._left:
            if number in self._deadly:
                raise DeadlyEpisode
            if self._failing[number]:
                self._failing[number] -= 1
                error = EnvError(f"env.step raised ValueError (episode {number})")
                error.episode = number
                raise error
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
    """Gives workers that are there already; one that was shut down is given again."""

    def __init__(self, workers: Sequence[NumberedWorker]) -> None:
        super().__init__(n_workers=len(workers), seed=0)
        self._workers = workers

    def __call__(self, worker_number: int) -> NumberedWorker:
        return self._workers[worker_number]

    def take(self, worker: NumberedWorker) -> tuple[Chunk | None, RolloutError | None]:
        return worker.take(), None  # They have no columns that could be held against their spaces.


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
