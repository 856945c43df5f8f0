"""Environments that take a moment a step, so that several workers share a short run; each named by `module:attr`."""

from __future__ import annotations

import time
from typing import Any

import gymnasium

from rollout_cli.seeding import derive_seed
from tests.support.envs import BoxEnv, ChainEnv, DictEnv, ImageEnv, ScriptedInfoEnv

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
