"""gymnasium's own vector environments. They have no recorder: rows are kept in memory, and nothing is saved."""
# /// script
# dependencies = ["gymnasium>=1.2", "numpy"]
# ///

from __future__ import annotations

import functools
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from benchmarks.peers.driver import ENV_ID, Clock, chooser, main


def _collect(envs: AsyncVectorEnv | SyncVectorEnv, policy: str, steps: int, clock: Clock) -> int:
    choose = chooser(policy)
    rows = []
    observations, _ = envs.reset(seed=0)
    with clock:
        for _ in range(-(-steps // envs.num_envs)):
            actions = choose(observations)
            following, rewards, terminated, truncated, _ = envs.step(actions)
            rows.append((observations, actions, rewards, terminated, truncated))
            observations = following
        columns = [np.stack(column) for column in zip(*rows, strict=True)]
    envs.close()
    return int(columns[2].size)


def run_sync(policy: str, steps: int, output: Path, clock: Clock) -> int:
    """Step 256 environments sequentially in this process."""
    del output
    make = [functools.partial(gymnasium.make, ENV_ID)] * 256
    return _collect(SyncVectorEnv(make, autoreset_mode=AutoresetMode.SAME_STEP), policy, steps, clock)


def run_async(policy: str, steps: int, output: Path, clock: Clock) -> int:
    """Step 16 environments, each in a separate process, with shared memory for observations."""
    del output
    make = [functools.partial(gymnasium.make, ENV_ID)] * 16
    return _collect(AsyncVectorEnv(make, autoreset_mode=AutoresetMode.SAME_STEP), policy, steps, clock)


if __name__ == "__main__":
    main("gymnasium", {"sync": run_sync, "async": run_async})
