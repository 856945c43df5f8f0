"""How the rows of a VecWorker act: one policy call for all of them, or a policy of its own for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.spaces import Leaf, SpaceRows
from rollout_cli.seeding.generators import EpisodeSeeder
from rollout_cli.seeding.seeds import derive_seed
from rollout_cli.workers.batches import RowInfos, leaf_batch
from rollout_cli.workers.checks import BadValueError, bad_action, bounds_of, clipped, frozen_copy, shown
from rollout_cli.workers.policy_holder import PolicyHolder, masks_of
from rollout_cli.workers.recording import SpaceRecorder
from rollout_cli.workers.rows import RowError, Rows, resting_sample
from rollout_cli.workers.worker import NO_NUMBER, EpisodeRules

Array = npt.NDArray[Any]


class OnePolicy:
    """One policy, called once a step with all rows; the action of a row that runs no episode means nothing.

    Attributes:
        is_row_wise: Whether an episode is the same with any number of rows.
    """

    def __init__(self, holder: PolicyHolder, env_spec: EnvSpec, rows: Rows, root: int, rules: EpisodeRules) -> None:
        self._policy, self._rows, self._root = holder.policy, rows, root
        self._spaces = SpaceRows(env_spec.action_space)
        self._rule = holder.action_rule(rules)
        self._bounds = [None if self._rule == "warn" else bounds_of(leaf) for leaf in self._spaces.leaves]
        self.is_row_wise = self._policy.row_wise

    def watch(self, seeder: EpisodeSeeder, row_seeders: Sequence[EpisodeSeeder], row_specs: Sequence[EnvSpec]) -> None:
        """Let `seeder` find the generators that all rows share, and the others those of one row each."""
        del row_specs
        self._seeder, self._row_seeders = seeder, row_seeders
        seeder.watch(policy=self._policy, env=None if self._rows.envs else self._rows.env)
        for row_seeder, env in zip(row_seeders, self._rows.envs, strict=False):
            row_seeder.watch(env=env)

    def seed(self, rows: Array, numbers: Array, *, anew: bool) -> None:
        """Seed the episodes of rows (k,), before their reset; `anew`: these are all rows, and some begin no episode."""
        lowest = int(numbers[numbers != NO_NUMBER].min())
        if anew:
            self._seeder.begin(lowest)
            numbers = np.where(numbers == NO_NUMBER, lowest + rows, numbers)
        for row, number in zip(rows.tolist(), numbers.tolist(), strict=True) if self._rows.envs else ():
            self._row_seeders[row].seed_found(number)
        # Of rows that reset themselves the draws go on from one episode to the next.
        if self._policy.seed_rows is not None and (anew or not self._rows.resets_itself):
            seeds = np.zeros(self._rows.n_rows, np.uint64)
            seeds[rows] = [derive_seed(self._root, number, "policy") for number in numbers.tolist()]
            self._policy.seed_rows(self._mask(rows), seeds)

    def reset(self, rows: Array) -> None:
        """Begin the episodes of rows (k,), after the environment was reset; the first time, those of all rows."""
        if self._policy.resets:
            self._policy.reset(self._mask(rows))

    def _mask(self, rows: Array) -> Array:
        mask = np.zeros(self._rows.n_rows, bool)
        mask[rows] = True
        return mask

    def act(self, observations: Any, numbers: Array) -> tuple[Any, list[Array], Any]:
        """Choose actions for a tree of arrays (n, *shape), where rows run the numbers int64 (n,).

        Return the actions for the environment, the same as one array (n, *shape) a leaf, and infos of the whole batch.
        An action outside of the space, in a row that runs an episode, raises RowError.
        """
        self._policy.masks = self._masks(numbers) if self._policy.takes_masks else None
        actions, infos = self._policy.get_actions(observations)
        try:
            given = self._spaces.columns(actions)
        except (KeyError, IndexError, TypeError) as error:
            raise BadValueError(f"the actions lack {error!r}: {shown(actions)}") from error
        leaves = [self._checked(*one, numbers) for one in zip(self._spaces.leaves, self._bounds, given, strict=True)]
        return self._for_env(leaves), leaves, infos

    def _masks(self, numbers: Array) -> Array:
        """Return the rows' action masks (n, ...), all true for a row that rests: it is left alone."""
        masks = {row: masks_of(self._rows.envs[row]) for row in np.flatnonzero(numbers != NO_NUMBER).tolist()}
        resting = np.ones_like(next(iter(masks.values())))
        return np.stack([masks.get(row, resting) for row in range(len(numbers))])

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
            (leaf.kind, leaf.space.dtype, values) for leaf, values in zip(self._spaces.leaves, leaves, strict=True)
        ]
        given = [tuple(values) if kind == "text" else values.astype(dtype, copy=False) for kind, dtype, values in pairs]
        return self._spaces.tree(given)


class PolicyEach(OnePolicy):
    """A policy for each row, for one that acts on one observation at a time: each row is then a DefaultWorker's."""

    def __init__(self, holder: PolicyHolder, env_spec: EnvSpec, rows: Rows, root: int, rules: EpisodeRules) -> None:
        super().__init__(holder, env_spec, rows, root, rules)
        self.is_row_wise = True
        self._policies = holder.policies
        self._observations = SpaceRows(env_spec.observation_space)
        self._recorder = SpaceRecorder(env_spec.action_space, "the action", rules.invalid_action)
        self._resting = resting_sample(env_spec.action_space)

    def watch(self, seeder: EpisodeSeeder, row_seeders: Sequence[EpisodeSeeder], row_specs: Sequence[EnvSpec]) -> None:
        del seeder
        self._row_seeders = row_seeders
        # The spaces are the environment's, also where the policy holds them: as in a DefaultWorker.
        for one, policy, env in zip(row_seeders, self._policies, self._rows.envs or row_specs, strict=True):
            one.watch(policy=policy, env=env)

    def seed(self, rows: Array, numbers: Array, *, anew: bool) -> None:
        del anew
        for row, number in zip(rows.tolist(), numbers.tolist(), strict=True):
            if number != NO_NUMBER:
                self._row_seeders[row].begin(number)
                if (seed := self._policies[row].seed) is not None:
                    try:
                        seed(derive_seed(self._root, number, "policy"))
                    except Exception as error:
                        raise RowError(row) from error

    def reset(self, rows: Array) -> None:
        for row in rows.tolist():
            try:
                self._policies[row].reset()
            except Exception as error:
                raise RowError(row) from error

    def act(self, observations: Any, numbers: Array) -> tuple[Any, list[Array], Any]:
        infos = RowInfos({} for _ in numbers)
        self._recorder.truncate(0)  # An action that failed may have left some of its leaves.
        for row, observation in enumerate(self._observations.split(observations)):
            if numbers[row] == NO_NUMBER:
                self._recorder.record(self._resting)
                continue
            try:
                if self._policies[row].takes_masks:
                    self._policies[row].masks = masks_of(self._rows.envs[row])
                action, info = self._policies[row].get_action(observation)
                self._recorder.record(action)
                infos[row] = frozen_copy(info)
            except Exception as error:
                raise RowError(row) from error
        leaves = list(self._recorder.cut(len(numbers)))
        return self._for_env(leaves), leaves, infos
