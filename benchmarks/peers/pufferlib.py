"""PufferLib's vectorisation with its multi-process backend. It has no recorder: the rows are kept in memory."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
import pufferlib.emulation
import pufferlib.vector

from benchmarks.peers.driver import ENV_ID, Mode, Task, main


def run(task: Task) -> int:
    """Step environments in as many processes as are set, each with an equal part of them."""
    make = functools.partial(
        pufferlib.emulation.GymnasiumPufferEnv, env_creator=functools.partial(gymnasium.make, ENV_ID)
    )
    n_envs = task.n_envs
    envs: Any = pufferlib.vector.make(
        make, backend=pufferlib.vector.Multiprocessing, num_envs=n_envs, num_workers=task.settings["processes"]
    )
    choose = task.chooser()
    rows = []
    rounds = -(-task.steps // n_envs)
    observations, _ = envs.reset(seed=0)
    with task.clock:
        for _ in range(rounds):
            observations = observations.copy()  # A view of memory that the next step overwrites.
            actions = choose(observations)
            following, rewards, terminated, truncated, _ = envs.step(actions)
            rows.append((observations, actions, rewards.copy(), terminated.copy(), truncated.copy()))
            observations = following
        columns = [np.stack(column) for column in zip(*rows, strict=True)]
    envs.close()
    assert {column.shape[:2] for column in columns} == {(rounds, n_envs)}
    return int(columns[2].size)


if __name__ == "__main__":
    tried = [{"envs": n, "processes": 2} for n in (2, 16, 64, 256, 1024)]
    main("pufferlib-core", {"multiprocessing": Mode(run, best={"envs": 1024, "processes": 2}, tried=tried)})
