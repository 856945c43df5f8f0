"""NetworkPolicy: a network whose output is logits or actions."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import numpy as np

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.spaces import Array, SpaceRows, Tree, count_rows
from rollout_cli.errors import PolicyError, PolicyLoadError
from rollout_cli.policies.noise import RowNoise, SeededPolicy, gumbel, normal


class NetworkPolicy(SeededPolicy):
    """Acts with a batch of observations; a subclass says what its network makes of them.

    Raises:
        PolicyLoadError: If an action is a tree or a text.
    """

    def __init__(self, wrapped: Any, env_spec: EnvSpec, *, deterministic: bool) -> None:
        self._deterministic = deterministic
        self._space: Any = env_spec.action_space
        self._observations, self._actions = (
            SpaceRows(env_spec.observation_space),
            SpaceRows(env_spec.action_space),
        )
        self._action, *others = self._actions.leaves
        if others or self._action.path or self._action.kind == "text":
            raise PolicyLoadError(
                f"a network alone cannot choose an action of {env_spec.action_space}",
                hint="wrap it in a policy with get_action",
            )
        super().__init__(wrapped, self._new_numbers)

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        batch = self._observations.stack([observation])
        actions, infos = self._act(batch, self._single)
        return self._actions.split(actions)[0], {name: values[0] for name, values in infos.items()}

    def get_actions(self, observations: Tree) -> tuple[Tree, dict[str, Any]]:
        return self._act(observations, self._sized(count_rows(observations)))

    @abstractmethod
    def _act(self, observations: Tree, numbers: RowNoise) -> tuple[Array, dict[str, Array]]:
        """Return actions (n, *shape) and infos (n,) of n observations, which draw from n rows of numbers."""

    def _new_numbers(self, n_rows: int) -> RowNoise:
        if self._action.kind == "discrete":
            return RowNoise(n_rows, int(self._space.n), gumbel)
        return RowNoise(n_rows, math.prod(self._action.shape), normal)

    def _choose(self, logits: Array, numbers: RowNoise) -> Array:
        """Return a category of each row's softmax, int64 (n,); the likeliest where deterministic.

        Args:
            logits: Floats (n, number of categories).
            numbers: What the rows draw from.

        Raises:
            PolicyError: If they have another shape, or are neither finite nor -inf, for never.
        """
        check_shape("logits", logits, (len(numbers), numbers.width))
        # A NaN counts as the highest.
        if not np.isfinite(logits.max(axis=1)).all():
            raise PolicyError(
                f"the module gave logits {logits}", hint="logits must be finite, or -inf for never"
            )
        # The likeliest after adding Gumbel noise is a draw from the softmax.
        noise = 0.0 if self._deterministic else numbers.next()
        return np.asarray((logits + noise).argmax(axis=1) + int(self._space.start))


def check_shape(noun: str, values: Array, expected: tuple[int, ...]) -> None:
    """Raise PolicyError where actions or logits have another shape than `expected`."""
    if values.shape != expected:
        raise PolicyError(
            f"the module gave {noun} of shape {values.shape}, expected {expected}",
            hint="its output must have one row an observation",
        )
