"""Minari's DataCollector: one process, which records while it steps, and creates a dataset when it ends."""
# /// script
# dependencies = ["minari[create,hdf5]", "pillow"]
# ///

from __future__ import annotations

import os
from pathlib import Path

import gymnasium

from benchmarks.peers.driver import ENV_ID, Clock, main
from benchmarks.policies import linear


def run(policy: str, steps: int, output: Path, clock: Clock) -> int:
    """Record complete episodes with at least `steps` steps as HDF5."""
    os.environ["MINARI_DATASETS_PATH"] = str(output)
    # Minari reads the path when it is imported.
    from minari import DataCollector  # noqa: PLC0415

    env = DataCollector(gymnasium.make(ENV_ID), data_format="hdf5")
    sample = env.action_space.sample
    taken, over = 0, True
    with clock:
        while taken < steps or not over:
            if over:
                observation, _ = env.reset(seed=taken)
            action = sample() if policy == "random" else linear(observation)
            observation, _, terminated, truncated, _ = env.step(action)
            over = terminated or truncated
            taken += 1
        env.create_dataset("cartpole/benchmark-v0", algorithm_name=policy)
    env.close()
    return taken


if __name__ == "__main__":
    main("minari", {"hdf5": run})
