"""Handover: what policy and environment of all rows hand each other, none of which may change under the other's hands.

A policy may edit what it sees, and fill the same buffer with actions each time; an environment may keep for itself what
it gave, and what it was given. So they get copies, unless nobody else can hold the array.
"""

from __future__ import annotations

from collections.abc import Sequence
from sys import getrefcount
from typing import Any

import numpy as np

from rollout_cli.episode_batch import EnvSpec
from rollout_cli.spaces import space_leaves, unflatten

_OURS_ALONE = 2
"""What `getrefcount` tells of an array that one sequence holds: that sequence, and the argument of the call.

Nobody else can change it then, unless its memory is not its own.
"""


class Handover:
    """Hands observations and actions on, as leaves or as values of their spaces.

    Args:
        env_spec: The spaces of one row.
        hands_off: Whether the policy leaves observations as they are, and gives arrays that nobody else holds.
    """

    def __init__(self, env_spec: EnvSpec, *, hands_off: bool) -> None:
        self._hands_off = hands_off
        self._seen_space, self._given_space = env_spec.observation_space, env_spec.action_space
        self._sees_leaf, self._gives_leaf = _is_leaf(self._seen_space), _is_leaf(self._given_space)

    def to_policy(self, leaves: Sequence[Any]) -> Any:
        """Return recorded observations for the policy; who looks them up later finds them where they are recorded.

        Args:
            leaves: One array (n, *shape) a leaf, not to be used any more.
        """
        if self._sees_leaf:
            if self._hands_off or (getrefcount(leaves[0]) == _OURS_ALONE and leaves[0].flags.owndata):
                return leaves[0]
            return np.array(leaves[0])
        seen = leaves if self._hands_off else [np.array(leaf) for leaf in leaves]
        return unflatten(self._seen_space, seen)

    def to_env(self, leaves: Sequence[Any]) -> Any:
        """Return recorded actions, one array (n, *shape) a leaf, for the environment."""
        if self._gives_leaf:
            if self._hands_off or (getrefcount(leaves[0]) == _OURS_ALONE and leaves[0].flags.owndata):
                return leaves[0]
            return leaves[0].copy()
        return unflatten(self._given_space, leaves if self._hands_off else [leaf.copy() for leaf in leaves])


def _is_leaf(space: Any) -> bool:
    leaves = space_leaves(space)
    return len(leaves) == 1 and not leaves[0].path
