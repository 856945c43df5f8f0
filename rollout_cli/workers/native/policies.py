"""NativePolicy: how the rows of a vector environment act, with one policy call for all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rollout_cli.episodes.spaces import Leaf, SpaceRows
from rollout_cli.seeding.seeds import derive_seed
from rollout_cli.workers.batches import leaf_batch
from rollout_cli.workers.checks import BadValueError, bad_action, bounds_of, clipped, shown
from rollout_cli.workers.native.rows import NativeRows, RowError
from rollout_cli.workers.values import NO_NUMBER
from rollout_cli.workers.worker import Setting

Array = npt.NDArray[Any]


class NativePolicy:
    """One policy, called once a step with all rows; actions of rows that run no episode mean nothing."""

    def __init__(self, setting: Setting, rows: NativeRows) -> None:
        self._root, self._seeder, self._rule = setting.root, setting.seeders[-1], setting.rule
        self._policy, self._rows = setting.policy, rows
        self._spaces = SpaceRows(setting.worker.env_spec.action_space)
        self._bounds = [None if self._rule == "warn" else bounds_of(leaf) for leaf in self._spaces.leaves]

    def watch(self) -> None:
        """Search for generators, after a build, an update, or the first reset."""
        self._seeder.watch(policy=self._policy, env=self._rows.env)

    def seed(self, rows: Array, numbers: Array, *, anew: bool) -> None:
        """Seed episodes of rows (k,) before their reset; `anew`: these are all rows, and some begin none."""
        if self._rows.resets_itself and not anew:
            return  # The draws go on from one episode to the next.
        lowest = int(numbers[numbers != NO_NUMBER].min())
        if anew:
            self._seeder.begin(lowest)
            numbers = np.where(numbers == NO_NUMBER, lowest + rows, numbers)
        if self._policy.seed_rows is not None:
            seeds = np.zeros(self._rows.n_rows, np.uint64)
            seeds[rows] = [derive_seed(self._root, number, "policy") for number in numbers.tolist()]
            self._policy.seed_rows(self._rows.mask(rows), seeds)

    def reset(self, rows: Array) -> None:
        """Begin the episodes of rows (k,), after the environment's reset; the first time, of all rows."""
        if self._policy.resets:
            self._policy.reset(self._rows.mask(rows))

    def act(self, observations: Any, numbers: Array) -> tuple[Any, list[Array], Any]:
        """Choose actions for a tree of arrays (n, *shape), where rows run the numbers int64 (n,).

        Return the actions for the environment, the same as one array (n, *shape) a leaf, and infos of the
        whole batch. An action outside of the space, in a row that runs an episode, raises RowError.
        """
        actions, infos = self._policy.get_actions(observations)
        try:
            given = self._spaces.columns(actions)
        except (KeyError, IndexError, TypeError) as error:
            raise BadValueError(f"the actions lack {error!r}: {shown(actions)}") from error
        columns = zip(self._spaces.leaves, self._bounds, given, strict=True)
        leaves = [self._checked(leaf, bounds, values, numbers) for leaf, bounds, values in columns]
        return self._for_env(leaves), leaves, infos

    def _checked(self, leaf: Leaf, bounds: tuple[Any, Any] | None, values: Any, numbers: Array) -> Array:
        if self._rule == "clip":
            values = clipped(values, leaf.space)
        array = leaf_batch("actions", leaf, values, len(numbers))
        if bounds is not None:
            inside = (array >= bounds[0]) & (array <= bounds[1])
        elif leaf.kind == "text" and self._rule != "warn":
            inside = np.array([leaf.space.contains(text) for text in array])
        else:
            return array
        if not inside.all():
            rows = np.flatnonzero(~inside.reshape(len(array), -1).all(axis=1) & (numbers != NO_NUMBER))
            if len(rows):
                raise RowError(int(rows[0])) from bad_action(leaf, array[rows[0]], self._rule)
        return array

    def _for_env(self, leaves: list[Array]) -> Any:
        """Return actions as gymnasium batches them: texts as a tuple, integers in their space's own type."""
        pairs = [
            (leaf.kind, leaf.space.dtype, values)
            for leaf, values in zip(self._spaces.leaves, leaves, strict=True)
        ]
        given = [
            tuple(values) if kind == "text" else values.astype(dtype, copy=False)
            for kind, dtype, values in pairs
        ]
        return self._spaces.tree(given)
