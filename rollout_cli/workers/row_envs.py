"""RowEnv: one row of a synchronous vector environment, which runs single episodes as a DefaultWorker does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from rollout_cli.seeding.generators import EpisodeSeeder
from rollout_cli.workers.checks import as_flag, as_reward, frozen_copy
from rollout_cli.workers.worker import NO_NUMBER

Array = npt.NDArray[Any]
Env = gymnasium.Env[Any, Any]
ResetEnv = Callable[[Env, int, int], tuple[Any, dict[str, Any]]]
_NO_INFO: dict[str, Any] = {}


class RowNotes:
    """What the rows of one vector environment tell their worker beside it.

    Infos go this way, since gymnasium's joined arrays would change their types; and so does the row at work, for the
    message of an error.

    Attributes:
        running: Which rows run an episode; the others rest.
        at_work: The row whose environment is being called; None between calls.
        numbers: The number of the episode of each row that is being reset.
        infos: What each row's environment gave at its last reset or step.
        observations: The same of observations.
        reset_env: Resets an environment for an episode, from its number and seed.

    Args:
        n_rows: How many rows.
        reset_env: As the attribute.
    """

    def __init__(self, n_rows: int, reset_env: ResetEnv) -> None:
        self.running = [False] * n_rows
        self.at_work: int | None = None
        self.numbers = [NO_NUMBER] * n_rows
        self.infos: list[dict[Any, Any]] = [{} for _ in range(n_rows)]
        self.observations: list[Any] = [None] * n_rows
        self.reset_env = reset_env


class RowEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """One row. Where it runs no episode it rests: its environment is left alone, whatever it is asked.

    Args:
        env: The row's environment.
        row: Which row.
        notes: Shared by all rows.
        seeder: Seeds the generators that its episodes draw from.
    """

    def __init__(self, env: Env, row: int, notes: RowNotes, seeder: EpisodeSeeder) -> None:
        super().__init__(env)
        self._row, self._notes, self._seeder = row, notes, seeder
        space = copy.deepcopy(env.observation_space)  # The environment's own must not be drawn from.
        space.seed(0)
        self._resting: Any = space.sample()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin the episode that the notes say."""
        del options
        notes, row = self._notes, self._row
        if not notes.running[row] or seed is None:
            return self._resting, _NO_INFO
        notes.at_work = row
        self._seeder.begin(notes.numbers[row])
        observation, info = notes.reset_env(self.env, notes.numbers[row], seed)
        notes.infos[row] = frozen_copy(info)
        notes.observations[row], notes.at_work = observation, None
        return observation, _NO_INFO

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one step."""
        notes, row = self._notes, self._row
        if not notes.running[row]:
            return self._resting, 0.0, False, False, _NO_INFO
        notes.at_work = row
        observation, reward, terminated, truncated, info = self.env.step(action)
        if info or type(info) is not dict:
            notes.infos[row] = frozen_copy(info)
        if type(reward) is not float:
            reward = as_reward(reward)
        if type(terminated) is not bool or type(truncated) is not bool:
            terminated, truncated = as_flag("terminated", terminated), as_flag("truncated", truncated)
        notes.observations[row], notes.at_work = observation, None
        return observation, reward, terminated, truncated, _NO_INFO
