"""How the rows of a VecWorker act: one policy call for all of them, or a policy of its own for each."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.spaces import Leaf, SpaceRows
from rollout_cli.seeding.generators import EpisodeSeeder
from rollout_cli.seeding.seeds import derive_seed
from rollout_cli.workers.checks import BadValueError, bad_action, bounds_of, clipped, frozen_copy, shown
from rollout_cli.workers.policy_holder import PolicyHolder
from rollout_cli.workers.recording import SpaceRecorder
from rollout_cli.workers.rollout_buffer import RolloutBuffer, leaf_array
from rollout_cli.workers.rows import NativeRows
from rollout_cli.workers.worker import NO_NUMBER, EpisodeRules, OnInvalidAction

Array = npt.NDArray[Any]


class RowError(Exception):
    """Something failed in one row; its cause says what.

    Args:
        row: Which.
    """

    def __init__(self, row: int) -> None:
        super().__init__(f"row {row}")
        self.row = row


class RowPolicies(Protocol):
    """Chooses actions for n rows."""

    @property
    def is_row_wise(self) -> bool:
        """Return whether an episode is the same with any number of rows."""

    @property
    def unseeded(self) -> Any:
        """Return the policy whose draws for all rows no episode's seed decides; None where there is none."""

    @property
    def resets(self) -> bool:
        """Return whether `reset` must be called at the beginning of each episode."""

    def watch(self) -> None:
        """Find the generators that policies and environments draw from."""

    def seed(self, rows: Array, numbers: Array, *, anew: bool) -> None:
        """Seed the episodes that begin in rows (k,), before the environment is reset; `anew`: all rows are reset."""

    def reset(self, rows: Array, *, anew: bool) -> None:
        """Begin the episodes of rows (k,), after the environment was reset."""

    def act(self, observations: Any, numbers: Array, starts: Array, buffer: RolloutBuffer) -> tuple[Any, Any]:
        """Choose an action for each row that runs a number, and record them.

        Args:
            observations: A tree of arrays (n, *shape).
            numbers: The episode of each row, int64 (n,).
            starts: The step of the buffer that each began with, int64 (n,).
            buffer: Records the actions.

        Returns:
            The actions for the environment, and infos of the whole batch.
        """


def row_policies(
    holder: PolicyHolder, env_spec: EnvSpec, rows: NativeRows, *, root: int, seeder: EpisodeSeeder, rules: EpisodeRules
) -> RowPolicies:
    """Return how the rows act with the holder's policy.

    Args:
        holder: Has the policy, or one for each row.
        env_spec: Spaces of one row.
        rows: The rows.
        root: The run's root seed.
        seeder: Seeds the generators that all rows share.
        rules: What becomes of an action outside of its space.
    """
    if holder.policy.row_by_row:
        return _PolicyEach(holder, env_spec, rows, root=root, rules=rules)
    return _OnePolicy(holder, env_spec, rows, root=root, seeder=seeder, rules=rules)


class _OnePolicy:
    """One policy, called once a step with all rows; the action of a row that runs no episode means nothing."""

    def __init__(
        self,
        holder: PolicyHolder,
        env_spec: EnvSpec,
        rows: NativeRows,
        *,
        root: int,
        seeder: EpisodeSeeder,
        rules: EpisodeRules,
    ) -> None:
        self._policy, self._rows, self._root, self._seeder = holder.policy, rows, root, seeder
        self._spaces = SpaceRows(env_spec.action_space)
        rule = holder.action_rule(rules)
        self._checks = [_BatchAction(leaf, rows.n_rows, rule) for leaf in self._spaces.leaves]
        self._seed_rows = self._policy.seed_rows
        self._resets = self._policy.resets

    @property
    def is_row_wise(self) -> bool:
        return self._policy.row_wise

    @property
    def resets(self) -> bool:
        return self._resets

    @property
    def unseeded(self) -> Any:
        return self._policy if self._seed_rows is None else None

    def watch(self) -> None:
        self._rows.watch(None)
        self._seeder.watch(policy=self._policy, env=None if self._rows.seeders else self._rows.env)

    def seed(self, rows: Array, numbers: Array, *, anew: bool) -> None:
        if anew:
            self._seeder.begin(int(numbers.min()))
        if self._rows.seeders:
            for row, number in zip(rows.tolist(), numbers.tolist(), strict=True):
                self._rows.seeders[row].seed_found(number)
        if self._seed_rows is None or (self._rows.resets_itself and not anew):
            return
        n_rows = self._rows.n_rows
        if self._rows.resets_itself:
            # The rows' draws go on from one episode to the next: all must have a seed from the beginning.
            rows, numbers = np.arange(n_rows), int(numbers.min()) + np.arange(n_rows)
        mask, seeds = np.full(n_rows, anew), np.zeros(n_rows, np.uint64)
        mask[rows] = True
        seeds[rows] = [derive_seed(self._root, number, "policy") for number in numbers.tolist()]
        self._seed_rows(mask, seeds)

    def reset(self, rows: Array, *, anew: bool) -> None:
        if not self._resets:
            return
        mask = np.full(self._rows.n_rows, anew)  # The first time all, so that the policy learns how many there are.
        mask[rows] = True
        self._policy.reset(mask)

    def act(self, observations: Any, numbers: Array, starts: Array, buffer: RolloutBuffer) -> tuple[Any, Any]:
        del starts
        actions, infos = self._policy.get_actions(observations)
        try:
            given = self._spaces.columns(actions)
        except (KeyError, IndexError, TypeError) as error:
            raise BadValueError(f"the actions lack {error!r}: {shown(actions)}") from error
        leaves = [check.typed(values, numbers) for check, values in zip(self._checks, given, strict=True)]
        buffer.put("action", leaves)
        return _for_env(self._spaces, leaves), infos


class _BatchAction:
    """Brings the actions of one leaf into its type, and holds them against its bounds."""

    def __init__(self, leaf: Leaf, n_rows: int, rule: OnInvalidAction) -> None:
        self._leaf, self._rule = leaf, rule
        self._shape = (n_rows, *leaf.shape)
        self._clips = rule == "clip"
        self._bounds = None if rule == "warn" else bounds_of(leaf)
        self._contains = leaf.space.contains if leaf.kind == "text" and rule != "warn" else None

    def typed(self, values: Any, numbers: Array) -> Array:
        """Return the actions as an array (n, *shape) of the leaf's type.

        Raises:
            BadValueError: If they are none.
            RowError: If one is outside of the space, in a row that runs an episode.
        """
        leaf = self._leaf
        if self._clips:
            values = clipped(values, leaf.space)
        array = leaf_array(leaf, values)
        # An integer's type is no matter: a Discrete's column is wider than any.
        fits = (
            array.dtype.kind in "iub" if leaf.kind == "discrete" else np.can_cast(array.dtype, leaf.dtype, "same_kind")
        )
        if array.shape != self._shape or not fits:
            where = f" at {leaf.name!r}" if leaf.path else ""
            raise BadValueError(
                f"the actions{where} are {array.dtype}{array.shape}, expected {leaf.dtype}{self._shape} of {leaf.space}"
            )
        array = array.astype(leaf.dtype, copy=False)
        if self._bounds is not None:
            self._check(array, numbers, (array >= self._bounds[0]) & (array <= self._bounds[1]))
        elif self._contains is not None:
            self._check(array, numbers, np.array([self._contains(text) for text in array]))
        return array

    def _check(self, array: Array, numbers: Array, inside: Array) -> None:
        if inside.all():
            return
        rows = np.flatnonzero(~inside.reshape(len(array), -1).all(axis=1) & (numbers != NO_NUMBER))
        if len(rows):
            raise RowError(int(rows[0])) from bad_action(self._leaf, array[rows[0]], self._rule)


class _PolicyEach:
    """A policy for each row, for one that acts on one observation at a time: each row is then a DefaultWorker's."""

    is_row_wise = True
    unseeded = None
    resets = True

    def __init__(
        self, holder: PolicyHolder, env_spec: EnvSpec, rows: NativeRows, *, root: int, rules: EpisodeRules
    ) -> None:
        self._policies, self._rows, self._root = holder.policies, rows, root
        self._observations, self._actions = SpaceRows(env_spec.observation_space), SpaceRows(env_spec.action_space)
        self._recorder = SpaceRecorder(env_spec.action_space, "the action", rules.invalid_action)
        space = copy.deepcopy(env_spec.action_space)  # The environment's own must not be drawn from.
        space.seed(0)
        self._resting = space.sample()

    def watch(self) -> None:
        self._rows.watch(self._policies)

    def seed(self, rows: Array, numbers: Array, *, anew: bool) -> None:
        del anew
        for row, number in zip(rows.tolist(), numbers.tolist(), strict=True):
            self._rows.seeders[row].begin(number)
            if (seed := self._policies[row].seed) is not None:
                _in_row(row, partial(seed, derive_seed(self._root, number, "policy")))

    def reset(self, rows: Array, *, anew: bool) -> None:
        del anew
        for row in rows.tolist():
            _in_row(row, self._policies[row].reset)

    def act(self, observations: Any, numbers: Array, starts: Array, buffer: RolloutBuffer) -> tuple[Any, Any]:
        seen = self._observations.split(observations)
        rows = np.flatnonzero(numbers != NO_NUMBER)
        for row in rows.tolist():
            info = _in_row(row, partial(self._act, row, seen[row]))
            if info:
                by_step = buffer.row_infos["agent"].setdefault(int(numbers[row]), {})
                by_step[buffer.step - int(starts[row])] = info
        self._recorder.record(self._resting)
        place = np.full(len(numbers), len(rows))
        place[rows] = np.arange(len(rows))
        leaves = [column[place] for column in self._recorder.cut(len(rows) + 1)]
        buffer.put("action", leaves)
        return _for_env(self._actions, leaves), {}

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


def _for_env(spaces: SpaceRows, leaves: list[Array]) -> Any:
    """Return actions as gymnasium batches them: texts as a tuple, integers in their space's own type."""

    def given(leaf: Leaf, values: Array) -> Any:
        if leaf.kind == "text":
            return tuple(values)
        return values.astype(leaf.space.dtype, copy=False) if leaf.kind == "discrete" else values

    return spaces.tree([given(leaf, values) for leaf, values in zip(spaces.leaves, leaves, strict=True)])
