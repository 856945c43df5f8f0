"""FunctionalEnv, the protocol of environments that are pure JAX functions."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import gymnasium

from rollout_cli.episodes.spaces import Space, Tree


@runtime_checkable
class FunctionalEnv(Protocol):
    """An environment as two pure functions, which `jax.jit` and `jax.vmap` can transform.

    Both functions describe one row, without a batch dimension. Observations are trees of arrays (dicts for
    Dict spaces, tuples for Tuple spaces); the state is any pytree of arrays with fixed shapes and dtypes.
    `rollout_cli.testing.check_functional_env` checks an implementation.

    Attributes:
        observation_space: The space of one observation.
        action_space: The space of one action.
        max_episode_steps: Steps after which an episode is truncated; None if the environment has no limit. The
            worker counts them: `step` need not.
    """

    observation_space: Space
    action_space: Space
    max_episode_steps: int | None

    def reset(self, key: Any) -> tuple[Tree, Any]:
        """Return the first observation and state; `key` is a typed JAX key."""

    def step(self, key: Any, state: Any, action: Tree) -> tuple[Tree, Any, Any, Any, Any, dict[str, Any]]:
        """Return the observation, state, reward, `terminated`, `truncated` and infos after an action."""


def is_functional(item: Any) -> bool:
    """Return True if an object is a FunctionalEnv, not a class or a gymnasium environment."""
    known = isinstance(item, type | gymnasium.Env | gymnasium.vector.VectorEnv)
    return not known and isinstance(item, FunctionalEnv)
