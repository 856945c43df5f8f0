"""NativeRows: the rows of a vector environment, and how it resets them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rollout_cli.envs.describe import AutoresetMode, autoreset_mode, time_limit_of, vector_name
from rollout_cli.envs.source import Vector
from rollout_cli.episodes.spaces import SpaceRows
from rollout_cli.errors import EnvLoadError
from rollout_cli.seeding.seeds import env_seed, env_seeds
from rollout_cli.workers.batches import leaf_batch
from rollout_cli.workers.checks import BadValueError
from rollout_cli.workers.values import NO_NUMBER

Array = npt.NDArray[Any]

_FINAL = {"final_obs", "final_info", "_final_obs", "_final_info"}


class RowError(Exception):
    """Something failed in one row; its cause says what."""

    def __init__(self, row: int) -> None:
        super().__init__(f"row {row}")
        self.row = row


class NativeRows:
    """The rows of a vector environment.

    Attributes:
        env: The vector environment.
        n_rows: How many rows it has.
        mode: How it resets rows that ended; EnvLoadError where it does not say.

    Raises:
        EnvLoadError: If it has not `n_rows` rows, or does not say how it resets them.
    """

    def __init__(self, env: Vector, n_rows: int, root: int) -> None:
        if env.num_envs != n_rows:
            hint = "give an EnvSource, or omit vectorization='native'"
            raise EnvLoadError(f"{env!r} is no gymnasium.vector.VectorEnv of {n_rows} rows", hint=hint)
        self._root = root
        # Any: its `reset` takes a seed a row, which VectorEnv's own signature does not say.
        self.env: Any = env
        self.n_rows = n_rows
        self.mode = autoreset_mode(env)
        self._spaces = SpaceRows(env.single_observation_space)
        self._takes_list = True
        self._keeps_mask = False

    @property
    def resets_itself(self) -> bool:
        """Return whether rows begin anew without being told, from no seed of their own."""
        return self.mode is not AutoresetMode.DISABLED

    def check_limit(self, limit: float) -> None:
        """Raise EnvLoadError where rows that reset themselves do so later than after `limit` steps."""
        own_limit = time_limit_of(self.env) or math.inf
        if self.resets_itself and own_limit > limit:
            limits = f"its rows itself after {own_limit:g} steps: none can be cut at {limit:g} steps"
            hint = "give the limit to the environment, as in {env_kwargs=max_episode_steps=N}, or omit it"
            raise EnvLoadError(f"{vector_name(self.env)} resets {limits}", hint=hint)

    def reset(self, rows: Array, numbers: Array, before: Any) -> tuple[Any, Array]:
        """Reset rows (k,) for the episodes `numbers` (n,), where `before` are the last observations.

        The first time `before` is None, and the rows are all; so they are where the environment resets itself
        later. Return observations and infos of the batch, and the seeds that these rows were given (k,), -1
        for none.
        """
        if self.resets_itself:
            # No two workers share a number, so none begins like another. The seed has 31 bits.
            lowest = int(numbers[numbers != NO_NUMBER].min())
            return self.env.reset(seed=env_seed(self._root, lowest) >> 1), np.full(len(rows), -1)
        mask, seeds = self.mask(rows), np.zeros(len(numbers), np.int64)
        seeds[rows] = env_seeds(self._root, np.maximum(numbers[rows], 0))
        # gymnasium's own vector environments take the mask out of the options.
        result = self._reset(mask, seeds, None if before is None else {"reset_mask": mask.copy()})
        return result, seeds[rows] if self._takes_list else seeds[rows] >> 1

    def mask(self, rows: Array) -> Array:
        """Return rows (k,) as a mask, bool (n,)."""
        mask = np.zeros(self.n_rows, bool)
        mask[rows] = True
        return mask

    def _reset(self, mask: Array, seeds: Array, options: dict[str, Any] | None) -> Any:
        if self._takes_list:
            try:
                return self.env.reset(seed=seeds.tolist(), options=options)
            except TypeError:
                if options is not None:
                    raise
            self._takes_list = False
        # ALE takes an array of 31-bit seeds, of the rows that are reset alone.
        return self.env.reset(seed=seeds[mask] >> 1, options=options)

    def check_left_alone(self, rows: Array, before: Any, after: Any) -> None:
        """Raise EnvLoadError if a reset of `rows` has changed others' observations; this is checked once."""
        others = ~self.mask(rows)
        if before is None or self._keeps_mask or not others.any():
            return
        for leaf, *batches in zip(
            self._spaces.leaves, self._spaces.columns(before), self._spaces.columns(after), strict=True
        ):
            old, new = (leaf_batch("observations", leaf, batch, self.n_rows)[others] for batch in batches)
            if old.tolist() != new.tolist() if leaf.kind == "text" else old.tobytes() != new.tobytes():
                raise EnvLoadError(
                    f"{vector_name(self.env)} resets rows that options['reset_mask'] leaves out",
                    hint="let it leave them as they are, or let it reset itself and say so in its metadata",
                )
        self._keeps_mask = True


def final_infos(infos: Mapping[Any, Any]) -> tuple[Any, Mapping[Any, Any], dict[Any, Any]]:
    """Return the last observations, their infos, and the rows' present infos, of a step in SAME_STEP mode."""
    if "final_obs" not in infos:
        hint = "in the mode SAME_STEP the infos hold 'final_obs' where episodes end"
        raise BadValueError("infos has no 'final_obs' though episodes ended", hint)
    now = {key: value for key, value in infos.items() if key not in _FINAL}
    return infos["final_obs"], infos.get("final_info") or {}, now
