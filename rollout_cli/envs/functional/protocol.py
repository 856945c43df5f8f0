"""FunctionalEnv, the protocol of environments that are pure JAX functions."""

from __future__ import annotations

import operator
from typing import Any, Protocol

import gymnasium

from rollout_cli.episodes.spaces import Space, Tree
from rollout_cli.errors import EnvLoadError

StepResult = tuple[Tree, Any, Any, Any, Any, dict[str, Any]]
"""The observation, state, reward, `terminated`, `truncated` and infos after an action."""


class FunctionalEnv(Protocol):
    """An environment as two pure functions, which `jax.jit` and `jax.vmap` can transform.

    Both functions describe one row, without a batch dimension. The program also steps rows without an episode, from
    states after an episode's end, and drops the results. Observations are trees of arrays (dicts for
    Dict spaces, tuples for Tuple spaces); the state is any pytree of arrays with fixed shapes and dtypes.
    `rollout_cli.testing.check_functional_env` checks an implementation. The spaces and the limit may be plain
    attributes.

    Example:
        >>> import gymnasium
        >>> class MyEnv:
        ...     observation_space = gymnasium.spaces.Box(0, 9, (1,))
        ...     action_space = gymnasium.spaces.Discrete(2)
        ...     max_episode_steps = 9
        ...
        ...     def reset(self, key):
        ...         return jax.numpy.zeros(1), 0
        ...
        ...     def step(self, key, state, action):
        ...         place = state + action
        ...         observation = jax.numpy.full(1, place, jax.numpy.float32)
        ...         return observation, place, 1.0, place >= 9, jax.numpy.bool_(False), {}
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


_ATTRIBUTES = ("observation_space", "action_space", "max_episode_steps", "reset", "step")


def missing_attributes(item: Any) -> list[str]:
    """Return the attributes of a FunctionalEnv that an object lacks. A wrapper may have them by `__getattr__`."""
    return [name for name in _ATTRIBUTES if not hasattr(item, name)]


def is_functional(item: Any) -> bool:
    """Return True if an object is a FunctionalEnv, not a class or a gymnasium environment."""
    known = isinstance(item, type | gymnasium.Env | gymnasium.vector.VectorEnv)
    return not known and not missing_attributes(item)


def check_attributes(env: FunctionalEnv) -> int | None:
    """Return the time limit of an environment; EnvLoadError if the limit or a space is invalid."""
    for name in ("observation_space", "action_space"):
        if not isinstance(space := getattr(env, name), gymnasium.Space):
            raise EnvLoadError(
                f"{name} of {type(env).__name__} is a {type(space).__name__}, expected a gymnasium.Space",
                code="env-attribute",
                hint="set the attribute to a space of gymnasium.spaces",
            )
    if env.max_episode_steps is None:
        return None
    try:
        limit = operator.index(env.max_episode_steps)
    except TypeError:
        limit = 0
    if limit <= 0:
        raise EnvLoadError(
            f"max_episode_steps of {type(env).__name__} is {env.max_episode_steps!r}, expected a positive int or None",
            code="env-attribute",
            hint="set the attribute to a whole number of steps, or None for no limit",
        )
    return limit
