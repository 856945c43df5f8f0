"""Sample policies, each with one trait to test, for environments with Discrete or Box actions.

They are importable as `tests.support.policies:Name` wherever a policy is named by text; a class takes the environment's
`EnvSpec`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rollout_cli.episode_batch import EnvSpec
from rollout_cli.spaces import tree_leaves

Array = npt.NDArray[Any]


def observed(observation: Any) -> float:
    """Return a number in [0, 1) that depends on every number of the observation."""
    leaves = (np.asarray(leaf) for leaf in tree_leaves(observation))
    total = sum(float(leaf.astype(np.float64).sum()) for leaf in leaves if leaf.dtype.kind in "biuf")
    return float(np.mod(total, 1.0)) % 1.0


def action_at(space: Any, place: float) -> Any:
    """Return the action that lies at `place`, in [0, 1), of a Discrete or Box space, or of a Dict of them."""
    if isinstance(space, spaces.Dict):
        return {key: action_at(child, place) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Discrete):
        return np.int64(space.start + int(place * space.n))
    assert isinstance(space, spaces.Box)
    low, high = np.clip(space.low, -10, 10), np.clip(space.high, -10, 10)
    return (low + place * (high - low)).astype(space.dtype)


class GaragePolicy:
    """Garage's whole protocol for a policy that looks at the observation alone; the others change `place`."""

    def __init__(self, env_spec: EnvSpec) -> None:
        self.action_space = env_spec.action_space
        self.gain = 1.0

    def place(self, observation: Any, row: int) -> float:
        return (observed(observation) * self.gain) % 1.0

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        place = self.place(observation, 0)
        return action_at(self.action_space, place), {"place": place}

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        rows = _rows(observations)
        places = [self.place(observation, row) for row, observation in enumerate(rows)]
        return np.stack([action_at(self.action_space, place) for place in places]), {"place": np.array(places)}

    def reset(self, do_resets: Array | None = None) -> None:
        pass

    def get_param_values(self) -> dict[str, Any]:
        return {"gain": self.gain}

    def set_param_values(self, params: dict[str, Any]) -> None:
        self.gain = params["gain"]


def _rows(observations: Any) -> list[Any]:
    if isinstance(observations, dict):
        columns = {key: _rows(value) for key, value in observations.items()}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if isinstance(observations, tuple):
        return list(zip(*(_rows(value) for value in observations), strict=True))
    return list(observations)


class LinearPolicy(GaragePolicy):
    """A fixed linear function of the observation, with no draw in it."""


class GlobalNoisePolicy(GaragePolicy):
    """Adds noise from `numpy.random`'s global generator."""

    def place(self, observation: Any, row: int) -> float:
        return (observed(observation) + float(np.random.random())) % 1.0


class OwnGeneratorPolicy(GaragePolicy):
    """Adds noise from a generator of its own, made with a fixed seed."""

    def __init__(self, env_spec: EnvSpec) -> None:
        super().__init__(env_spec)
        self.rng = np.random.default_rng(0)

    def place(self, observation: Any, row: int) -> float:
        return (observed(observation) + float(self.rng.random())) % 1.0


class RecurrentPolicy(GaragePolicy):
    """Its action depends on how many steps it has taken since its row was last reset."""

    def __init__(self, env_spec: EnvSpec) -> None:
        super().__init__(env_spec)
        self.counts = np.zeros(1, np.int64)

    def reset(self, do_resets: Array | None = None) -> None:
        mask = np.ones(1, bool) if do_resets is None else np.asarray(do_resets)
        if len(mask) != len(self.counts):
            self.counts = np.zeros(len(mask), np.int64)
        self.counts[mask] = 0

    def place(self, observation: Any, row: int) -> float:
        self.counts[row] += 1
        return (observed(observation) + 0.37 * float(self.counts[row])) % 1.0


class EditingPolicy(GaragePolicy):
    """Overwrites the observation that it was given."""

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        result = super().get_action(observation)
        for leaf in tree_leaves(observation):
            if isinstance(leaf, np.ndarray):
                leaf[...] = 0
        return result


class FailingPolicy(GaragePolicy):
    """Raises ValueError at its given step in every episode that gets there (1 for the first)."""

    def __init__(self, env_spec: EnvSpec, at_step: int = 3) -> None:
        super().__init__(env_spec)
        self.at_step = at_step
        self.steps = 0

    def reset(self, do_resets: Array | None = None) -> None:
        self.steps = 0

    def place(self, observation: Any, row: int) -> float:
        self.steps += 1
        if self.steps == self.at_step:
            raise ValueError(f"the policy is broken at step {self.at_step}")
        return super().place(observation, row)


class PredictPolicy:
    """What Stable-Baselines3's recurrent policies offer: `predict`, with a state that counts steps."""

    def __init__(self, env_spec: EnvSpec) -> None:
        self.action_space = env_spec.action_space
        self.calls: list[tuple[Any, Any, bool]] = []

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[Any, Any]:
        self.calls.append((None if state is None else state[0].copy(), np.array(episode_start), deterministic))
        starts = np.asarray(episode_start)
        counts = np.zeros(len(starts), np.int64) if state is None else state[0]
        counts = np.where(starts, 0, counts) + 1
        places = (0.37 * counts) % 1.0
        batched = len(starts) > 1
        actions = [action_at(self.action_space, float(place)) for place in places]
        return (np.stack(actions) if batched else np.asarray(actions[0])), (counts,)


def plain_policy(observation: Any) -> int:
    """Choose action 1 of a Discrete space, whatever was observed."""
    return 1


def make_linear(env_spec: EnvSpec) -> LinearPolicy:
    """Build a policy from the environment's spaces."""
    return LinearPolicy(env_spec)


def make_plain() -> Any:
    """Build a plain callable."""
    return plain_policy
