"""Environments and policies with one fault each, as users plant them; `rollout check` finds it."""

from __future__ import annotations

import os
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

BOX = spaces.Box(-2, 2, (1,), np.float32)
_steps_of_all = 0
_random = np.random.default_rng()


class World(gymnasium.Env[Any, Any]):
    """A walk of 40 to 60 steps; it ends by its own rules, unless `fault` says otherwise."""

    def __init__(self, fault: str = "") -> None:
        self.fault = fault
        self.observation_space = spaces.Box(-5, 5, (2, 1), np.float32)
        self.action_space = spaces.Discrete(3) if "masks" in fault else BOX
        self._kept = 0
        self._seen = np.zeros((2, 1), np.float32)
        if "masks" in fault:
            self.action_masks = lambda: np.array([False, False, fault != "empty masks"])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if self.fault == "hangs":
            time.sleep(3600)
        super().reset(seed=None if "passes no seed on" in self.fault else seed)
        ignores = self.fault == "ignores its seed"
        self._random = np.random.default_rng() if ignores else self.np_random
        if self.fault == "is constant":
            self._random = np.random.default_rng(0)
        self._kept += self.fault == "keeps state"
        self._step, self._end = (
            0,
            20 if self.fault == "disguises its limit" else self._random.integers(40, 60),
        )
        return self._observed(), {}

    def step(self, action: Any) -> Any:
        global _steps_of_all  # noqa: PLW0603
        _steps_of_all += 1
        self._step += 1
        reward = float(self._kept)
        if self._step == 35:
            reward += {"draws late": float(np.random.default_rng().random()), "gives nan": np.nan}.get(
                self.fault, 0
            )
            reward += _steps_of_all if "keeps state in its module" in self.fault else 0
            if self.fault == "crashes":
                os.abort()
            if self.fault == "raises":
                raise ValueError("a broken joint")
        if self.fault == "changes its action":
            action *= 0.5
        over = self._step >= self._end and self.fault != "has no end"
        info: dict[str, Any] = {"itself": object()} if self.fault == "has odd infos" else {}
        if "has the time in its infos" in self.fault:
            info = {"now": time.time()}
        return self._observed(), reward, over, False, info

    def _observed(self) -> Any:
        seen = self._random.uniform(-1, 1, (2, 1)).astype(np.float32)
        if self.fault == "leaves its space" and self._step == 35:
            seen += 6
        if self.fault.startswith("is outside"):
            seen += 6
        if self.fault.startswith("is float64"):
            seen = seen.astype(np.float64)
        if self.fault == "sees nan" and self._step == 35:
            seen *= np.nan
        if self.fault == "reuses its array":
            self._seen[:] = seen
            seen = self._seen
        return seen


class EpisodicLifeEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper of the name of Stable-Baselines3's."""


class Vector(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """A vector environment that does not say how it resets its rows."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs, self.metadata = num_envs, {}
        self.single_observation_space = self.single_action_space = BOX


class Policy:
    """A policy that follows from the observation, but for its fault."""

    def __init__(self, fault: str = "") -> None:
        self.fault, self._acted = fault, 0
        if fault in SAVED:
            self.observation_space = SAVED[fault]
        self.action_space = SAVED_ACTIONS.get(fault, BOX)
        self._drawn = float(np.random.default_rng().random()) if fault == "draws at its load" else 1.0

    def predict(self, observation: Any, deterministic: bool = False) -> Any:
        self._acted += 1
        assert np.float32 == observation.dtype, "it needs what the space says"
        if self.fault in SAVED_ACTIONS:
            return np.int64(2), None
        action = self._drawn * 2 * np.tanh(3 * observation[0])
        if self.fault == "scales to one":
            action /= 2
        if self.fault == "squashes nothing":
            action *= 1_000
        if self.fault == "keeps state":
            action *= 1 / self._acted
        if self.fault == "draws without a seed":
            action *= _random.random()
        return action, None


SAVED = {
    "wants four frames": spaces.Box(-5, 5, (4, 2, 1), np.float32),
    "wants bytes": spaces.Box(0, 255, (2, 1), np.uint8),
    "wants other bounds": spaces.Box(-1, 1, (2, 1), np.float32),
    "wants other axes": spaces.Box(-5, 5, (1, 2), np.float32),
    "wants a number": spaces.Discrete(4),
}


SAVED_ACTIONS: dict[str, spaces.Space[Any]] = {
    "has more actions": spaces.Discrete(4),
    "counts from one": spaces.Discrete(3, start=1),
    "has another shape": spaces.Box(-2, 2, (2,), np.float32),
}


def policy(fault: str) -> type[Policy]:
    """Return a class that makes a policy with this fault."""
    return type("Planted", (Policy,), {"__init__": lambda self: Policy.__init__(self, fault)})


class Masked(Policy):
    """A policy that asks for masks."""

    def predict(self, observation: Any, deterministic: bool = False, action_masks: Any = None) -> Any:
        return super().predict(observation, deterministic)


class Missing(Policy):
    """A policy whose file is not there."""

    def __init__(self) -> None:
        raise FileNotFoundError("weights.pt")


class Blind(Policy):
    """A policy that raises."""

    def predict(self, observation: Any, deterministic: bool = False) -> Any:
        raise RuntimeError("too dark")


missing, blind = Missing, Blind
sound = policy("")
scales = policy("scales to one")
squashes = policy("squashes nothing")
keeps = policy("keeps state")
draws = policy("draws without a seed")
at_load = policy("draws at its load")
frames, of_bytes, bounds, turned, number = map(policy, SAVED)
more, from_one, shape = map(policy, SAVED_ACTIONS)
