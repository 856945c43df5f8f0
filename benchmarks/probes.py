"""Environments for measurements: one records the time of its first episode's end, and one only sleeps."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

NOTE = "ROLLOUT_BENCHMARKS_NOTE"
"""The environment variable with the path of the file for the time."""


class _FirstEnd(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Writes the monotonic clock, which all processes of a machine share, when the first episode ends."""

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        if result[2] or result[3]:
            now = time.monotonic_ns()
            try:
                with Path(os.environ[NOTE]).open("x", encoding="ascii") as file:
                    file.write(str(now))
            except FileExistsError:
                pass  # Another episode ended earlier.
        return result


def first_episode() -> gymnasium.Env[Any, Any]:
    """Return CartPole wrapped to record the time of the first end."""
    return _FirstEnd(gymnasium.make("CartPole-v1"))


SLEEP_SECONDS = 0.01


class Sleeping(gymnasium.Env[npt.NDArray[np.float32], np.int64]):
    """Sleeps at each step, like an environment that waits for a simulator; an episode has 50 steps."""

    observation_space = spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed, options=options)
        self._steps = 0
        return np.zeros(4, np.float32), {}

    def step(self, action: np.int64) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Sleep."""
        del action
        time.sleep(SLEEP_SECONDS)
        self._steps += 1
        return np.zeros(4, np.float32), 0.0, self._steps == 50, False, {}  # noqa: PLR2004
