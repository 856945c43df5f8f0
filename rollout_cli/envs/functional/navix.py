"""The environments of Navix, such as `navix:Navix-Empty-8x8-v0`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import navix
import numpy as np
from gymnasium import spaces
from navix.rendering.cache import RenderingCache

from rollout_cli.envs.functional.families import check_name
from rollout_cli.envs.functional.protocol import StepResult
from rollout_cli.episodes.spaces import Tree


class NavixEnv:
    """An environment of Navix, without its automatic resets.

    Args:
        env_id: An id of `navix.registry()`.
        kwargs: Arguments of `navix.make`, such as `max_steps`; `observation_fn` may be a name in
            `navix.observations`.
    """

    def __init__(self, env_id: str, **kwargs: Any) -> None:
        check_name("navix", env_id, navix.registry())
        if isinstance(function := kwargs.get("observation_fn"), str):
            kwargs["observation_fn"] = getattr(navix.observations, function)
        self._env = navix.make(env_id, **kwargs)
        # The state of a row has the images of all tiles, which only images need.
        is_image = "rgb" in self._env.observation_fn.__name__
        self._cache = None if is_image else RenderingCache(jnp.zeros(0))
        self.observation_space = self._observation_space()
        self.action_space = spaces.Discrete(int(self._env.action_space.n))
        self.max_episode_steps = int(self._env.max_steps)

    def _observation_space(self) -> spaces.Box:
        # The bounds and dtypes of Navix's own spaces do not fit its observations.
        observation = jax.eval_shape(self.reset, jax.random.key(0))[0]
        bounds: Any = (0, 255) if observation.dtype == np.uint8 else (-np.inf, np.inf)
        return spaces.Box(bounds[0], bounds[1], observation.shape, observation.dtype.type)

    def reset(self, key: Any) -> tuple[Tree, Any]:
        timestep = self._env.reset(key, self._cache)
        return timestep.observation, timestep

    def step(self, key: Any, state: Any, action: Tree) -> StepResult:  # noqa: ARG002
        # `step` resets after the last step; this constant removes that branch from the program.
        timestep = self._env.step(state.replace(step_type=np.int32(0)), action)
        ends = timestep.is_termination(), timestep.is_truncation()
        return timestep.observation, timestep, timestep.reward, *ends, timestep.info
