"""Environments that render small pictures."""

from __future__ import annotations

import os
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Pictures(gymnasium.Env[Any, Any]):
    """A square goes to where its seed says; what is seen is a picture of it, or its place."""

    metadata = {  # noqa: RUF012 - gymnasium reads it of the class
        "render_modes": ["rgb_array"],
        "render_fps": 20,
    }

    def __init__(self, *, render_mode: str | None = None, blind: bool = False, moody: bool = False) -> None:
        self.render_mode, self._blind, self._moody = render_mode, blind, moody
        seen: Any = (
            spaces.Box(-10, 10, (3,), np.float32) if blind else spaces.Box(0, 255, (20, 23, 3), np.uint8)
        )
        self.observation_space = seen
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        self._place = int(self.np_random.integers(20))
        if self._moody:
            self._place = os.urandom(1)[0] % 20
        self._length = 4 + self._place % 3
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        self._place = (self._place + (1 if action[0] > 0 else -1)) % 20
        info = {"far": self._place > 10, "<b>&name": "x"} | ({"rare": 1.5} if self._steps == 2 else {})
        return self._seen(), self._place / 10, self._steps >= self._length, False, info

    def _seen(self) -> Any:
        if self._blind:
            return np.array([self._place / 10, self._steps, 1], np.float32)
        return self._picture()

    def _picture(self) -> Any:
        picture = np.full((20, 23, 3), 40, np.uint8)
        picture[self._place, self._steps] = (250, 100, self._steps)
        return picture

    def render(self) -> Any:
        return self._picture() if self.render_mode == "rgb_array" else None


class Drawn(Pictures):
    """Draws its world when it is made, as procedural environments do, and shows it."""

    def __init__(self, *, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode, blind=True)
        self._world = np.random.random()

    def _seen(self) -> Any:
        return np.array([self._place / 10, self._steps, self._world], np.float32)
