"""Environments that report on who steps them: one notes when its first episode ended, one only sleeps."""

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
"""The environment variable with the path of the file that gets the time."""


class _FirstEnd(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Writes the monotonic clock, which all processes of a machine share, when an episode first ends."""

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
    """Return CartPole with the note on top."""
    return _FirstEnd(gymnasium.make("CartPole-v1"))


SLEEP_SECONDS = 0.01


class Sleeping(gymnasium.Env[npt.NDArray[np.float32], np.int64]):
    """Sleeps at each step, as an environment does that waits for a simulator; an episode has 50 steps."""

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
