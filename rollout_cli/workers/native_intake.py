"""NativeIntake: what a policy and a vector environment give for all rows, held against spaces and interface, recorded.

Types, shapes and lengths are seen here, for they cost the same for any number of rows. What only a look at each row
tells (actions outside of their space, nan) is left to the checks of whole chunks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rollout_cli.envs.vector_rows import VectorRows
from rollout_cli.errors import EnvError, PolicyError, UserCodeError
from rollout_cli.policies.rows import stack_samples
from rollout_cli.spaces import Leaf, flatten, space_leaves
from rollout_cli.user_code import first_line
from rollout_cli.workers.leaf_columns import BadSampleError
from rollout_cli.workers.native_errors import NativeErrors
from rollout_cli.workers.native_rules import RowClipping
from rollout_cli.workers.step_block import StepBlock
from rollout_cli.workers.step_values import BadStepError
from rollout_cli.workers.vector_infos import batch_columns, frozen_column

Array = npt.NDArray[Any]
Infos = Mapping[Any, Any]
Stepped = tuple[list[Any], Array, Array, Infos]
"""The observations' leaves in their space's types, `terminated` and `truncated` (n,) each, and infos."""

_ENV, _AGENT = 0, 1
_BOOL = np.dtype(bool)
_INFO_HINT = "infos are one dictionary: an array (n, ...) a key, and a mask `_key` (n,) where not every row has one"


class NativeIntake:
    """Checks and records one step at a time.

    Args:
        rows: The vector environment.
        block: Where steps are recorded.
        errors: Makes errors that say whose step it was.
        clipping: Moves actions to their bounds; None where they are taken as they are.
    """

    def __init__(
        self, rows: VectorRows, block: StepBlock, errors: NativeErrors, *, clipping: RowClipping | None
    ) -> None:
        self._rows, self._block, self._errors, self._clipping = rows, block, errors, clipping
        self._space = rows.env_spec.observation_space
        leaves, action_leaves = space_leaves(self._space), space_leaves(rows.env_spec.action_space)
        self._n_leaves = len(leaves)
        self._is_leaf = len(leaves) == 1 and not leaves[0].path
        # What needs no second look.
        self._seen = _array_of(leaves, rows.n_rows) if self._is_leaf else None
        self._acted = _array_of(action_leaves, rows.n_rows)
        self._shapes = [leaf.shape for leaf in leaves]
        # The first of the action's leaves, and the rewards: looked up once, for it is asked of them in each step.
        self._put_action, self._put_rewards = block.recorded[self._n_leaves].put, block.recorded[-1].put
        self._per_row = (rows.n_rows,)

    def observations(self, observations: Any) -> list[Any]:
        """Return the observations' leaves in their space's types, as policy and dataset see them.

        Raises:
            EnvError: If they are not of their space, or not one a row.
        """
        try:
            leaves = (observations,) if self._is_leaf else self._rows.leaves(observations)
        except (KeyError, IndexError, TypeError) as error:
            raise self._errors.error(EnvError, "the observation", error) from error
        return self._typed(EnvError, "the observation", 0, leaves)

    def actions(self, leaves: Sequence[Any]) -> Sequence[Any]:
        """Record actions, one value (n, *shape) a leaf, and return them in their space's types.

        Raises:
            PolicyError: If they are not of their space's type and shape, or not one a row.
        """
        if self._clipping is not None:
            leaves = self._clipping(leaves)
        if len(leaves) == 1 and type(leaves[0]) is np.ndarray and (leaves[0].shape, leaves[0].dtype) == self._acted:
            self._put_action(self._block.slot, leaves[0])
            return leaves
        typed = self._typed(PolicyError, "the action", self._n_leaves, leaves)
        self._block.put_typed(self._n_leaves, typed)
        return typed

    def stepped(self, result: Any) -> Stepped:
        """Record the rewards of what `env.step` gave, and return the rest, as policy and dataset see it.

        Raises:
            EnvError: If it is not what the interface asks for, or the observations are not of their space.
        """
        try:
            observations, rewards, terminated, truncated, infos = result
        except (TypeError, ValueError) as error:
            raise self._errors.error(EnvError, "env.step", error) from error
        try:
            self._put_rewards(self._block.slot, rewards)
            if type(terminated) is not np.ndarray or terminated.dtype is not _BOOL or terminated.shape != self._per_row:
                terminated = self._flags("terminated", terminated)
            if type(truncated) is not np.ndarray or truncated.dtype is not _BOOL or truncated.shape != self._per_row:
                truncated = self._flags("truncated", truncated)
        except BadSampleError as error:
            hint = "env.step gives one number a row: 0.0 where a step is worth nothing"
            raise self._bad_step(f"the rewards are not one number a row: {error}", hint) from error
        if type(infos) is not dict:
            self.check_infos(infos)
        # As `observations` does, for nearly all.
        if type(observations) is np.ndarray and (observations.shape, observations.dtype) == self._seen:
            return [observations], terminated, truncated, infos
        return self.observations(observations), terminated, truncated, infos

    def _flags(self, name: str, flags: Any) -> Array:
        """Return flags as bools (n,); integers 0 and 1 will do."""
        try:
            array = np.asarray(flags)
        except ValueError:
            array = np.empty(0, object)  # Of lists that differ in length numpy makes nothing.
        is_flag = array.dtype.kind == "b" or (array.dtype.kind in "iu" and bool(((array == 0) | (array == 1)).all()))
        if not is_flag or array.shape != self._per_row:
            got = (
                f"{array.dtype}{array.shape}"
                if isinstance(flags, np.ndarray)
                else f"{type(flags).__name__} {flags!r:.80}"
            )
            message = f"{name} is not one bool a row: got {got}, expected bool{self._per_row}"
            raise self._bad_step(message, f"let env.step give an array of bools for {name}, one a row")
        return array.astype(bool)

    def check_infos(self, infos: Any) -> None:
        """Check that infos are a mapping.

        Raises:
            EnvError: If they are not.
        """
        if not isinstance(infos, Mapping):
            raise self._bad_step(f"infos are a mapping, not {type(infos).__name__} {infos!r:.80}", _INFO_HINT)

    def put_env_infos(self, infos: Infos, within: Array | None = None) -> None:
        """Record what the environment told of a step, in the rows `within`, bool (n,), or all.

        Raises:
            EnvError: If it is not one value a row.
        """
        if infos:
            self._put_infos(EnvError, _ENV, infos, within)

    def put_agent_infos(self, infos: Infos) -> None:
        """Record what the policy told of its actions.

        Raises:
            PolicyError: If it is not one value a row.
        """
        if infos:
            self._put_infos(PolicyError, _AGENT, infos, None)

    def _put_infos(self, kind: type[UserCodeError], which: int, infos: Infos, within: Array | None) -> None:
        try:
            for column in batch_columns(infos, self._rows.n_rows):
                has = column.has
                if within is not None:
                    has = within if has is None else has & within
                self._block.put_info(which, frozen_column(column._replace(has=has)))
        except (AttributeError, IndexError, TypeError, ValueError) as error:
            where = "env.step" if which == _ENV else "policy.get_actions"
            told = BadStepError(f"the infos of {where} cannot be told by row: {first_line(error)}", _INFO_HINT)
            raise self._errors.error(kind, where, told) from error

    def last_observations(self, found: Any, rows: Array) -> tuple[Array, ...]:
        """Return the last observations of some rows (k,), as an environment hands them on that reset these rows.

        Raises:
            EnvError: If they are not of their space.
        """
        if not isinstance(found, np.ndarray) or found.dtype != object:
            return tuple(leaf[rows] for leaf in self.observations(found))
        try:
            stacked = stack_samples(self._space, [found[row] for row in rows.tolist()])
            leaves = tuple(np.asarray(leaf) for leaf in flatten(self._space, stacked))
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise self._errors.error(EnvError, "the last observation", error) from error
        for leaf, shape in zip(leaves, self._shapes, strict=True):
            if leaf.shape[1:] != shape:
                bad = BadSampleError(f"got the shape {leaf.shape[1:]}, expected {shape}")
                raise self._errors.error(EnvError, "the last observation", bad)
        return leaves

    def _typed(self, kind: type[UserCodeError], what: str, at: int, leaves: Sequence[Any]) -> list[Any]:
        """Return leaves of a space, counted from `at`, in its types."""
        try:
            if len(leaves) == 1:  # As nearly always.
                return [self._block.typed(at, leaves[0])]
            return [self._block.typed(number, leaf) for number, leaf in enumerate(leaves, at)]
        except (BadSampleError, TypeError) as error:
            raise self._errors.error(kind, what, error) from error

    def _bad_step(self, message: str, hint: str) -> Exception:
        return self._errors.error(EnvError, "env.step", BadStepError(message, hint))


def _array_of(leaves: Sequence[Leaf], n_rows: int) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
    """Return shape and type of what is taken as it is for a space of one leaf; None for several, and for texts."""
    if len(leaves) != 1 or leaves[0].dtype.hasobject:
        return None
    return (n_rows, *leaves[0].shape), leaves[0].dtype
