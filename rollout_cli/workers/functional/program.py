"""Program, the compiled functions of the functional engine: a block of steps in one scan, with resets inside."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rollout_cli.envs.functional.protocol import FunctionalEnv
from rollout_cli.envs.functional.rows import Row, Step, compiled, first_row, next_row, restarted
from rollout_cli.episodes.spaces import Leaf, SpaceRows, Tree

LANES = 16
"""The number of rows is a multiple of this: XLA rounds rows that do not fill a vector differently."""

JaxAct = Callable[[Any, Tree, Any], Any]
"""A function from a key, an observation and parameters to an action, or to a pair (action, infos)."""


class Block(NamedTuple):
    """The steps of a block, arrays (T, n, …)."""

    observations: Tree
    steps: Step
    last: Tree  # The observations after the steps, before a reset.
    is_over: Any  # True in the last step of an episode.
    is_valid: Any  # False if a row with an episode has an action outside its space.


class Program:
    """The functions of one environment and one policy; they compile when they are first called.

    Args:
        env: The environment.
        act: The policy's function.
        actions: The action space.
        limit: Steps after which an episode is truncated; None for no limit.
        rule: Handling of invalid actions; None if they are valid by construction.
        n_steps: Steps of a block.
    """

    def __init__(
        self,
        env: FunctionalEnv,
        act: JaxAct,
        actions: SpaceRows,
        *,
        limit: int | None,
        rule: str | None,
        n_steps: int,
    ) -> None:
        self._env = env
        self._act = act
        self._actions = actions
        self._limit = limit
        self._rule = rule
        self._n_steps = n_steps
        self.start = compiled(partial(restarted, env))
        self.run = compiled(self._run)

    def act(self, params: Any, key: Any, observation: Tree) -> tuple[Tree, dict[str, Any]]:
        """Return the policy's action and infos for one row."""
        action = result = self._act(key, observation, params)
        infos: dict[str, Any] = {}
        if type(result) is tuple and len(result) == 2 and isinstance(result[1], dict):  # noqa: PLR2004
            action, infos = result
        return action, infos

    def first(self, seed: Any) -> Row:
        """Return a row that starts the episode of a seed."""
        return first_row(self._env, seed)

    def next(self, params: Any, row: Row) -> tuple[Row, Step]:
        """Take one step of a row.

        With the rule `clip`, the action is clipped to its bounds. Floats get the dtype of the space, so that the
        environment gets what is recorded.
        """

        def act(key: Any, observation: Tree) -> tuple[Tree, dict[str, Any]]:
            action, infos = self.act(params, key, observation)
            columns = zip(self._actions.leaves, self._actions.columns(action), strict=True)
            is_clipped = self._rule == "clip"
            return self._actions.tree([_typed(*column, is_clipped=is_clipped) for column in columns]), infos

        return next_row(self._env, row, act, self._limit)

    def _run(self, params: Any, rows: Row, is_running: Any, seeds: Any, n_seeds: Any) -> tuple[Row, Block]:
        """Run a block. A row whose episode ends starts the next of the `seeds` (K,), up to `n_seeds`, or rests."""

        def step(carry: Any, _: None) -> tuple[Any, Block]:
            rows, is_running, n_started = carry
            following, steps = jax.vmap(partial(self.next, params))(rows)
            is_over = is_running & (steps.terminated | steps.truncated)
            is_valid = ~is_running | self._is_inside(steps.action)
            order = n_started + jnp.cumsum(is_over, dtype=jnp.int32) - 1
            starts = is_over & (order < n_seeds)

            after = self._restart(following, starts, seeds, n_started)
            block = Block(rows.observation, steps, following.observation, is_over, is_valid)
            return (after, is_running & (starts | ~is_over), n_started + is_over.sum(dtype=jnp.int32)), block

        carry = (rows, is_running, jnp.int32(0))
        (rows, _, _), block = jax.lax.scan(step, carry, None, self._n_steps)
        return rows, block

    def _restart(self, rows: Row, starts: Any, seeds: Any, n_started: Any) -> Row:
        """Start the next of the `seeds`, from `n_started` on, in the rows of a mask (n,); a few in each pass."""
        ranks = jnp.cumsum(starts, dtype=jnp.int32)
        batch = jnp.arange(-(-len(starts) // (16 * LANES)) * LANES, dtype=jnp.int32)

        def with_next(carry: Any) -> Any:
            rows, n_done = carry
            # Indices of the next rows to restart; n if none is left.
            free_rows = jnp.searchsorted(ranks, n_done + batch + 1)
            fresh = jax.vmap(self.first)(seeds[jnp.minimum(n_started + n_done + batch, len(seeds) - 1)])
            rows = jax.tree.map(lambda old, new: old.at[free_rows].set(new, mode="drop"), rows, fresh)
            return rows, n_done + len(batch)

        rows, _ = jax.lax.while_loop(lambda carry: carry[1] < ranks[-1], with_next, (rows, jnp.int32(0)))
        return rows

    def _is_inside(self, actions: Tree) -> Any:
        """Return a mask (n,) of the rows with a valid action, or True if actions are not checked."""
        inside: Any = True
        if self._rule is None:
            return inside
        for leaf, values in zip(self._actions.leaves, self._actions.columns(actions), strict=True):
            if leaf.bounds is not None:
                low, high = _bounds(leaf, values)
                is_inside = (values >= low) & (values <= high)
                inside &= is_inside.reshape(len(values), -1).all(axis=1)
        return inside


def _typed(leaf: Leaf, value: Any, *, is_clipped: bool) -> Any:
    if is_clipped and leaf.kind == "box" and leaf.bounds is not None:
        value = jnp.clip(value, *_bounds(leaf, value))
    if leaf.dtype.kind == "f" and jnp.issubdtype(jnp.result_type(value), jnp.floating):
        return jnp.asarray(value, jax.dtypes.canonicalize_dtype(leaf.dtype))
    return value


def _bounds(leaf: Leaf, value: Any) -> Any:
    """Return the bounds of a leaf; those of integers are cut to the range of the value's dtype, which may be int32."""
    dtype = jnp.result_type(value)
    if leaf.dtype.kind == "f" or not jnp.issubdtype(dtype, jnp.integer):
        return leaf.bounds
    limits = jnp.iinfo(dtype)
    return [np.clip(bound, limits.min, limits.max) for bound in leaf.bounds or ()]


def random_act(actions: SpaceRows) -> JaxAct | None:
    """Return the function that samples actions uniformly; None if a leaf is unbounded, too wide or has strings."""
    samplers = [_sampler(leaf) for leaf in actions.leaves]
    if None in samplers:
        return None

    def act(key: Any, observation: Tree, params: Any) -> Tree:  # noqa: ARG001
        keys = [key] if len(samplers) == 1 else jax.random.split(key, len(samplers))
        return actions.tree([sample(key) for sample, key in zip(samplers, keys, strict=True) if sample])

    return act


_WIDE = 1 << 31
"""The integers that JAX samples without 64-bit types are between minus this and this."""

_HALF = 16
"""Integers of at most this many bits are sampled from the high half of a product of 32-bit words."""


def _sampler(leaf: Leaf) -> Callable[[Any], Any] | None:
    """Return the function from a key to a uniform sample of a leaf; None as in `random_act`."""
    if leaf.bounds is None:
        return None
    low, high = (np.broadcast_to(bound, leaf.shape) for bound in leaf.bounds)
    if leaf.dtype.kind == "f":
        if not (np.isfinite(low) & np.isfinite(high)).all():
            return None
        dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
        return lambda key: jax.random.uniform(key, leaf.shape, dtype, low, high)
    if high.size and not (int(low.min()) >= -_WIDE and int(high.max()) < _WIDE - 1):
        return None
    spans = high.astype(np.int64) - low.astype(np.int64) + 1
    if spans.size and spans.max() > 1 << _HALF:
        return lambda key: jax.random.randint(key, leaf.shape, low, spans + low)
    factor = spans.astype(np.uint32)

    def sample(key: Any) -> Any:
        # The high word of bits * span; `randint` samples four times as many bits.
        bits = jax.random.bits(key, leaf.shape, jnp.uint32)
        carry = ((bits & 0xFFFF) * factor) >> _HALF
        dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
        return jnp.asarray((((bits >> _HALF) * factor + carry) >> _HALF) + low, dtype)

    return sample
