"""How all rows of a vector environment act at once: one policy call, or a policy of its own for each row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rollout_cli.errors import PolicyError
from rollout_cli.policies import Policy
from rollout_cli.policies.rows import SpaceRows, stack_infos
from rollout_cli.spaces import flatten, space_leaves
from rollout_cli.workers.seeder import EpisodeSeeder

Array = npt.NDArray[Any]
Seeds = Callable[[Array], Array]
"""Gives the policy seeds of episode numbers (k,), int64 (k,)."""


class BatchActors(Protocol):
    """Chooses actions for n rows.

    Attributes:
        hands_off: Whether it leaves observations as they are, and gives arrays that nobody else holds.
        hears_of_each: Whether it must be told of each episode that begins, before it acts in it. Where not, it is
            enough that it is told when all rows are reset.
    """

    hands_off: bool
    hears_of_each: bool

    def begin(self, rows: Array, numbers: Array) -> None:
        """Begin episodes in some rows (k,), ascending; their numbers (k,)."""

    def act(self, observations: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Return one array (n, *shape) a leaf of the action space, and infos."""


class OneForAll:
    """One policy, called once a step with all rows; a row that runs no episode acts like any other.

    Args:
        policy: A policy with `get_actions`.
        action_space: Of one row.
        n_rows: n.
        seeds: Gives the policy seeds of episode numbers.
        seeder: Seeds what the rows share.
        row_seeds: Where no seed repeats an episode: gives a seed a row, int64 (n,), for the actions that a policy
            draws in it from a number on. None where each episode has its own.
    """

    def __init__(
        self,
        policy: Policy,
        action_space: Any,
        *,
        n_rows: int,
        seeds: Seeds,
        seeder: EpisodeSeeder,
        row_seeds: Callable[[int], Array] | None = None,
    ) -> None:
        self._get_actions = policy.get_actions
        self._policy, self._space, self._n_rows = policy, action_space, n_rows
        leaves = space_leaves(action_space)
        self._is_leaf = len(leaves) == 1 and not leaves[0].path
        self.hands_off = bool(getattr(policy, "hands_off", False))
        self._begin_rows = getattr(policy, "begin_rows", None)
        self._seed_rows = getattr(policy, "seed_rows", None)
        self._seeds_of = seeds
        self._seeder = seeder
        self._row_seeds = row_seeds
        self._seeds = np.zeros(n_rows, np.int64)
        self._was_reset = False
        draws_on = self._begin_rows is not None or (
            self._seed_rows is None and not seeder.paths and not getattr(policy, "resets", True)
        )
        self.hears_of_each = row_seeds is None or not draws_on

    def begin(self, rows: Array, numbers: Array) -> None:
        """Seed and reset these rows; the first time all of them, so that the policy learns how many there are."""
        self._seeder.share(int(numbers[0]))
        if self._begin_rows is not None:
            if self._row_seeds is None:
                self._begin_rows(rows, self._seeds_of(numbers), self._n_rows)
            else:
                self._begin_rows(np.arange(self._n_rows), self._row_seeds(int(numbers[0])), self._n_rows)
            return
        mask = np.full(self._n_rows, not self._was_reset)
        mask[rows] = True
        self._was_reset = True
        if self._seed_rows is not None:
            self._seeds[rows] = self._seeds_of(numbers)
            self._seed_rows(mask, self._seeds.copy())
        self._policy.reset(mask)

    def act(self, observations: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Call the policy once with all rows."""
        actions, infos = self._get_actions(observations)
        return (actions,) if self._is_leaf else flatten(self._space, actions), infos


class OneForEach:
    """A policy for each row, for a policy that acts on one observation at a time.

    Args:
        policies: One for each row, none of them shared.
        spaces: The observation space and the action space of one row.
        seeders: One for each row, which watches its policy.
    """

    def __init__(
        self, policies: Sequence[Policy], spaces: tuple[Any, Any], *, seeders: Sequence[EpisodeSeeder]
    ) -> None:
        self.hands_off = False
        self.hears_of_each = True
        self._policies, self._seeders = policies, seeders
        self._observations, self._actions = map(SpaceRows, spaces)

    def begin(self, rows: Array, numbers: Array) -> None:
        """Seed and reset the policies of these rows."""
        for row, number in zip(rows.tolist(), numbers.tolist(), strict=True):
            policy, seeder = self._policies[row], self._seeders[row]
            seeder.begin(number)
            seed = getattr(policy, "seed", None)
            if callable(seed):
                seed(seeder.policy_seed(number))
            policy.reset()

    def act(self, observations: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Ask each row's policy."""
        seen = self._observations.take(observations)
        acts = [policy.get_action(one) for policy, one in zip(self._policies, seen, strict=True)]
        try:
            columns = self._columns([action for action, _ in acts])
        except (TypeError, ValueError, KeyError, IndexError) as error:
            hint = "make it match the action space"
            raise PolicyError(f"the policy gave an action that is none of its space: {error}", hint=hint) from error
        infos = [info for _, info in acts]
        return columns, stack_infos(infos) if any(infos) else {}

    def _columns(self, actions: Sequence[Any]) -> list[Any]:
        """Return one value (n, *shape) a leaf, in the policies' own types.

        In the leaf's type a number that this has no room for would have become another one, and a fraction a whole
        number, before anybody judged it.
        """
        rows = zip(*map(self._actions.columns, actions), strict=True)
        return [
            column if leaf.kind == "text" else np.array(column)
            for leaf, column in zip(self._actions.leaves, rows, strict=True)
        ]
