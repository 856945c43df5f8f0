"""The environments of jumanji, such as `jumanji:Snake-v1`."""

from __future__ import annotations

from typing import Any

import jax
import jumanji
from gymnasium import spaces
from jumanji.specs import jumanji_specs_to_gym_spaces

from rollout_cli.envs.functional.families import check_name
from rollout_cli.envs.functional.protocol import StepResult
from rollout_cli.episodes.spaces import Space, Tree


class JumanjiEnv:
    """An environment of jumanji; a named tuple is a Dict space, with the action mask if it has one.

    Args:
        env_id: An id of `jumanji.registered_environments`.
        kwargs: Arguments of the environment, such as `time_limit`.
    """

    def __init__(self, env_id: str, **kwargs: Any) -> None:
        check_name("jumanji", env_id, jumanji.registered_environments())
        env = jumanji.make(env_id, **kwargs)
        self.max_episode_steps: int | None = getattr(env, "time_limit", None)
        if self.max_episode_steps is not None:
            # Most environments terminate at their limit. With a later one they do not: the worker truncates.
            env = jumanji.make(env_id, **kwargs | {"time_limit": self.max_episode_steps + 1})
        self._env = env
        self.observation_space: Space = jumanji_specs_to_gym_spaces(env.observation_spec)
        self.action_space: Space = jumanji_specs_to_gym_spaces(env.action_spec)

    def reset(self, key: Any) -> tuple[Tree, Any]:
        state, timestep = self._env.reset(jax.random.key_data(key))
        return _tree(self.observation_space, timestep.observation), state

    def step(self, key: Any, state: Any, action: Tree) -> StepResult:  # noqa: ARG002 - the state has keys
        state, timestep = self._env.step(state, action)
        is_natural = timestep.discount == 0
        return (
            _tree(self.observation_space, timestep.observation),
            state,
            timestep.reward,
            timestep.last() & is_natural,
            timestep.last() & ~is_natural,
            timestep.extras,
        )


def _tree(space: Space, observation: Any) -> Tree:
    """Return an observation with a dictionary for each named tuple."""
    if isinstance(space, spaces.Dict):
        return {name: _tree(part, getattr(observation, name)) for name, part in space.items()}
    return observation
