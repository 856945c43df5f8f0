"""Checks for the tests of environments."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollout_cli.envs.functional.protocol import (
    FunctionalEnv,
    check_attributes,
    is_functional,
    missing_attributes,
)
from rollout_cli.episodes.spaces import SpaceRows
from rollout_cli.errors import EnvError
from rollout_cli.policies.policy import named
from rollout_cli.sources.loading import needing

OUTSIDE = "env-outside-space"
"""The code of the error for an observation outside its space, which runs record with a warning."""


def check_functional_env(env: FunctionalEnv, *, seed: int = 0, n_steps: int = 100) -> None:
    """Check that an object is a FunctionalEnv that `rollout` can run, with uniformly random actions.

    Observations, flags, rewards and infos must have the types of the spaces and of the protocol. The state is a
    pytree whose structure, shapes and dtypes stay the same. Equal keys give equal results when the functions are
    traced again, so they have no other state. Observations are in their space.

    Args:
        env: The environment.
        seed: Seed of the first of four episodes.
        n_steps: Steps to run.

    Raises:
        EnvError: The first fault that was found.
        EnvLoadError: A space or the limit is invalid.
        UsageError: JAX is not installed.

    Example:
        >>> from rollout_cli.testing import check_functional_env
        >>> check_functional_env(MyEnv())  # doctest: +SKIP
    """
    if not is_functional(env):
        missing = missing_attributes(env)
        lacks = f" (it lacks {', '.join(missing)})" if missing else ""
        raise _fault(
            f"expected a FunctionalEnv, got {named(env)}{lacks}",
            "pass an object of your class, not of gymnasium's",
        )
    limit = check_attributes(env)
    with needing("jax"):
        from rollout_cli.workers.functional.program import Program, random_act  # noqa: PLC0415 - it loads JAX
        from rollout_cli.workers.functional.types import check_step, reset_types  # noqa: PLC0415
    from rollout_cli.workers.checks import BadValueError  # noqa: PLC0415

    observations = SpaceRows(env.observation_space)
    actions = SpaceRows(env.action_space)
    act = random_act(actions)
    if act is None:
        sampled = env.action_space.sample()
        act = lambda *_: sampled  # noqa: E731

    def program() -> Program:
        return Program(env, act, actions, limit=limit, rule=None, n_steps=n_steps)

    try:
        check_step(program(), {}, reset_types(program(), observations))
    except BadValueError as error:
        raise _fault(str(error), error.hint) from error
    first, again = (_recorded(env, program(), observations, seed, n_steps) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        if not np.array_equal(one, other, equal_nan=one.dtype.kind == "f"):
            raise _fault(
                "two runs with the same keys differ",
                "compute reset and step from their arguments alone: draw random numbers from the key",
            )
    for leaf, values in zip(observations.leaves * 2, first, strict=False):
        low, high = leaf.bounds or (values, values)
        is_inside = (values >= low) & (values <= high)
        if not is_inside.all():
            raise _fault(
                f"an observation has {values[~is_inside][0]} at {leaf.name!r}, outside {leaf.space}",
                "correct the space or the observation",
                code=OUTSIDE,
            )


def _recorded(env: FunctionalEnv, program: Any, rows_of: SpaceRows, seed: int, n_steps: int) -> list[Any]:
    """Return the arrays of a block of four rows: observations, following observations, and all others."""
    import jax  # noqa: PLC0415 - only with a JAX environment

    from rollout_cli.envs.functional.rows import no_rows  # noqa: PLC0415 - it loads JAX

    seeds = np.arange(seed, seed + 4 * (n_steps + 1), dtype=np.uint32)  # An episode may end in one step.
    rows = program.start(no_rows(env, 4), np.ones(4, bool), seeds[:4])
    _, block = program.run({}, rows, np.ones(4, bool), seeds[4:], np.int32(4 * n_steps))
    block = jax.tree.map(np.asarray, block)
    observations = (*rows_of.columns(block.observations), *rows_of.columns(block.last))
    return [*observations, *jax.tree.leaves((block.steps, block.is_over))]


def _fault(message: str, hint: str, code: str = "env-functional") -> EnvError:
    return EnvError(message, code=code, hint=hint)
