"""The rows of a FunctionalEnv: how an episode starts from its seed, and how a row takes a step.

The keys of an episode follow from its seed alone, so an episode is the same in every row and program:

    key, reset_key = jax.random.split(jax.random.key(seed))           # at the reset
    key, action_key, step_key = jax.random.split(key, 3)              # at every step
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rollout_cli.envs.functional.protocol import FunctionalEnv
from rollout_cli.episodes.spaces import Tree

Act = Callable[[Any, Tree], tuple[Tree, dict[str, Any]]]
"""A function from a key and an observation to an action and infos."""


_OPTIONS = {"xla_cpu_experimental_ynn_fusion_type": ""} if jax.__version__ == "0.10.2" else None
"""On CPUs, jax 0.10.2 returns wrong sums of products of large arrays (jax issue 39103), unless this is empty."""


def compiled(function: Callable[..., Any]) -> Any:
    """Return a function that XLA compiles at its first call, or when its `lower(...).compile()` is called."""
    return jax.jit(function, compiler_options=_OPTIONS)


class Row(NamedTuple):
    """A row between two steps; with a leading axis, n rows."""

    key: Any
    observation: Tree
    state: Any
    n_steps: Any  # Steps of the running episode, int32.


class Step(NamedTuple):
    """The recorded values of a step, without observations."""

    action: Tree
    reward: Any
    terminated: Any
    truncated: Any
    env_infos: dict[str, Any]
    agent_infos: dict[str, Any]


def first_row(env: FunctionalEnv, seed: Any) -> Row:
    """Return a row that starts the episode of a seed, uint32."""
    key, reset_key = jax.random.split(jax.random.key(seed))
    observation, state = env.reset(reset_key)
    row: Row = jax.tree.map(_typed, Row(key, observation, state, jnp.int32(0)))
    return row


def no_rows(env: FunctionalEnv, count: int) -> Row:
    """Return rows whose episodes have not started, of the types that `first_row` returns."""
    types = jax.eval_shape(partial(first_row, env), np.uint32(0))
    rows: Row = jax.tree.map(lambda leaf: jnp.zeros((count, *leaf.shape), leaf.dtype), types)
    return rows


def next_row(env: FunctionalEnv, row: Row, act: Act, limit: int | None = None) -> tuple[Row, Step]:
    """Take one step of a row; an episode is truncated after `limit` steps."""
    key, action_key, step_key = jax.random.split(row.key, 3)
    action, agent_infos = act(action_key, row.observation)
    result = env.step(step_key, row.state, action)
    observation, state, reward, terminated, truncated, env_infos = result
    n_steps = row.n_steps + 1
    if limit is not None:
        is_late = n_steps >= limit
        truncated = jnp.where(
            is_late, is_late, truncated
        )  # Of another dtype, which is refused, if it has one.
    following = Row(key, observation, state, n_steps)
    if jax.tree.structure(following) == jax.tree.structure(row):  # Else `check_step` refuses it.
        following = jax.tree.map(_like, following, row)
    return following, Step(action, reward, terminated, truncated, env_infos, agent_infos)


def restarted(env: FunctionalEnv, rows: Row, mask: Any, seeds: Any) -> Row:
    """Return the rows, with the first row of an episode's seed, uint32 (n,), where the mask (n,) is true."""

    def select(fresh: Any, old: Any) -> Any:
        return jnp.where(mask.reshape(-1, *[1] * (fresh.ndim - 1)), fresh, old)

    selected: Row = jax.tree.map(select, jax.vmap(partial(first_row, env))(seeds), rows)
    return selected


def _typed(value: Any) -> Any:
    """Return an array with a fixed dtype: a Python number would take the dtype of what it is added to."""
    value = jnp.asarray(value)
    return value if _is_key(value) else jax.lax.convert_element_type(value, value.dtype)


def _like(value: Any, before: Any) -> Any:
    """Return an array with a fixed dtype: of a Python number, the dtype before the step."""
    value = jnp.asarray(value)
    if not _is_key(value) and value.weak_type and np.can_cast(value.dtype, before.dtype, "same_kind"):
        return jnp.asarray(value, before.dtype)
    return _typed(value)


def _is_key(value: Any) -> bool:
    return bool(jnp.issubdtype(value.dtype, jax.dtypes.prng_key))
