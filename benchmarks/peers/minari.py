"""Minari's DataCollector: one process, which records as it steps, and makes a dataset of it at the end."""

from __future__ import annotations

import os
from pathlib import Path

import gymnasium

from benchmarks.peers.driver import ENV_ID, Mode, Task, main
from benchmarks.policies import linear

_DATASET = "cartpole/benchmark-v0"


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
    sample = env.action_space.sample
    taken, over = 0, True
    with task.clock:
        while taken < task.steps or not over:
            if over:
                observation, _ = env.reset(seed=taken)
            action = sample() if task.policy == "random" else linear(observation)
            observation, _, terminated, truncated, _ = env.step(action)
            over = terminated or truncated
            taken += 1
        env.create_dataset(_DATASET, algorithm_name=task.policy)
    env.close()
    return taken


def read(folder: Path) -> dict[str, int]:
    """Count the rows; an episode has one observation more."""
    del folder  # The environment variable names it.
    import minari  # noqa: PLC0415

    episodes = list(minari.load_dataset(_DATASET).iterate_episodes())
    columns = ("actions", "rewards", "terminations", "truncations")
    observations = sum(len(episode.observations) - 1 for episode in episodes)
    return {"observations": observations} | {
        name: sum(len(getattr(episode, name)) for episode in episodes) for name in columns
    }


if __name__ == "__main__":
    # It steps one environment, so there is nothing to try.
    main("minari", {"hdf5": Mode(run_hdf5, {}, read=read), "arrow": Mode(run_arrow, {}, read=read)})
