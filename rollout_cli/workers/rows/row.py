"""Row: one environment, the episode that runs in it, and what a step of it is."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from rollout_cli.seeding.generators import EpisodeSeeder
from rollout_cli.workers.checks import RESET, STEP, STEP_RESULT, as_reward, frozen_copy
from rollout_cli.workers.rows.recording import EpisodeRecorder
from rollout_cli.workers.values import NO_NUMBER


class Row:
    """One environment and the episode that runs in it.

    Attributes:
        take_step: Takes an action; records it, steps the environment, records what that gives, and returns
            the next observation, None where the episode is over.
        number, seed, began: The episode's number (NO_NUMBER for none), the seed of its reset, and the time of
            that.
        observation: The one to act on next.
        flags: Terminated and truncated, as the last step gave them.
        where: The call of user code that runs, or has raised; set by whoever makes it.
        is_used: Whether an episode began in the environment; `is_watched`: whether its first reset was looked
            at.
    """

    __slots__ = (
        "_most_steps", "_step", "acting", "began", "env", "flags", "index", "is_used", "is_watched", "number",
        "observation", "recorder", "seed", "seeder", "take_step", "where",
    )  # fmt: skip

    def __init__(
        self, index: int, recorder: EpisodeRecorder, seeder: EpisodeSeeder, acting: str, most_steps: int
    ) -> None:
        self.index, self.recorder, self.seeder, self.acting = index, recorder, seeder, acting
        self.number, self.seed, self.began = NO_NUMBER, -1, 0.0
        self.observation: Any = None
        self.flags: tuple[Any, Any] = (False, False)
        self.where = RESET
        self.is_used = self.is_watched = False
        self._most_steps = most_steps

    env: Any
    _step: Callable[[Any], Any]
    take_step: Callable[[Any], Any]

    def use(self, env: Any, step: Callable[[Any], Any]) -> None:
        """Run the next episodes in this environment, whose steps `step` takes."""
        self.env, self.is_used, self._step = env, False, step
        self.restart()

    def restart(self) -> None:
        """Go on after an error, with which the steps have ended."""
        steps = self._steps(self._step)
        next(steps)
        self.take_step = steps.send

    def _steps(self, step: Callable[[Any], Any]) -> Generator[Any, Any, None]:
        """Yield the observation after each action that is sent; None after the last one of an episode.

        It is a generator since that costs no more than the same code inside of each loop that needs it.
        """
        recorder, most_steps = self.recorder, self._most_steps
        rewards, infos = recorder.rewards, recorder.env_infos
        record_observation, record_action = recorder.observations.record, recorder.actions.record
        observation: Any = None
        where = acting = self.acting
        try:
            while True:
                where = acting
                action = record_action((yield observation))
                where = STEP
                result = step(action)
                where = STEP_RESULT
                observation, reward, terminated, truncated, info = result
                observation = record_observation(observation)
                if info or type(info) is not dict:
                    infos[len(rewards)] = frozen_copy(info)
                rewards.append(reward if type(reward) is float else as_reward(reward))
                if terminated or truncated or len(rewards) >= most_steps:
                    self.flags, observation = (terminated, truncated), None
        except BaseException:
            self.where = where
            raise
