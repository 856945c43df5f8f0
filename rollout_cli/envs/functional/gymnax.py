"""The environments of gymnax 1.0, such as `gymnax:CartPole-v1`."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnax
import jax
from gymnasium import spaces
from gymnax.environments.spaces import gymnax_space_to_gym_space

from rollout_cli.envs.functional.families import check_name
from rollout_cli.envs.functional.protocol import StepResult
from rollout_cli.episodes.spaces import Space, Tree


class GymnaxEnv:
    """An environment of gymnax, without its automatic resets.

    Args:
        env_id: An id of `gymnax.registered_envs`.
        kwargs: Fields of the environment's parameters, such as `max_steps_in_episode`; others are arguments of
            `gymnax.make`.
    """

    def __init__(self, env_id: str, **kwargs: Any) -> None:
        check_name("gymnax", env_id, gymnax.registered_envs)
        env, params = gymnax.make(env_id)
        fields = {field.name for field in dataclasses.fields(params)}
        if arguments := {name: value for name, value in kwargs.items() if name not in fields}:
            env, params = gymnax.make(env_id, **arguments)
        self._env = env
        self._params: Any = params.replace(**{name: kwargs[name] for name in kwargs.keys() & fields})
        self.observation_space = self._observation_space()
        self.action_space = gymnax_space_to_gym_space(self._env.action_space(self._params))
        self.max_episode_steps = int(self._params.max_steps_in_episode)

    def _observation_space(self) -> Space:
        space: Space = gymnax_space_to_gym_space(self._env.observation_space(self._params))
        observation, _ = jax.eval_shape(self._env.reset_env, jax.random.key(0), self._params)
        if isinstance(space, spaces.Box) and observation.dtype != space.dtype:
            # Catch-bsuite declares integers and returns floats.
            return spaces.Box(space.low, space.high, space.shape, observation.dtype.type)
        return space

    def reset(self, key: Any) -> tuple[Tree, Any]:
        observation, state = self._env.reset_env(key, self._params)
        return observation, state

    def step(self, key: Any, state: Any, action: Tree) -> StepResult:
        result = self._env.step_env(key, state, action, self._params)
        observation, state, reward, terminated, info = result
        # `step_env` of gymnax 1.0 returns natural ends alone; its `discount` repeats them.
        infos = {name: value for name, value in info.items() if name != "discount"}
        return observation, state, reward, terminated, self._env.is_truncated(state, self._params), infos
