"""Exploration added to any policy: epsilon-greedy uniform actions, or Gaussian noise.

Each episode has a separate random stream for exploration, independent of the policy's stream.
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
    *("row_wise", "row_by_row", "resets", "methods", "takes_masks", "observe_reward", "observe_rewards"),
    "observe_task",
    *("acts_alike", "reset", "get_param_values", "set_param_values", "remote_reports", "remote_class"),
)


class _Exploring(AdaptedPolicy):
    """A policy around an inner policy; every step samples a space, even if the sample is not used."""

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
        """Return the action to take and its info, or the actions and infos of n rows."""
        raise NotImplementedError


class EpsilonPolicy(_Exploring):
    """Replaces the policy's action, with probability `epsilon`, by a uniform sample of the action space.

    The info `explored` marks these steps.

    Raises:
        PolicyLoadError: The policy needs action masks.
    """

    def __init__(
        self, inner: AdaptedPolicy, action_space: Space, epsilon: float, stream: str = "epsilon"
    ) -> None:
        share = spaces.Box(0.0, 1.0, (), np.float64)
        super().__init__(inner, stream, spaces.Tuple((share, action_space)))
        self.acts_within_space = inner.acts_within_space
        self._epsilon = epsilon
        self._rows = SpaceRows(action_space)
        if self.takes_masks:
            raise PolicyLoadError(
                "--epsilon samples from all actions, but the policy needs action masks",
                code="policy-masks",
                hint="omit {epsilon}, and use the policy's exploration",
            )

    def _explore(self, action: Any, info: Infos, drawn: Any) -> ActionAndInfo:
        share, uniform = drawn
        explores = share < self._epsilon
        explored = explores
        before = np.asarray(info.get("explored", False))  # From a model with epsilon-greedy exploration.
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
    """Return the actions, replaced by the uniform actions in the rows of the mask."""
    if np.shape(actions) != uniform.shape:
        return actions  # The recorder rejects this shape; broadcasting would hide the error.
    if isinstance(actions, list):  # In one array, the type of one row would change the type of all rows.
        replaced = [*actions]
        for row in np.flatnonzero(mask):
            replaced[row] = uniform[row]
        return replaced
    return np.where(mask.reshape(-1, *[1] * (uniform.ndim - 1)), uniform, actions)


class NoisyPolicy(_Exploring):
    """Adds N(0, scale * (high - low) / 2) to each element of a Box action, and clips it to the bounds.

    Raises:
        PolicyLoadError: The action space is not a bounded Box of floats.
    """

    def __init__(self, inner: AdaptedPolicy, space: Space, scale: float) -> None:
        if not isinstance(space, spaces.Box) or space.dtype.kind != "f" or not space.is_bounded():
            raise PolicyLoadError(
                f"--action-noise needs a bounded Box of floats as action space, got {space}",
                code="action-noise-space",
                hint="omit {action_noise}, or use {epsilon=P}, which works with every space",
            )
        # gymnasium samples an unbounded Box from the standard normal distribution.
        super().__init__(inner, "action noise", spaces.Box(-np.inf, np.inf, space.shape, np.float64))
        self._space = space
        self._scale = scale * (space.high.astype(float) / 2 - space.low.astype(float) / 2)

    def _explore(self, action: Any, info: Infos, drawn: Any) -> ActionAndInfo:
        numbers = np.asarray(action)
        # The recorder reports the error for other types and shapes.
        if numbers.dtype.kind in "biuf" and numbers.shape == drawn.shape:
            noisy = numbers + drawn * self._scale
            action = np.asarray(np.clip(noisy, self._space.low, self._space.high), self._space.dtype)
        return action, info


@dataclass(frozen=True, slots=True)
class ExploringSource:
    """A source that adds exploration to another source's policy, whose record it returns; None adds none."""

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
