"""PufferLib's vectorisation with its multi-process backend. It has no recorder: the rows are kept in memory."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
import pufferlib.emulation
import pufferlib.vector

from benchmarks.peers.driver import ENV_ID, Task, main

BEST = 256
WORKERS = 2


def run(task: Task) -> int:
    """Step environments in two processes, each with half of them."""
    make = functools.partial(
        pufferlib.emulation.GymnasiumPufferEnv, env_creator=functools.partial(gymnasium.make, ENV_ID)
    )
    n_envs = task.envs(BEST)
    envs: Any = pufferlib.vector.make(
        make, backend=pufferlib.vector.Multiprocessing, num_envs=n_envs, num_workers=WORKERS
    )
    choose = task.chooser()
    rows = []
    observations, _ = envs.reset(seed=0)
    rounds = -(-task.steps // n_envs)
    for _ in range(rounds):
        observations = observations.copy()  # A view of memory that the next step overwrites.
        actions = choose(observations)
        following, rewards, terminated, truncated, _ = envs.step(actions)
        rows.append((observations, actions, rewards.copy(), terminated.copy(), truncated.copy()))
        observations = following
    columns = [np.stack(column) for column in zip(*rows, strict=True)]
    envs.close()
    return int(columns[2].size)


if __name__ == "__main__":
    main("pufferlib-core", {"multiprocessing": run})
