"""Trials of several episodes, as RL2 has them: the policy remembers what it learnt in the trial's earlier episodes.

A worker class of one's own that says which episodes depend on each other. A trial is a block of consecutive episode
numbers; `rl2.toml` collects some.
"""  # noqa: INP001

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rollout_cli import DefaultWorker
from rollout_cli.seeding import derive_seed

Observation = npt.NDArray[np.float32]
N_DOORS = 3


class RL2Worker(DefaultWorker):
    """Runs trials: blocks of episodes on one task, between which the policy is not reset.

    Args:
        episodes_per_trial: How many episodes a trial has.
        options: As in DefaultWorker.
    """

    def __init__(self, *, episodes_per_trial: int = 4, **options: Any) -> None:
        super().__init__(**options)
        self._episodes_per_trial = episodes_per_trial

    @classmethod
    def numbers_at_once(cls, worker_args: dict[str, Any]) -> int:
        """Return the length of a trial, so that one worker gets all of it."""
        return int(worker_args.get("episodes_per_trial", 4))

    def follows(self, number: int) -> int | None:
        """Return the episode before in the same trial."""
        return number - self.number_stride if self._place(number) else None

    def reset_options(self, number: int) -> dict[str, Any]:
        """Return the trial's task, which follows from its first episode's number."""
        first = number - self._place(number) * self.number_stride
        return {"task": derive_seed(self._seed, first, "task") % N_DOORS}

    def begin_policy(self, number: int) -> None:
        """Reset the policy at the beginning of a trial only."""
        if self._place(number) == 0:
            super().begin_policy(number)

    def _place(self, number: int) -> int:
        """Return which episode of its trial this is, from 0."""
        return number // self.number_stride % self._episodes_per_trial


class Doors(gymnasium.Env[Observation, np.int64]):
    """Three steps before three doors, one of which pays: which one is the task, which the observation does not tell.

    The observation is what the last step was: its door as three flags, its reward, and whether the episode has
    just begun.
    """

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (N_DOORS + 2,), np.float32)
        self.action_space = spaces.Discrete(N_DOORS)
        self._paying = 0
        self._step = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin; `options["task"]` is the door that pays."""
        super().reset(seed=seed)
        self._paying = int((options or {}).get("task", 0))
        self._step = 0
        observation = np.zeros(N_DOORS + 2, np.float32)
        observation[-1] = 1.0
        return observation, {"task": self._paying}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Open a door."""
        self._step += 1
        reward = 1.0 if action == self._paying else 0.0
        observation = np.zeros(N_DOORS + 2, np.float32)
        observation[int(action)] = 1.0
        observation[N_DOORS] = reward
        return observation, reward, self._step == N_DOORS, False, {}


class Searcher:
    """Tries one door after another until one pays, and opens that one from then on, until it is reset."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all doors."""
        self._door = 0
        self._found = False

    def get_action(self, observation: Observation) -> tuple[np.int64, dict[str, Any]]:
        """Look at what the last door paid, and choose the next one."""
        has_just_begun = observation[-1] == 1.0
        if not self._found and not has_just_begun:
            self._found = bool(observation[N_DOORS] == 1.0)
            self._door = int(observation[:N_DOORS].argmax()) if self._found else (self._door + 1) % N_DOORS
        return np.int64(self._door), {"knows": self._found}
