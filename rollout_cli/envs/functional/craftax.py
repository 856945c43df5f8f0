"""The environments of Craftax, such as `craftax:Craftax-Classic-Symbolic-v1`."""

from __future__ import annotations

from typing import Any

import numpy as np
from craftax.craftax_env import make_craftax_env_from_name
from gymnasium import spaces

from rollout_cli.envs.functional.families import check_name
from rollout_cli.envs.functional.protocol import StepResult
from rollout_cli.episodes.spaces import Tree

NAMES = [f"Craftax-{kind}-v1" for kind in ("Symbolic", "Pixels", "Classic-Symbolic", "Classic-Pixels")]


class CraftaxEnv:
    """An environment of Craftax, without its automatic resets.

    Args:
        env_id: One of `NAMES`.
        kwargs: Fields of the environment's parameters, such as `max_timesteps`.
    """

    def __init__(self, env_id: str, **kwargs: Any) -> None:
        check_name("craftax", env_id, NAMES)
        self._env = make_craftax_env_from_name(env_id, auto_reset=False)
        self._params = self._env.default_params.replace(**kwargs)
        self._without_limit = self._params.replace(max_timesteps=np.iinfo(np.int32).max)
        space = self._env.observation_space(self._params)
        self.observation_space = spaces.Box(space.low, space.high, space.shape, space.dtype)
        self.action_space = spaces.Discrete(self._env.num_actions)
        self.max_episode_steps = int(self._params.max_timesteps)

    def reset(self, key: Any) -> tuple[Tree, Any]:
        observation, state = self._env.reset(key, self._params)
        return observation, state

    def step(self, key: Any, state: Any, action: Tree) -> StepResult:
        observation, state, reward, done, info = self._env.step(key, state, action, self._params)
        # `done` mixes natural ends and the time limit.
        terminated = self._env.is_terminal(state, self._without_limit)
        infos = {name: value for name, value in info.items() if name != "discount"}
        return observation, state, reward, terminated, done & ~terminated, infos
