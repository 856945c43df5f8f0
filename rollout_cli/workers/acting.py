"""How the rows of a VecWorker act: one policy call for all of them, or a policy of its own for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rollout_cli.episode_batch import EnvSpec
from rollout_cli.errors import PolicyError
from rollout_cli.policies import Policy
from rollout_cli.policies.rows import SpaceRows
from rollout_cli.spaces import map_tree, tree_leaves
from rollout_cli.workers.env_slot import EnvSlot, called
from rollout_cli.workers.leaf_columns import BadSampleError
from rollout_cli.workers.seen_rows import Seen, SeenBatch, SeenBytes, SeenColumns, SeenSamples
from rollout_cli.workers.turns import SharedDraws

Array = npt.NDArray[Any]

Acts = tuple[Sequence[Any], Sequence[Mapping[Any, Any]]]
"""An action for each row asked for, and what the policy tells of each; the latter is empty where it tells nothing."""


class Actors(Protocol):
    """Chooses actions for n rows; what the policy raises becomes a PolicyError that names the row's episode.

    Attributes:
        seen: What each row saw last; whoever steps the rows puts it in.
    """

    seen: Seen

    def seed(self, row: int, seed: int) -> None:
        """Seed the episode that begins in a row; before its environment is reset."""

    def begin(self, row: int) -> None:
        """Begin the episode in a row; after its environment was reset."""

    def begun(self, row: int) -> None:
        """Learn that all rows which begin before this step have begun; `row` is the first of them."""

    def act(self, rows: Sequence[int]) -> Acts:
        """Return what these rows, ascending, do."""


class OwnPolicies:
    """A policy for each row, for a policy that acts on one observation at a time.

    Each row is then what a DefaultWorker is, also where the policy keeps state or draws.

    Args:
        policies: One for each row, none of them shared.
        slots: The rows.
    """

    def __init__(self, policies: Sequence[Policy], slots: Sequence[EnvSlot]) -> None:
        self._samples = SeenSamples(len(slots))
        self.seen: Seen = self._samples
        self._policies, self._slots = policies, slots

    def seed(self, row: int, seed: int) -> None:
        """Seed the row's policy, where it can be."""
        seed_policy = getattr(self._policies[row], "seed", None)
        if callable(seed_policy):
            called(self._slots[row], PolicyError, "policy.seed", lambda: seed_policy(seed))

    def begin(self, row: int) -> None:
        """Reset the row's policy."""
        called(self._slots[row], PolicyError, "policy.reset", self._policies[row].reset)

    def begun(self, row: int) -> None:
        """Do nothing: each row has begun by itself."""

    def act(self, rows: Sequence[int]) -> Acts:
        """Ask each row's policy."""
        acts = [self._act(row) for row in rows]
        infos = [info for _, info in acts]
        return [action for action, _ in acts], infos if any(infos) else ()

    def _act(self, row: int) -> tuple[Any, Mapping[Any, Any]]:
        slot, get_action = self._slots[row], self._policies[row].get_action
        with slot.turn:
            action, info = called(slot, PolicyError, "policy.get_action", lambda: get_action(self._samples.latest[row]))
        return action, info


class OnePolicy:
    """One policy for all rows, called once a step with all of them.

    The batch has always n rows: the low bits of a network's output change with the batch's size and with the row's
    place in it. A row that does not run repeats what it saw last (zeros before that), and its action is dropped.

    Args:
        policy: A policy with `get_actions`.
        slots: The rows.
        env_spec: Their spaces.
        draws: Sees what the policy draws from.
    """

    def __init__(self, policy: Policy, slots: Sequence[EnvSlot], env_spec: EnvSpec, draws: SharedDraws) -> None:
        kind = SeenColumns if slots[0].recorder.plain_dtype is None else SeenBytes
        self._batch: SeenBatch = kind(env_spec.observation_space, len(slots))
        self.seen: Seen = self._batch
        self._slots, self._n_rows, self._draws = slots, len(slots), draws
        self._actions = SpaceRows(env_spec.action_space)
        self._policy, self._get_actions = policy, policy.get_actions
        seed_rows = getattr(policy, "seed_rows", None)
        self._seed_rows: Callable[[Array, Array], Any] | None = seed_rows if callable(seed_rows) else None
        self._hands_off = bool(getattr(policy, "hands_off", False))
        self._seeds = np.zeros(self._n_rows, np.int64)
        # The first time all rows begin, so that the policy learns how many there are.
        self._to_begin = np.ones(self._n_rows, bool)

    def seed(self, row: int, seed: int) -> None:
        """Note the seed; all rows that begin are seeded together, before their reset."""
        self._seeds[row] = seed

    def begin(self, row: int) -> None:
        """Note that the row begins."""
        self._to_begin[row] = True

    def begun(self, row: int) -> None:
        """Seed and reset the rows that begin."""
        mask, self._to_begin = self._to_begin, np.zeros(self._n_rows, bool)
        called(self._slots[row], PolicyError, "policy.reset", partial(self._begin_masked, mask))

    def _begin_masked(self, mask: Array) -> None:
        if self._seed_rows is not None:
            self._seed_rows(mask.copy(), self._seeds.copy())
        self._policy.reset(mask)

    def act(self, rows: Sequence[int]) -> Acts:
        """Call the policy once with all rows."""
        try:
            with self._draws:
                return self._act(rows)
        except Exception as error:
            slot, of_any_row = self._slots[rows[0]], len(rows) > 1
            raise slot.error(PolicyError, "policy.get_actions", error, of_any_row=of_any_row) from error

    def _act(self, rows: Sequence[int]) -> Acts:
        actions, infos = self._get_actions(self._batch.batch())
        if type(actions) is not np.ndarray or len(actions) != self._n_rows:
            self._check_rows(actions)
        # A copy, for an environment may keep its action, and the policy may fill the same buffer next time.
        taken = self._actions.take(actions if self._hands_off else map_tree(np.array, actions))
        told = [_info_of(infos, row) for row in rows] if infos else ()
        return taken if len(rows) == self._n_rows else [taken[row] for row in rows], told

    def _check_rows(self, actions: Any) -> None:
        counts = {len(leaf) for leaf in tree_leaves(actions)}
        if counts - {self._n_rows}:
            given = " and ".join(map(str, sorted(counts)))
            raise BadSampleError(f"get_actions gave {given} for {self._n_rows} observations, expected one a row")


def _info_of(infos: Mapping[str, Any], row: int) -> dict[str, Any]:
    values = {key: map_tree(lambda column: column[row], value) for key, value in infos.items()}
    return {key: value for key, value in values.items() if not _is_missing(value)}


def _is_missing(value: Any) -> bool:
    """Return whether a row has no value: of a masked column, its row is masked, which for a number is one constant."""
    return value is np.ma.masked or (isinstance(value, np.ma.MaskedArray) and bool(np.all(value.mask)))
