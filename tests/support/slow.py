"""Environments that take a moment a step, so that several workers share a short run; each named by `module:attr`."""

from __future__ import annotations

import random
import time
from typing import Any

import gymnasium
import numpy as np

from rollout_cli.seeding import derive_seed
from tests.support.envs import BoxEnv, ChainEnv, DictEnv, ImageEnv, ScriptedInfoEnv
from tests.support.policies import LinearPolicy

ROOT_SEED = 7
"""The root seed that `late_info` is scripted for."""


class Slow(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Sleeps before every step."""

    def __init__(self, env: gymnasium.Env[Any, Any], seconds: float = 0.0005) -> None:
        super().__init__(env)
        self._seconds = seconds

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        time.sleep(self._seconds)
        return super().step(action)


def box() -> Slow:
    return Slow(BoxEnv())


def dictionary() -> Slow:
    return Slow(DictEnv())


def discrete() -> Slow:
    """A Discrete observation and action."""
    return Slow(gymnasium.wrappers.TimeLimit(gymnasium.make("Taxi-v4").unwrapped, 9))


def image() -> Slow:
    return Slow(ImageEnv())


def chain() -> Slow:
    return Slow(ChainEnv())


def late_info() -> Slow:
    """An info key that appears first in episode 50 and is a text in episode 80; another one after the schema window."""
    scripts: dict[int, dict[str, Any]] = {
        50: {"late": 1},
        80: {"late": "text"},
        300: {"later": 1.5},
        301: {"position": "a text"},
    }
    return Slow(ScriptedInfoEnv({derive_seed(ROOT_SEED, number, "env"): extra for number, extra in scripts.items()}))


LATE_EPISODES = (37, 52)
"""The episodes of `ROOT_SEED` in which what follows draws from the global generators, and in no other."""


def draw_from_both() -> float:
    return random.random() + float(np.random.random())


class LateDrawEnv(ChainEnv):
    """Tells in its infos what it drew, 0 where it did not."""

    def __init__(self) -> None:
        super().__init__()
        self._seeds = [derive_seed(ROOT_SEED, number, "env") for number in LATE_EPISODES]
        self._draws = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._draws = seed in self._seeds
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        drawn = draw_from_both() if self._draws else 0.0
        return observation, reward, terminated, truncated, {**info, "drawn": drawn}


def late_draws() -> Slow:
    return Slow(LateDrawEnv())


class LateDrawPolicy(LinearPolicy):
    """Tells what it drew, 0 where it did not."""

    draws = False

    def seed(self, seed: int) -> None:
        self.draws = seed in [derive_seed(ROOT_SEED, number, "policy") for number in LATE_EPISODES]

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        action, _ = super().get_action(observation)
        return action, {"drawn": draw_from_both() if self.draws else 0.0}


def batch_box() -> Slow:
    """Box observations and actions, for a network."""
    return Slow(BoxEnv(), 0.0002)
