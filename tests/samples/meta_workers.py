"""Two workers as a user writes them: those of RL2 and PEARL, in the smaller places that samplers call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rollout_cli import DefaultWorker


class TrialWorker(DefaultWorker):
    """As in RL2: the policy keeps its state over the n episodes of a trial, and is reset where a trial begins.

    Trial k is the worker's numbers k * n to k * n + n - 1. `numbers_at_once` lets a sampler lease whole
    trials; where the beginning of one was run elsewhere all the same, or before an update, the worker runs it
    again by itself.
    """

    def __init__(self, *, n_episodes_per_trial: int = 2, **common: Any) -> None:
        super().__init__(**common)
        self.n_episodes_per_trial = n_episodes_per_trial

    @classmethod
    def numbers_at_once(cls, worker_args: dict[str, Any]) -> int:
        return int(worker_args.get("n_episodes_per_trial", 2))

    def predecessors(self, number: int) -> Sequence[int]:
        place = number // self.number_stride % self.n_episodes_per_trial
        return range(number - place * self.number_stride, number, self.number_stride)

    def reset_agent(self, agent: Any, number: int) -> None:
        if not self.predecessors(number):
            super().reset_agent(agent, number)


class BeliefWorker(TrialWorker):
    """As in PEARL: the policy draws a latent from its belief at each episode's start, and learns from the transitions.

    What it has learned is forgotten where a trial begins.
    """

    def reset_env(self, env: Any, number: int, seed: int) -> Any:
        observation, info = super().reset_env(env, number, seed)
        self._observation_before = np.array(observation)
        return observation, info

    def reset_agent(self, agent: Any, number: int) -> None:
        if not self.predecessors(number):
            agent.reset_belief()
        agent.sample_from_belief()

    def step_env(self, env: Any, action: Any) -> Any:
        result = env.step(action)
        observation, reward, *_ = result
        self.agent.update_context(self._observation_before, action, reward, observation)
        self._observation_before = np.array(observation)
        return result
