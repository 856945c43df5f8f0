"""gymnasium's own vector environments. They have no recorder: the rows are kept in memory, and nothing is saved."""

from __future__ import annotations

import functools

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from benchmarks.peers.driver import ENV_ID, Task, main

BEST_ASYNC, BEST_SYNC = 8, 64


def run_async(task: Task) -> int:
    """Step environments in processes of their own, with shared memory for observations."""
    make = [functools.partial(gymnasium.make, ENV_ID)] * task.envs(BEST_ASYNC)
    return _collect(task, AsyncVectorEnv(make, autoreset_mode=AutoresetMode.SAME_STEP))


def run_sync(task: Task) -> int:
    """Step environments one after the other in this process."""
    make = [functools.partial(gymnasium.make, ENV_ID)] * task.envs(BEST_SYNC)
    return _collect(task, SyncVectorEnv(make, autoreset_mode=AutoresetMode.SAME_STEP))


def _collect(task: Task, envs: AsyncVectorEnv | SyncVectorEnv) -> int:
    choose = task.chooser()
    rows = []
    observations, _ = envs.reset(seed=0)
    rounds = -(-task.steps // envs.num_envs)
    for _ in range(rounds):
        actions = choose(observations)
        following, rewards, terminated, truncated, _ = envs.step(actions)
        rows.append((observations, actions, rewards, terminated, truncated))
        observations = following
    columns = [np.stack(column) for column in zip(*rows, strict=True)]
    envs.close()
    return int(columns[2].size)


if __name__ == "__main__":
    main("gymnasium", {"async": run_async, "sync": run_sync})
