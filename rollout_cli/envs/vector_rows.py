"""VectorRows: a native vector environment as a worker drives it, whatever its way of resetting rows is.

How rows begin anew is told apart by `metadata["autoreset_mode"]`. An environment that does not reset itself is tried
out when it is taken: which form of seeds its `reset` takes, whether a row's episode follows from its seed, and whether
the other rows are left alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode

from rollout_cli._generator_search import SPACE_GENERATOR
from rollout_cli.envs.vector_record import vector_limit, vector_name
from rollout_cli.episode_batch import EnvSpec
from rollout_cli.errors import EnvLoadError
from rollout_cli.spaces import flatten, space_leaves
from rollout_cli.user_code import first_line

Array = npt.NDArray[Any]
Reset = tuple[Any, dict[str, Any]]
SeedForm = Callable[[Array, Array], Any]
"""Makes what `reset` gets as `seed`, from a mask (n,) and one seed a row (n,)."""

_SHORT = np.int64(32)


def _one_a_row(mask: Array, seeds: Array) -> list[int]:
    del mask
    return list(seeds.tolist())


def _selected(mask: Array, seeds: Array) -> Array:
    """ALE's form: only the rows that are reset, as an array; its generators take 31 bits."""
    return np.asarray(seeds[mask] >> _SHORT)


def _none(mask: Array, seeds: Array) -> None:
    del mask, seeds


SEED_FORMS: tuple[SeedForm, ...] = (_one_a_row, _selected, _none)


class VectorRows:
    """A vector environment of n rows.

    Attributes:
        env: The vector environment.
        n_rows: n.
        mode: How it resets rows that ended.
        env_spec: The spaces of one row, and its own time limit.
        not_reproducible: Why a row's episode does not follow from its seed; empty where it does.

    Args:
        env: The vector environment.
        seed: 31 bits, for the first reset.

    Raises:
        EnvLoadError: If it does not tell its mode, or cannot reset some rows and leave others alone where it must.
        UnsupportedSpaceError: If a space has no fixed set of columns.
    """

    def __init__(self, env: Any, *, seed: int) -> None:
        self.env = env
        self.n_rows = int(env.num_envs)
        self.mode = _autoreset_mode(env)
        self.env_spec = _spec(env)
        self._takes_seeds = not _is_pool(env)
        self._form: SeedForm = _none
        self.not_reproducible = ""
        if self.mode is AutoresetMode.DISABLED:
            self._try_out(seed)
        else:
            how = "in the step after it" if self.mode is AutoresetMode.NEXT_STEP else "in the same step"
            self.not_reproducible = (
                f"the vector environment resets a row by itself when its episode ends ({how}), from no seed of its own"
            )

    def reset_all(self, seed: int) -> Reset:
        """Reset every row, from one seed of 31 bits where the environment takes one."""
        return _reset(self.env.reset(seed=seed) if self._takes_seeds else self.env.reset())

    def reset_rows(self, mask: Array, seeds: Array) -> Reset:
        """Reset the rows where `mask`, bool (n,), is true; only for an environment that does not reset itself.

        Args:
            mask: Which rows.
            seeds: One seed of 63 bits a row, int64 (n,); those of other rows mean nothing.
        """
        # Both are made anew: gymnasium's own vector environments take the mask out of the dictionary.
        return _reset(self.env.reset(seed=self._form(mask, seeds), options={"reset_mask": mask.copy()}))

    def given_seeds(self, seeds: Array) -> Array:
        """Return what the environment is really given for these seeds; -1 where it is given none."""
        if self._form is _one_a_row:
            return seeds
        return seeds >> _SHORT if self._form is _selected else np.full_like(seeds, -1)

    def leaves(self, observations: Any) -> tuple[Any, ...]:
        """Return one array (n, *shape) a leaf of the observation space."""
        return flatten(self.env_spec.observation_space, observations)

    # -- trying it out ---------------------------------------------------------------------------------------------

    def _try_out(self, seed: int) -> None:
        """Find the form of seeds that works, and what comes of it."""
        failures = []
        for form in SEED_FORMS:
            self._form = form
            try:
                alike, alone = self._repeats(seed)
            except Exception as error:  # noqa: BLE001  What does not take a form of seeds may say so in any way.
                failures.append(first_line(error))
                continue
            if not alone:
                raise EnvLoadError(
                    f"{vector_name(self.env)} resets rows that options['reset_mask'] leaves out",
                    hint="let it leave them as they are, or let it reset itself and say so in its metadata",
                )
            if form is _none or not alike:
                self.not_reproducible = "the vector environment's rows cannot be seeded one by one"
            return
        raise EnvLoadError(
            f"{vector_name(self.env)} cannot reset some of its rows: {failures[0]}",
            hint="where autoreset_mode is DISABLED, reset must take a seed a row and options['reset_mask']",
        )

    def _repeats(self, seed: int) -> tuple[bool, bool]:
        """Reset all rows, step, and reset row 0 alone; return whether it begins alike, and the others stayed."""
        everyone, first = np.ones(self.n_rows, bool), np.arange(self.n_rows) == 0
        seeds = (np.int64(seed) << _SHORT) + np.arange(self.n_rows, dtype=np.int64) * 7919
        began = self._bits(self._first_reset(everyone, seeds))
        actions = copy.deepcopy(self.env.action_space)
        actions.seed(0)
        stepped = self._bits(self.env.step(actions.sample())[0])
        again = self._bits(self.reset_rows(first, seeds)[0])
        return again[0] == began[0], again[1:] == stepped[1:]

    def _first_reset(self, everyone: Array, seeds: Array) -> Any:
        # The first one is whole: no row can be left as it is before.
        return _reset(self.env.reset(seed=self._form(everyone, seeds)))[0]

    def _bits(self, observations: Any) -> list[tuple[bytes, ...]]:
        columns = [np.asarray(column) for column in self.leaves(observations)]
        return [tuple(column[row].tobytes() for column in columns) for row in range(self.n_rows)]


def _reset(result: Any) -> Reset:
    """Return (observations, infos); a pool may be built to give no infos."""
    return result if isinstance(result, tuple) and len(result) == 2 else (result, {})  # noqa: PLR2004


def _is_pool(env: Any) -> bool:
    """Return whether it is an EnvPool, which is seeded when it is built and warns of any later seed."""
    return all(hasattr(env, verb) for verb in ("async_reset", "send", "recv", "config"))


def _autoreset_mode(env: Any) -> AutoresetMode:
    told = getattr(env, "metadata", {}).get("autoreset_mode")
    if told is None and _is_pool(env):
        return AutoresetMode.NEXT_STEP  # As all its versions do; the older ones do not say so.
    try:
        return AutoresetMode(told)
    except ValueError as error:
        raise EnvLoadError(
            f"{vector_name(env)} does not tell how it resets rows: metadata['autoreset_mode'] is {told!r}",
            hint="set it to one of gymnasium.vector.AutoresetMode: DISABLED, NEXT_STEP or SAME_STEP",
        ) from error


def _spec(env: Any) -> EnvSpec:
    # An older pool has no names for the spaces of one row: its own are those.
    observation_space = getattr(env, "single_observation_space", None) or env.observation_space
    action_space = getattr(env, "single_action_space", None) or env.action_space
    for space in (observation_space, action_space):
        if not isinstance(space, gymnasium.Space):
            raise EnvLoadError(f"{vector_name(env)} has no gymnasium space, but a {type(space).__name__}")
        space_leaves(space)
    return EnvSpec(_at_rest(observation_space), _at_rest(action_space), vector_limit(env))


def _at_rest(space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
    """Return a copy that never drew: making a batched space of one wakes its generator, and nobody draws from it."""
    resting = copy.deepcopy(space)
    waiting = [resting]
    while waiting:
        part: Any = waiting.pop()
        vars(part)[SPACE_GENERATOR] = None
        children = getattr(part, "spaces", ())
        waiting += children.values() if isinstance(children, Mapping) else children
    return resting
