"""How the rows of a VecWorker act: one policy call for all of them, or a policy of its own for each."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.spaces import Leaf, SpaceRows
from rollout_cli.policies import Policy
from rollout_cli.seeding.generators import EpisodeSeeder
from rollout_cli.seeding.seeds import derive_seed
from rollout_cli.workers.batch_infos import batch_columns
from rollout_cli.workers.checks import BadValueError, bad_action, bounds_of, clipped, frozen_copy, shown
from rollout_cli.workers.columns import ActionRecorder
from rollout_cli.workers.policy_holder import seed_method
from rollout_cli.workers.rollout_buffer import RolloutBuffer, leaf_array
from rollout_cli.workers.worker import NO_NUMBER, OnInvalidAction

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

    def seed(self, rows: Array, numbers: Array, *, anew: bool) -> None:
        """Seed the episodes that begin in rows (k,), before the environment is reset; `anew`: all rows are reset."""

    def reset(self, rows: Array, *, anew: bool) -> None:
        """Begin the episodes of rows (k,), after the environment was reset."""

    def act(self, observations: Any, numbers: Array, starts: Array, buffer: RolloutBuffer) -> Any:
        """Choose an action for each row that runs a number, record them, and return them for the environment."""


class OnePolicy:
    """One policy, called once a step with all rows; the action of a row that runs no episode means nothing.

    Args:
        policy: A policy with `get_actions`.
        env_spec: The spaces of one row.
        n_rows: n.
        root: The run's root seed.
        seeder: Seeds the generators that the policy holds, which all rows share.
        rule: What becomes of an action outside of its space.
        trusted: Whether actions need no check.
        seeds_each: Whether each episode is seeded, and not only all rows at once.
    """

    def __init__(
        self,
        policy: Policy,
        env_spec: EnvSpec,
        n_rows: int,
        *,
        root: int,
        seeder: EpisodeSeeder,
        rule: OnInvalidAction,
        trusted: bool,
        seeds_each: bool,
    ) -> None:
        self._policy, self._n_rows, self._root, self._seeder = policy, n_rows, root, seeder
        self._spaces = SpaceRows(env_spec.action_space)
        self._checks = [_BatchAction(leaf, n_rows, rule, trusted=trusted) for leaf in self._spaces.leaves]
        self._seed_rows = seed_method(policy, "seed_rows")
        self._seeds_each = seeds_each

    def seed(self, rows: Array, numbers: Array, *, anew: bool) -> None:
        """Seed these rows, or all, so that the policy learns how many there are."""
        lowest = int(numbers.min())
        if anew:
            self._seeder.begin(lowest)
        if self._seed_rows is None or not (anew or self._seeds_each):
            return
        if not self._seeds_each:
            # The rows' draws go on from one episode to the next, so they must not depend on which one is first.
            rows, numbers = np.arange(self._n_rows), lowest + np.arange(self._n_rows)
        mask, seeds = np.full(self._n_rows, anew), np.zeros(self._n_rows, np.uint64)
        mask[rows] = True
        seeds[rows] = [derive_seed(self._root, number, "policy") for number in numbers.tolist()]
        self._seed_rows(mask, seeds)

    def reset(self, rows: Array, *, anew: bool) -> None:
        """Let the policy begin in these rows, or in all."""
        mask = np.full(self._n_rows, anew)
        mask[rows] = True
        self._policy.reset(mask)

    def act(self, observations: Any, numbers: Array, starts: Array, buffer: RolloutBuffer) -> Any:
        """Call the policy once with all rows."""
        del starts
        actions, infos = self._policy.get_actions(observations)
        try:
            given = self._spaces.columns(actions)
        except (KeyError, IndexError, TypeError) as error:
            raise BadValueError(f"the actions lack {error!r}: {shown(actions)}") from error
        leaves = [check.typed(values, numbers) for check, values in zip(self._checks, given, strict=True)]
        buffer.put_actions(leaves)
        if infos or type(infos) is not dict:
            buffer.put_agent_infos(batch_columns(infos, self._n_rows))
        return self._spaces.tree([_for_env(leaf, values) for leaf, values in zip(self._spaces.leaves, leaves, strict=True)])


class _BatchAction:
    """Brings the actions of one leaf into its type, and holds them against its bounds."""

    def __init__(self, leaf: Leaf, n_rows: int, rule: OnInvalidAction, *, trusted: bool) -> None:
        self._leaf, self._rule = leaf, rule
        self._shape = (n_rows, *leaf.shape)
        self._clips = rule == "clip" and not trusted
        self._bounds = None if trusted or rule == "warn" else bounds_of(leaf)
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
        fits = array.dtype.kind in "iub" if leaf.kind == "discrete" else np.can_cast(array.dtype, leaf.dtype, "same_kind")
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


def _for_env(leaf: Leaf, values: Array) -> Any:
    """Return the actions of one leaf as gymnasium batches them: texts as a tuple, integers in their space's type."""
    if leaf.kind == "text":
        return tuple(values)
    return values.astype(leaf.space.dtype, copy=False) if leaf.kind == "discrete" else values


class PolicyEach:
    """A policy for each row, for a policy that acts on one observation at a time: each row is then a DefaultWorker's.

    Args:
        policies: One for each row, none of them shared.
        env_spec: The spaces of one row.
        root: The run's root seed.
        seeders: Seed the generators that each policy holds; empty where the rows' environments see to that.
        rule: What becomes of an action outside of its space.
    """

    def __init__(
        self,
        policies: Sequence[Policy],
        env_spec: EnvSpec,
        *,
        root: int,
        seeders: Sequence[EpisodeSeeder],
        rule: OnInvalidAction,
    ) -> None:
        self._policies, self._root, self._seeders = policies, root, seeders
        self._observations, self._actions = SpaceRows(env_spec.observation_space), SpaceRows(env_spec.action_space)
        self._recorder = ActionRecorder(env_spec.action_space, rule, trusted=False)
        space = copy.deepcopy(env_spec.action_space)  # The environment's own must not be drawn from.
        space.seed(0)
        self._resting = space.sample()

    def seed(self, rows: Array, numbers: Array, *, anew: bool) -> None:
        """Seed the policies of these rows."""
        del anew
        for row, number in zip(rows.tolist(), numbers.tolist(), strict=True):
            if self._seeders:
                self._seeders[row].begin(number)
            if (seed := seed_method(self._policies[row], "seed")) is not None:
                _in_row(row, seed, derive_seed(self._root, number, "policy"))

    def reset(self, rows: Array, *, anew: bool) -> None:
        """Let the policies of these rows begin."""
        del anew
        for row in rows.tolist():
            _in_row(row, self._policies[row].reset)

    def act(self, observations: Any, numbers: Array, starts: Array, buffer: RolloutBuffer) -> Any:
        """Ask the policy of each row that runs an episode; the others get any action."""
        seen = self._observations.split(observations)
        rows = np.flatnonzero(numbers != NO_NUMBER)
        for row in rows.tolist():
            action, info = _in_row(row, self._policies[row].get_action, seen[row])
            _in_row(row, self._recorder.record, action)
            if info:
                by_step = buffer.agent_row_infos.setdefault(int(numbers[row]), {})
                by_step[buffer.step - int(starts[row])] = frozen_copy(info)
        self._recorder.record(self._resting)
        place = np.full(len(numbers), len(rows))
        place[rows] = np.arange(len(rows))
        leaves = [column[place] for column in self._recorder.cut(len(rows) + 1)]
        buffer.put_actions(leaves)
        return self._actions.tree([_for_env(leaf, values) for leaf, values in zip(self._actions.leaves, leaves, strict=True)])


def _in_row(row: int, function: Any, *arguments: Any) -> Any:
    """Return a call's result; an exception becomes the cause of a RowError."""
    try:
        return function(*arguments)
    except Exception as error:
        raise RowError(row) from error


class GlobalDraws:
    """Sees whether code draws from the global generators, which all rows of a worker share.

    A look costs as much as many a step, so it looks at the first steps, and at one of many from then on.
    """

    _FIRST, _ONE_OF = 8, 256

    def __init__(self) -> None:
        self._steps = 0

    def is_due(self) -> bool:
        """Count a step; return whether it is one to look at."""
        self._steps += 1
        return self._steps <= self._FIRST or self._steps % self._ONE_OF == 0

    @property
    def is_early(self) -> bool:
        """Return whether this is one of the first steps, which are all looked at."""
        return self._steps <= self._FIRST

    @staticmethod
    def states() -> tuple[Any, ...]:
        """Return the states of the global generators, to compare."""
        name, keys, *rest = np.random.get_state()  # type: ignore[misc]  # The tuple, since no `legacy` is given.
        torch: Any = sys.modules.get("torch")
        default = getattr(torch, "default_generator", None)
        drawn = None if default is None else bytes(default.get_state().numpy())
        return random.getstate(), name, np.asarray(keys).tobytes(), rest, drawn
