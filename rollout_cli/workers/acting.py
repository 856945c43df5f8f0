"""How the rows of a VecWorker act: one policy call for all of them, or a policy of its own for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rollout_cli.episode_batch import EnvSpec
from rollout_cli.policies import Policy
from rollout_cli.policies.rows import take_rows
from rollout_cli.spaces import empty_column, flatten, map_tree, space_leaves, tree_leaves, unflatten
from rollout_cli.workers.space_recorder import BadSampleError

Array = npt.NDArray[Any]
Act = tuple[Any, dict[str, Any]]
"""An action, and what the policy tells of it."""


class Actors(Protocol):
    """Chooses actions for n rows."""

    def seed(self, row: int, seed: int) -> None:
        """Seed the episode that begins in a row; before its environment is reset."""

    def begin(self, row: int) -> None:
        """Begin the episode in a row; after its environment was reset."""

    def begun(self) -> None:
        """Learn that all rows which begin before this step have begun."""

    def act(self, seen: dict[int, Any]) -> dict[int, Act]:
        """Return what each row does, from what each row sees."""


class OwnPolicies:
    """A policy for each row, for a policy that acts on one observation at a time.

    Each row is then what a DefaultWorker is, also where the policy keeps state or draws.

    Args:
        policies: One for each row, none of them shared.
    """

    def __init__(self, policies: Sequence[Policy]) -> None:
        self._policies = policies

    def seed(self, row: int, seed: int) -> None:
        """Seed the row's policy, where it can be."""
        seed_policy = getattr(self._policies[row], "seed", None)
        if callable(seed_policy):
            seed_policy(seed)

    def begin(self, row: int) -> None:
        """Reset the row's policy."""
        self._policies[row].reset()

    def begun(self) -> None:
        """Do nothing: each row has begun by itself."""

    def act(self, seen: dict[int, Any]) -> dict[int, Act]:
        """Ask each row's policy."""
        return {row: self._policies[row].get_action(observation) for row, observation in seen.items()}


class OnePolicy:
    """One policy for all rows, called once a step with all of them.

    The batch has always n rows: the low bits of a network's output change with the batch's size and with the row's
    place in it. A row that does not run repeats what it saw last (zeros before that), and its action is dropped.

    Args:
        policy: A policy with `get_actions`.
        env_spec: Its spaces.
        n_rows: How many rows there are.
    """

    def __init__(self, policy: Policy, env_spec: EnvSpec, n_rows: int) -> None:
        self._policy, self._spec, self._n_rows = policy, env_spec, n_rows
        self._seen = [empty_column(leaf, n_rows) for leaf in space_leaves(env_spec.observation_space)]
        self._seeds = np.zeros(n_rows, np.int64)
        # The first time all rows begin, so that the policy learns how many there are.
        self._to_begin = np.ones(n_rows, bool)

    def seed(self, row: int, seed: int) -> None:
        """Note the seed; all rows that begin are seeded together, before their reset."""
        self._seeds[row] = seed

    def begin(self, row: int) -> None:
        """Note that the row begins."""
        self._to_begin[row] = True

    def begun(self) -> None:
        """Seed and reset the rows that begin."""
        mask, self._to_begin = self._to_begin, np.zeros(self._n_rows, bool)
        seed_rows = getattr(self._policy, "seed_rows", None)
        if callable(seed_rows):
            seed_rows(mask.copy(), self._seeds.copy())
        self._policy.reset(mask)

    def act(self, seen: dict[int, Any]) -> dict[int, Act]:
        """Call the policy once with all rows."""
        space = self._spec.observation_space
        for row, observation in seen.items():
            for column, value in zip(self._seen, flatten(space, observation), strict=True):
                column[row] = value
        # A copy, for a policy may edit what it is given, and rows that do not run must see the same again.
        actions, infos = self._policy.get_actions(unflatten(space, [column.copy() for column in self._seen]))
        self._check_rows(actions)
        # Again a copy: an environment may keep its action, and the policy may fill the same buffer next time.
        rows = take_rows(self._spec.action_space, map_tree(np.array, actions))
        return {row: (rows[row], _info_of(infos, row)) for row in seen}

    def _check_rows(self, actions: Any) -> None:
        counts = {len(leaf) for leaf in tree_leaves(actions)}
        if counts - {self._n_rows}:
            given = " and ".join(map(str, sorted(counts)))
            raise BadSampleError(f"get_actions gave {given} for {self._n_rows} observations, expected one a row")


def _info_of(infos: dict[str, Any], row: int) -> dict[str, Any]:
    if not infos:
        return {}
    values = {key: map_tree(lambda column: column[row], value) for key, value in infos.items()}
    return {key: value for key, value in values.items() if not _is_missing(value)}


def _is_missing(value: Any) -> bool:
    """Return whether a row has no value: of a masked column, its row is masked, which for a number is one constant."""
    return value is np.ma.masked or (isinstance(value, np.ma.MaskedArray) and bool(np.all(value.mask)))
