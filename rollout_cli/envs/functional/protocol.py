"""FunctionalEnv, the protocol of environments that are pure JAX functions."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import gymnasium

from rollout_cli.episodes.spaces import Space, Tree

StepResult = tuple[Tree, Any, Any, Any, Any, dict[str, Any]]
"""The observation, state, reward, `terminated`, `truncated` and infos after an action."""


@runtime_checkable
class FunctionalEnv(Protocol):
    """An environment as two pure functions, which `jax.jit` and `jax.vmap` can transform.

    Both functions describe one row, without a batch dimension. The program also steps rows without an episode, from
    states after an episode's end, and drops the results. Observations are trees of arrays (dicts for
    Dict spaces, tuples for Tuple spaces); the state is any pytree of arrays with fixed shapes and dtypes.
    `rollout_cli.testing.check_functional_env` checks an implementation. The spaces and the limit may be plain
    attributes.
    """

    @property
    def observation_space(self) -> Space:
        """The space of one observation."""

    @property
    def action_space(self) -> Space:
        """The space of one action."""

    @property
    def max_episode_steps(self) -> int | None:
        """Steps after which the worker truncates an episode, so `step` need not; None for no limit."""

    def reset(self, key: Any) -> tuple[Tree, Any]:
        """Return the first observation and state; `key` is a typed JAX key."""

    def step(self, key: Any, state: Any, action: Tree) -> StepResult:
        """Return the observation, state, reward, `terminated`, `truncated` and infos after an action."""


def is_functional(item: Any) -> bool:
    """Return True if an object is a FunctionalEnv, not a class or a gymnasium environment."""
    known = isinstance(item, type | gymnasium.Env | gymnasium.vector.VectorEnv)
    return not known and isinstance(item, FunctionalEnv)
