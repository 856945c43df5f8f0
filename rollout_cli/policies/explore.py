"""Exploration that a run adds to any policy: uniform actions now and then, or Gaussian noise.

Both are drawn from a stream of the episode's own, which is another one than the policy's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.spaces import Array, Space, SpaceRows, Tree
from rollout_cli.errors import PolicyLoadError
from rollout_cli.keywords import Record
from rollout_cli.policies.policy import ActionAndInfo, ActionsAndInfos, AdaptedPolicy, Infos, PolicySource
from rollout_cli.policies.random import RandomPolicy
from rollout_cli.seeding.seeds import derive_seed

_INNER_ATTRIBUTES = (
    *("row_wise", "row_by_row", "resets", "methods", "takes_masks"),
    *("acts_alike", "reset", "get_param_values", "set_param_values"),
)


class _Exploring(AdaptedPolicy):
    """A policy around another one; at every step it draws a sample of a space, used or not."""

    def __init__(self, inner: AdaptedPolicy, stream: str, drawn: Space) -> None:
        super().__init__(inner.users_own)
        self._inner = inner
        self._stream = stream
        self._random = RandomPolicy(drawn)
        for name in _INNER_ATTRIBUTES:
            setattr(self, name, getattr(inner, name))

    def seed(self, seed: int) -> None:
        if self._inner.seed is not None:
            self._inner.seed(seed)
        self._random.seed(derive_seed(seed, "policy", self._stream))

    def seed_rows(self, mask: Array, seeds: Array) -> None:
        if self._inner.seed_rows is not None:
            self._inner.seed_rows(mask, seeds)
        derived = [derive_seed(seed, "policy", self._stream) for seed in seeds.tolist()]
        self._random.seed_rows(mask, np.array(derived, np.uint64))

    def get_action(self, observation: Any, masks: Any = None) -> ActionAndInfo:
        drawn, _ = self._random.get_action(observation)
        return self._explore(*self._inner.act(observation, masks), drawn)

    def get_actions(self, observations: Tree, masks: Any = None) -> ActionsAndInfos:
        drawn, _ = self._random.get_actions(observations)
        return self._explore(*self._inner.act_batch(observations, masks), drawn)

    act = get_action
    act_batch = get_actions

    def _explore(self, action: Any, info: Infos, drawn: Any) -> ActionAndInfo:
        """Return the action and the info, or those of n rows."""
        raise NotImplementedError


class EpsilonPolicy(_Exploring):
    """Takes, with probability `epsilon`, a uniform action of the whole space in place of the policy's own.

    The info `explored` says at which steps. Raise PolicyLoadError for a policy that needs action masks.
    """

    def __init__(
        self, inner: AdaptedPolicy, action_space: Space, epsilon: float, stream: str = "epsilon"
    ) -> None:
        share = spaces.Box(0.0, 1.0, (), np.float64)
        super().__init__(inner, stream, spaces.Tuple((share, action_space)))
        self.trusted = inner.trusted
        self._epsilon = epsilon
        self._rows = SpaceRows(action_space)
        if self.takes_masks:
            raise PolicyLoadError(
                "--epsilon draws among all actions, and the policy needs masks of those that are valid",
                code="policy-masks",
                hint="omit {epsilon}, and let the policy explore by itself",
            )

    def _explore(self, action: Any, info: Infos, drawn: Any) -> ActionAndInfo:
        share, uniform = drawn
        explores = share < self._epsilon
        explored = explores
        before = np.asarray(info.get("explored", False))  # Of a model that explores by itself.
        if before.dtype == bool and before.shape == np.shape(explores):
            explored = np.logical_or(explores, before)
        if not np.ndim(explores):
            if explores:
                action = uniform
            return action, {**info, "explored": bool(explored)}
        if explores.any():
            pairs = zip(self._rows.columns(uniform), self._rows.columns(action), strict=True)
            action = self._rows.tree([_replaced(explores, *pair) for pair in pairs])
        return action, {**info, "explored": explored}


def _replaced(mask: Array, uniform: Array, actions: Any) -> Any:
    """Return the actions with the uniform ones in the rows of the mask."""
    if np.shape(actions) != uniform.shape:
        return actions  # The recorder refuses them; stretched, they would look like actions of all rows.
    if isinstance(actions, list):  # In one array, a row of another type would decide that of all.
        replaced = [*actions]
        for row in np.flatnonzero(mask):
            replaced[row] = uniform[row]
        return replaced
    return np.where(mask.reshape(-1, *[1] * (uniform.ndim - 1)), uniform, actions)


class NoisyPolicy(_Exploring):
    """Adds N(0, scale * (high - low) / 2) to each number of a Box's action, and clips it to the bounds.

    Raise PolicyLoadError for any other space, and for a Box that has no bounds, or whole numbers.
    """

    def __init__(self, inner: AdaptedPolicy, space: Space, scale: float) -> None:
        if not isinstance(space, spaces.Box) or space.dtype.kind != "f" or not space.is_bounded():
            raise PolicyLoadError(
                f"--action-noise needs actions in a Box of floats that has bounds, and these are of {space}",
                code="action-noise-space",
                hint="omit {action_noise}; {epsilon=P} explores in every space",
            )
        # Such a Box is sampled by the standard normal distribution.
        super().__init__(inner, "action noise", spaces.Box(-np.inf, np.inf, space.shape, np.float64))
        self._space = space
        self._scale = scale * (space.high.astype(float) / 2 - space.low.astype(float) / 2)

    def _explore(self, action: Any, info: Infos, drawn: Any) -> ActionAndInfo:
        numbers = np.asarray(action)
        # The recorder says what is wrong with any other action.
        if numbers.dtype.kind in "biuf" and numbers.shape == drawn.shape:
            noisy = numbers + drawn * self._scale
            action = np.asarray(np.clip(noisy, self._space.low, self._space.high), self._space.dtype)
        return action, info


@dataclass(frozen=True, slots=True)
class ExploringSource:
    """A source whose policy explores as a run asks, None for not at all; its record is the inner one's."""

    source: PolicySource
    epsilon: float | None
    action_noise: float | None

    def load(self, env_spec: EnvSpec, *, deterministic: bool = False) -> AdaptedPolicy:
        policy = self.source.load(env_spec, deterministic=deterministic)
        if self.action_noise is not None:
            policy = NoisyPolicy(policy, env_spec.action_space, self.action_noise)
        if self.epsilon is not None:
            policy = EpsilonPolicy(policy, env_spec.action_space, self.epsilon)
        return policy

    def describe(self) -> Record:
        return self.source.describe()
