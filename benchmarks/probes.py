"""An environment that notes when its first episode ended, to measure a start from outside.

`python -m benchmarks.probes` runs one episode with no more than gymnasium, for comparison.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import gymnasium

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


if __name__ == "__main__":
    env = first_episode()
    env.reset(seed=0)
    over = False
    while not over:
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        over = terminated or truncated
