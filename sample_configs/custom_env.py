"""A custom environment as a plain gymnasium.Env: walk on a grid to a goal."""  # noqa: INP001

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

Observation = dict[str, npt.NDArray[np.int64]]

_MOVES = np.array([[1, 0], [0, 1], [-1, 0], [0, -1]])


class GridWalk(gymnasium.Env[Any, np.int64]):
    """Reach the goal on a square grid; each step has reward -0.01, the goal 1.

    Args:
        size: Number of cells per side.
    """

    def __init__(self, size: int = 5) -> None:
        cell = spaces.Box(0, size - 1, (2,), np.int64)
        self.observation_space = spaces.Dict({"agent": cell, "goal": cell})
        self.action_space = spaces.Discrete(4)
        self.size = size
        self.agent = np.zeros(2, np.int64)
        self.goal = np.zeros(2, np.int64)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Place the agent and the goal on two different cells."""
        super().reset(seed=seed, options=options)
        first, second = self.np_random.choice(self.size**2, 2, replace=False)
        self.agent = np.array(divmod(first, self.size), np.int64)
        self.goal = np.array(divmod(second, self.size), np.int64)
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Move one cell, or stay if a wall is in the way."""
        self.agent = np.clip(self.agent + _MOVES[int(action)], 0, self.size - 1)
        distance = int(np.abs(self.agent - self.goal).sum())
        reached = distance == 0
        return self._observation(), 1.0 if reached else -0.01, reached, False, {"distance": distance}

    def get_state(self) -> npt.NDArray[np.int64]:
        """Return the state for `store_state`: the cells of the agent and the goal."""
        return np.concatenate((self.agent, self.goal))

    def set_state(self, state: npt.NDArray[np.int64]) -> None:
        """Restore a state."""
        self.agent, self.goal = np.split(np.asarray(state, np.int64), 2)

    def _observation(self) -> Observation:
        return {"agent": self.agent.copy(), "goal": self.goal.copy()}
