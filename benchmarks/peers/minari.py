"""Minari's DataCollector: one process, which records as it steps, and makes a dataset of it at the end."""

from __future__ import annotations

import os

import gymnasium

from benchmarks.peers.driver import ENV_ID, Task, choose_linear, main


def run_hdf5(task: Task) -> int:
    """Record as HDF5."""
    return _collect(task, "hdf5")


def run_arrow(task: Task) -> int:
    """Record as Arrow IPC."""
    return _collect(task, "arrow")


def _collect(task: Task, data_format: str) -> int:
    os.environ["MINARI_DATASETS_PATH"] = str(task.output)
    # It reads the path when it is imported.
    from minari import DataCollector  # noqa: PLC0415

    env = DataCollector(gymnasium.make(ENV_ID), data_format=data_format)
    taken, over = 0, True
    while taken < task.steps or not over:
        if over:
            observation, _ = env.reset(seed=taken)
        action = env.action_space.sample() if task.policy == "random" else int(choose_linear(observation[None])[0])
        observation, _, terminated, truncated, _ = env.step(action)
        over = terminated or truncated
        taken += 1
    env.create_dataset("cartpole/benchmark-v0", algorithm_name=task.policy)
    env.close()
    return taken


if __name__ == "__main__":
    main("minari", {"hdf5": run_hdf5, "arrow": run_arrow})
