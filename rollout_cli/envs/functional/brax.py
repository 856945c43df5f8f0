"""The environments of brax, such as `brax:ant`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from brax import envs
from gymnasium import spaces

from rollout_cli.envs.functional.families import check_name
from rollout_cli.envs.functional.protocol import StepResult
from rollout_cli.episodes.spaces import Space, Tree


class BraxEnv:
    """A brax environment without wrappers, or an environment of another package with the State of brax.

    Args:
        env: The environment.
        max_episode_steps: The time limit.
    """

    def __init__(self, env: Any, max_episode_steps: int) -> None:
        self._env = env
        self.max_episode_steps = max_episode_steps
        self.observation_space = _space(jax.eval_shape(env.reset, jax.random.key(0)).obs)
        self.action_space = spaces.Box(-1.0, 1.0, (env.action_size,), np.float32)

    def reset(self, key: Any) -> tuple[Tree, Any]:
        state = self._env.reset(key)
        return state.obs, state

    def step(self, key: Any, state: Any, action: Tree) -> StepResult:  # noqa: ARG002 - the state has keys
        copied = jax.tree.map(lambda leaf: leaf, state)  # Some environments change its dictionaries.
        state = self._env.step(copied, action)
        truncated = jnp.zeros((), bool)  # The worker counts.
        return state.obs, state, state.reward, state.done > 0, truncated, dict(state.metrics)


def make(name: str, *, episode_length: int = 1000, **kwargs: Any) -> BraxEnv:
    """Return an environment of brax; its wrapper has the same default for `episode_length`."""
    check_name("brax", name, envs._envs)  # noqa: SLF001 - brax has no public list
    return BraxEnv(envs.get_environment(name, **kwargs), episode_length)


def _space(observation: Any) -> Space:
    """Return the unbounded space of an observation's shapes."""
    if isinstance(observation, Mapping):
        return spaces.Dict({name: _space(value) for name, value in observation.items()})
    return spaces.Box(-np.inf, np.inf, observation.shape, observation.dtype.type)
