"""The environments of the matrix: one for each space, with episodes that end in every way."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

BOX = spaces.Box(-1, 1, (4,), np.float32)
CHOICE = spaces.Discrete(3)
ALPHABET = "abcxyz é☃"

SPACES: dict[str, tuple[spaces.Space[Any], spaces.Space[Any]]] = {
    "Box": (BOX, spaces.Box(-2, 2, (2,), np.float32)),
    "Discrete": (spaces.Discrete(7), CHOICE),
    "Discrete with start": (spaces.Discrete(7, start=-2), spaces.Discrete(3, start=5)),
    "MultiDiscrete": (spaces.MultiDiscrete([3, 5]), spaces.MultiDiscrete([2, 4, 3])),
    "MultiBinary": (spaces.MultiBinary(5), spaces.MultiBinary(3)),
    "Tuple": (spaces.Tuple([BOX, spaces.Discrete(5)]), CHOICE),
    "Dict": (spaces.Dict({"arm": BOX, "gripper": spaces.Discrete(2)}), CHOICE),
    "Text": (spaces.Text(8, min_length=1, charset=ALPHABET), CHOICE),
    "image": (spaces.Box(0, 255, (64, 64, 3), np.uint8), CHOICE),
    "float64": (spaces.Box(-1, 1, (3,), np.float64), spaces.Box(-1, 1, (2,), np.float64)),
    "both ends": (BOX, CHOICE),
    "one step": (BOX, CHOICE),
}
"""The observations and actions of each column."""


class World(gymnasium.Env[Any, Any]):
    """Episodes of 3 to 8 steps of random observations, that are terminated, or truncated.

    In the case `both ends` some are both, and in `one step` some are truncated after one step.
    """

    def __init__(self, case: str) -> None:
        self._case = case
        self.observation_space, self.action_space = SPACES[case]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        self._left = int(self.np_random.integers(3, 9))
        self._terminated = bool(self.np_random.integers(2))
        self._truncated = not self._terminated or (
            self._case == "both ends" and bool(self.np_random.integers(2))
        )
        if self._case == "one step" and not self._terminated:
            self._left = 1
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        self._left -= 1
        ended = self._left == 0
        reward = float(self.np_random.standard_normal())
        return (
            self.observation_space.sample(),
            reward,
            ended and self._terminated,
            ended and self._truncated,
            {},
        )
