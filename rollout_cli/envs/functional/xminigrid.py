"""The environments of XLand-MiniGrid, such as `xminigrid:MiniGrid-EmptyRandom-8x8`."""

from __future__ import annotations

from typing import Any

import numpy as np
import xminigrid
from gymnasium import spaces
from xminigrid.core.constants import NUM_TILES

from rollout_cli.envs.functional.families import check_name
from rollout_cli.envs.functional.protocol import StepResult
from rollout_cli.episodes.spaces import Tree


class XminigridEnv:
    """An environment of XLand-MiniGrid.

    Args:
        env_id: An id of `xminigrid.registered_environments()`.
        kwargs: Fields of the environment's parameters, such as `max_steps`.
    """

    def __init__(self, env_id: str, **kwargs: Any) -> None:
        check_name("xminigrid", env_id, xminigrid.registered_environments())
        self._env, self._params = xminigrid.make(env_id, **kwargs)
        shape: Any = self._env.observation_shape(self._params)
        # Tiles and colors; there are fewer colors.
        self.observation_space = spaces.Box(0, NUM_TILES - 1, shape, np.uint8)
        self.action_space = spaces.Discrete(self._env.num_actions(self._params))
        self.max_episode_steps = self._params.max_steps

    def reset(self, key: Any) -> tuple[Tree, Any]:
        timestep = self._env.reset(self._params, key)
        return timestep.observation, timestep

    def step(self, key: Any, state: Any, action: Tree) -> StepResult:  # noqa: ARG002
        timestep = self._env.step(self._params, state, action)
        terminated = timestep.last() & (timestep.discount == 0)
        truncated = timestep.last() & ~terminated
        return timestep.observation, timestep, timestep.reward, terminated, truncated, {}
