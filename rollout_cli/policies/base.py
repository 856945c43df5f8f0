"""Policy: what a worker asks of a policy, whoever wrote it; PolicySource: where one comes from.

The verbs are garage's. Nothing needs to be subclassed: `adapt_policy` makes a Policy of whatever the user has.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy.typing as npt

from rollout_cli.episode_batch import EnvSpec

Array = npt.NDArray[Any]
Tree = Any
"""An array, or a dict or tuple of trees."""


@runtime_checkable
class Policy(Protocol):
    """Chooses actions.

    Legal sequences, of one environment: `reset()`, then `get_action` once a step until the episode ends, then `reset()`
    again. Of n environments at once: `reset(do_resets)` with an all-true mask of length n, then `get_actions` with n
    rows at every step; before a step in which some rows begin a new episode, `reset(do_resets)` with those rows true. n
    stays the same until the next all-true mask. `set_param_values` comes between episodes only, before a `reset`; but
    between any two steps under a FragmentWorker, whose calls end in the middle of episodes.

    A policy that draws may offer two more. They are called before the `reset` of the episode that they seed, and from
    then on the actions must follow from the seed and the observations alone:

    - `seed(seed)`: for `get_action`; a non-negative integer of 63 bits.
    - `seed_rows(mask, seeds)`: for `get_actions`; bool (n,) and one seed a row (those of other rows mean nothing). Row
      j must then draw from a generator of its own, and act as after `seed(seeds[j])`.

    `row_wise` (an attribute, False where it is missing) says that row j of `get_actions` is what `get_action` gives,
    bit for bit, whatever the other rows are and wherever j stands.
    """

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        """Choose the action for one observation (a sample of the observation space).

        Returns:
            A sample of the action space, and a dictionary of what else is to be recorded of this step.
        """

    def get_actions(self, observations: Tree) -> tuple[Tree, dict[str, Any]]:
        """Choose actions for n observations, a tree of arrays (n, *shape).

        Returns:
            A tree of arrays (n, *shape), and a dictionary of arrays (n, ...); masked where some rows have no value.
        """

    def reset(self, do_resets: Array | None = None) -> None:
        """Begin new episodes: in the rows where `do_resets`, bool (n,), is true; in all where it is None."""

    def get_param_values(self) -> Any:
        """Return the parameters: what `set_param_values` of an equal policy takes in another process."""

    def set_param_values(self, params: Any) -> None:
        """Take parameters over."""


@dataclass(frozen=True, slots=True)
class Shortcut:
    """A way to act on one observation that spares a step the making of a pair and an empty dictionary.

    A policy of ours offers it as its attribute `shortcut`.

    Attributes:
        act: Gives an answer for an observation: the action alone, or what `pair` can tell apart.
        pair: Makes of an answer what `get_action` would have given.
        prepare: Does at once, for some seeds that `seed` will be called with, what the episodes have in common.
    """

    act: Callable[[Any], Any]
    pair: Callable[[Any], tuple[Any, dict[str, Any]]]
    prepare: Callable[[Sequence[int]], None] | None = None


def shortcut_of(policy: Policy) -> Shortcut | None:
    """Return the policy's shortcut, if it is one of ours and has one."""
    found = getattr(policy, "shortcut", None)
    return found if isinstance(found, Shortcut) else None


POLICY_METHODS = ("get_action", "get_actions", "reset", "get_param_values", "set_param_values")


class PolicySource(abc.ABC):
    """Where a policy comes from: small, picklable, and loaded in each worker."""

    @property
    @abc.abstractmethod
    def label(self) -> str:
        """Return a short text for people."""

    @abc.abstractmethod
    def load(self, env_spec: EnvSpec, *, deterministic: bool = False) -> Policy:
        """Load the policy and adapt it.

        Args:
            env_spec: The spaces that it is for.
            deterministic: Whether it must not explore.

        Raises:
            PolicyLoadError: If it cannot be loaded or recognised, or cannot be deterministic where it should.
        """

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return what a dataset records: `spec` (as given), `path` and `sha256` (of a file or source, else None)."""
