"""Environments that tell something of what steps them: one notes when its first episode ended, one only sleeps.

`python -m benchmarks.probes` runs one episode with no more than gymnasium, for comparison.
"""

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
"""The environment variable that names the file to note the time in."""


class _FirstEnd(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Notes the monotonic clock, which all processes of a machine share, when an episode first ends."""

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        if result[2] or result[3]:
            note(Path(os.environ[NOTE]))
        return result


def note(path: Path) -> None:
    """Write the time to `path`, unless someone was earlier."""
    now = time.monotonic_ns()
    try:
        with path.open("x", encoding="ascii") as file:
            file.write(str(now))
    except FileExistsError:
        return


def first_episode() -> gymnasium.Env[Any, Any]:
    """Return CartPole, made as its id is made, with the note on top."""
    return _FirstEnd(gymnasium.make("CartPole-v1"))


SLEEP_SECONDS = 0.01
SLEEPING_STEPS = 50


class Sleeping(gymnasium.Env[npt.NDArray[np.float32], np.int64]):
    """Sleeps at each step, as one that waits for a simulator or a network does; an episode has 50 steps."""

    observation_space = spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed, options=options)
        self._step = 0
        return np.zeros(4, np.float32), {}

    def step(self, action: np.int64) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Sleep."""
        del action
        time.sleep(SLEEP_SECONDS)
        self._step += 1
        return np.zeros(4, np.float32), 0.0, self._step == SLEEPING_STEPS, False, {}


if __name__ == "__main__":
    env = first_episode()
    env.reset(seed=0)
    over = False
    while not over:
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        over = terminated or truncated
