"""How the rows of a VecWorker act: one policy call for all of them, or a policy of its own for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.spaces import Leaf, SpaceRows
from rollout_cli.seeding.generators import EpisodeSeeder
from rollout_cli.seeding.seeds import derive_seed
from rollout_cli.workers.batches import RowInfos, leaf_batch
from rollout_cli.workers.checks import BadValueError, bad_action, bounds_of, clipped, frozen_copy, shown
from rollout_cli.workers.policy_holder import PolicyHolder
from rollout_cli.workers.recording import SpaceRecorder
from rollout_cli.workers.rows import NativeRows, resting_sample
from rollout_cli.workers.worker import NO_NUMBER, EpisodeRules

Array = npt.NDArray[Any]


class RowError(Exception):
    """Something failed in one row; its cause says what."""

    def __init__(self, row: int) -> None:
        super().__init__(f"row {row}")
        self.row = row


class OnePolicy:
    """One policy, called once a step with all rows; the action of a row that runs no episode means nothing.

    Attributes:
        is_row_wise: Whether an episode is the same with any number of rows.
        is_seeded: Whether the seeds of its episodes decide what it draws in each row.

    Args:
        holder: Has the policy.
        env_spec: Spaces of one row.
        rows: The rows.
        root: The run's root seed.
        rules: What becomes of an action outside of its space.
    """

    def __init__(
        self, holder: PolicyHolder, env_spec: EnvSpec, rows: NativeRows, *, root: int, rules: EpisodeRules
    ) -> None:
        self._policy, self._rows, self._root = holder.policy, rows, root
        self._spaces = SpaceRows(env_spec.action_space)
        self._rule = holder.action_rule(rules)
        self._bounds = [None if self._rule == "warn" else bounds_of(leaf) for leaf in self._spaces.leaves]
        self._seed_rows = self._policy.seed_rows
        self.is_row_wise = self._policy.row_wise
        self.is_seeded = self._seed_rows is not None

    def watch(self, seeder: EpisodeSeeder, row_seeders: Sequence[EpisodeSeeder], specs: Sequence[EnvSpec]) -> None:
        """Find the generators that policies and environments draw from.

        Args:
            seeder: Seeds those that all rows share.
            row_seeders: Each seeds those of one row.
            specs: The spaces of each row that has a policy of its own.
        """
        del specs
        self._seeder, self._row_seeders = seeder, row_seeders
        seeder.watch(policy=self._policy, env=None if self._rows.envs else self._rows.env)
        for row_seeder, env in zip(row_seeders, self._rows.envs, strict=False):
            row_seeder.watch(env=env)

    def seed(self, rows: Array, numbers: Array, *, anew: bool) -> None:
        """Seed the episodes of rows (k,), before their reset; `anew`: these are all rows, and some begin no episode."""
        lowest = int(numbers[numbers != NO_NUMBER].min())
        if anew:
            self._seeder.begin(lowest)
        for row, number in zip(rows.tolist(), numbers.tolist(), strict=True) if self._rows.envs else ():
            self._row_seeders[row].seed_found(number)
        # Of rows that reset themselves the draws go on from one episode to the next.
        if self._seed_rows is None or (self._rows.resets_itself and not anew):
            return
        if anew:
            numbers = np.where(numbers == NO_NUMBER, lowest + rows, numbers)
        mask, seeds = np.zeros(self._rows.env.num_envs, bool), np.zeros(self._rows.env.num_envs, np.uint64)
        mask[rows] = True
        seeds[rows] = [derive_seed(self._root, number, "policy") for number in numbers.tolist()]
        self._seed_rows(mask, seeds)

    def reset(self, rows: Array, *, anew: bool) -> None:
        """Begin the episodes of rows (k,), after the environment was reset."""
        if self._policy.resets:
            mask = np.full(self._rows.env.num_envs, anew)
            mask[rows] = True
            self._policy.reset(mask)

    def act(self, observations: Any, numbers: Array) -> tuple[Any, list[Array], Any]:
        """Choose an action for each row that runs a number.

        Args:
            observations: A tree of arrays (n, *shape).
            numbers: The episode of each row, int64 (n,).

        Returns:
            The actions for the environment, the same as one array (n, *shape) a leaf, and infos of the whole batch.

        Raises:
            BadValueError: If they are no actions.
            RowError: If one is outside of the space, in a row that runs an episode.
        """
        actions, infos = self._policy.get_actions(observations)
        try:
            given = self._spaces.columns(actions)
        except (KeyError, IndexError, TypeError) as error:
            raise BadValueError(f"the actions lack {error!r}: {shown(actions)}") from error
        leaves = [self._checked(*pair, numbers) for pair in zip(self._spaces.leaves, self._bounds, given, strict=True)]
        return self._for_env(leaves), leaves, infos

    def _checked(self, leaf: Leaf, bounds: tuple[Any, Any] | None, values: Any, numbers: Array) -> Array:
        if self._rule == "clip":
            values = clipped(values, leaf.space)
        array = leaf_batch("actions", leaf, values, len(numbers))
        if self._rule == "warn" or (bounds is None and leaf.kind != "text"):
            return array
        if bounds is None:
            inside = np.array([leaf.space.contains(text) for text in array])
        else:
            inside = (array >= bounds[0]) & (array <= bounds[1])
        if not inside.all():
            rows = np.flatnonzero(~inside.reshape(len(array), -1).all(axis=1) & (numbers != NO_NUMBER))
            if len(rows):
                raise RowError(int(rows[0])) from bad_action(leaf, array[rows[0]], self._rule)
        return array

    def _for_env(self, leaves: list[Array]) -> Any:
        """Return actions as gymnasium batches them: texts as a tuple, integers in their space's own type."""

        def given(leaf: Leaf, values: Array) -> Any:
            if leaf.kind == "text":
                return tuple(values)
            return values.astype(leaf.space.dtype, copy=False) if leaf.kind == "discrete" else values

        return self._spaces.tree(
            [given(leaf, values) for leaf, values in zip(self._spaces.leaves, leaves, strict=True)]
        )


class PolicyEach(OnePolicy):
    """A policy for each row, for one that acts on one observation at a time: each row is then a DefaultWorker's."""

    def __init__(
        self, holder: PolicyHolder, env_spec: EnvSpec, rows: NativeRows, *, root: int, rules: EpisodeRules
    ) -> None:
        super().__init__(holder, env_spec, rows, root=root, rules=rules)
        self.is_row_wise = self.is_seeded = True
        self._policies = holder.policies
        self._observations = SpaceRows(env_spec.observation_space)
        self._recorder = SpaceRecorder(env_spec.action_space, "the action", rules.invalid_action)
        self._resting = resting_sample(env_spec.action_space)

    def watch(self, seeder: EpisodeSeeder, row_seeders: Sequence[EpisodeSeeder], specs: Sequence[EnvSpec]) -> None:
        del seeder
        self._row_seeders = row_seeders
        # The spaces are the environment's, also where the policy holds them: as in a DefaultWorker.
        for one, policy, env in zip(row_seeders, self._policies, self._rows.envs or specs, strict=True):
            one.watch(policy=policy, env=env)

    def seed(self, rows: Array, numbers: Array, *, anew: bool) -> None:
        del anew
        for row, number in zip(rows.tolist(), numbers.tolist(), strict=True):
            if number != NO_NUMBER:
                self._row_seeders[row].begin(number)
                if (seed := self._policies[row].seed) is not None:
                    _in_row(row, partial(seed, derive_seed(self._root, number, "policy")))

    def reset(self, rows: Array, *, anew: bool) -> None:
        del anew
        for row in rows.tolist():
            _in_row(row, self._policies[row].reset)

    def act(self, observations: Any, numbers: Array) -> tuple[Any, list[Array], Any]:
        infos = RowInfos({} for _ in numbers)
        self._recorder.truncate(0)  # An action that failed may have left some of its leaves.
        for row, observation in enumerate(self._observations.split(observations)):
            if numbers[row] == NO_NUMBER:
                self._recorder.record(self._resting)
            else:
                infos[row] = _in_row(row, partial(self._act, row, observation))
        leaves = list(self._recorder.cut(len(numbers)))
        return self._for_env(leaves), leaves, infos

    def _act(self, row: int, observation: Any) -> dict[Any, Any]:
        action, info = self._policies[row].get_action(observation)
        self._recorder.record(action)
        return frozen_copy(info)


def _in_row(row: int, function: Callable[[], Any]) -> Any:
    """Return a call's result; an exception becomes the cause of a RowError."""
    try:
        return function()
    except Exception as error:
        raise RowError(row) from error
