"""gymnasium's own vector environments. They have no recorder: the rows are kept in memory, and nothing is saved."""

from __future__ import annotations

import functools

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from benchmarks.peers.driver import ENV_ID, Mode, Task, main


def run_async(task: Task) -> int:
    """Step environments in processes of their own, with shared memory for observations."""
    make = [functools.partial(gymnasium.make, ENV_ID)] * task.n_envs
    return _collect(task, AsyncVectorEnv(make, autoreset_mode=AutoresetMode.SAME_STEP))


def run_sync(task: Task) -> int:
    """Step environments one after the other in this process."""
    make = [functools.partial(gymnasium.make, ENV_ID)] * task.n_envs
    return _collect(task, SyncVectorEnv(make, autoreset_mode=AutoresetMode.SAME_STEP))


def _collect(task: Task, envs: AsyncVectorEnv | SyncVectorEnv) -> int:
    choose = task.chooser()
    rows = []
    rounds = -(-task.steps // envs.num_envs)
    observations, _ = envs.reset(seed=0)
    with task.clock:
        for _ in range(rounds):
            actions = choose(observations)
            following, rewards, terminated, truncated, _ = envs.step(actions)
            rows.append((observations, actions, rewards, terminated, truncated))
            observations = following
        columns = [np.stack(column) for column in zip(*rows, strict=True)]
    envs.close()
    assert {column.shape[:2] for column in columns} == {(rounds, envs.num_envs)}
    return int(columns[2].size)


if __name__ == "__main__":
    main(
        "gymnasium",
        {
            "async": Mode(run_async, best={"envs": 16}, tried=[{"envs": n} for n in (2, 4, 8, 16, 32)]),
            "sync": Mode(run_sync, best={"envs": 256}, tried=[{"envs": n} for n in (1, 8, 64, 256)]),
        },
    )
