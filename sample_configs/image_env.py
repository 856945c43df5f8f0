"""A small environment with RGB image observations: catch the falling ball with the paddle."""  # noqa: INP001

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

Image = npt.NDArray[np.uint8]


class Catch(gymnasium.Env[Image, np.int64]):
    """The ball falls one row per step; the paddle moves left, stays, or moves right. The episode ends at the floor.

    Args:
        size: Number of pixels per side.
    """

    def __init__(self, size: int = 24) -> None:
        self.observation_space = spaces.Box(0, 255, (size, size, 3), np.uint8)
        self.action_space = spaces.Discrete(3)
        self.size = size
        self.row = self.ball = self.paddle = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Image, dict[str, Any]]:
        """Place the ball and the paddle in random columns."""
        super().reset(seed=seed, options=options)
        self.row = 0
        self.ball, self.paddle = (int(column) for column in self.np_random.integers(self.size, size=2))
        return self._image(), {}

    def step(self, action: np.int64) -> tuple[Image, float, bool, bool, dict[str, Any]]:
        """Move the ball down one row, and move the paddle."""
        self.row += 1
        self.paddle = int(np.clip(self.paddle + int(action) - 1, 0, self.size - 1))
        landed = self.row == self.size - 1
        reward = float(abs(self.ball - self.paddle) <= 1) if landed else 0.0
        return self._image(), reward, landed, False, {}

    def _image(self) -> Image:
        image = np.zeros((self.size, self.size, 3), np.uint8)
        image[self.row, self.ball] = (255, 255, 255)
        image[-1, max(0, self.paddle - 1) : self.paddle + 2] = (255, 80, 0)
        return image
