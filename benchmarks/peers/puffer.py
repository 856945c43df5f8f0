"""PufferLib's vectorisation with its multi-process backend. It has no recorder: rows are kept in memory."""
# /// script
# dependencies = ["torch==2.13.0", "pufferlib-core"]
# ///

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pufferlib.emulation
import pufferlib.vector

from benchmarks.peers.driver import ENV_ID, Clock, chooser, main

N_ENVS, PROCESSES = 1024, 2


def run(policy: str, steps: int, output: Path, clock: Clock) -> int:
    """Step the environments in two processes, half of them in each."""
    del output
    creator = functools.partial(gymnasium.make, ENV_ID)
    make = functools.partial(pufferlib.emulation.GymnasiumPufferEnv, env_creator=creator)
    backend = pufferlib.vector.Multiprocessing
    envs: Any = pufferlib.vector.make(make, backend=backend, num_envs=N_ENVS, num_workers=PROCESSES)
    choose = chooser(policy)
    rows = []
    observations, _ = envs.reset(seed=0)
    with clock:
        for _ in range(-(-steps // N_ENVS)):
            observations = observations.copy()  # The next step overwrites this memory.
            actions = choose(observations)
            following, rewards, terminated, truncated, _ = envs.step(actions)
            rows.append((observations, actions, rewards.copy(), terminated.copy(), truncated.copy()))
            observations = following
        columns = [np.stack(column) for column in zip(*rows, strict=True)]
    envs.close()
    return int(columns[2].size)


if __name__ == "__main__":
    main("pufferlib-core", {"multiprocessing": run})
