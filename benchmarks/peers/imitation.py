"""imitation's `rollout`, over Stable-Baselines3's vector environments, saved by its `serialize`."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from imitation.data import rollout, serialize
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from benchmarks.peers.driver import ENV_ID, Mode, Task, main


def run(task: Task) -> int:
    """Collect whole episodes with at least as many steps, and save them."""
    make = [functools.partial(gymnasium.make, ENV_ID)] * task.n_envs
    envs = SubprocVecEnv(make) if task.settings.get("processes") else DummyVecEnv(make)
    choose = task.chooser()

    def policy(observations: Any, _states: Any, _dones: Any) -> tuple[Any, None]:
        return choose(observations), None

    until = rollout.make_sample_until(min_timesteps=task.steps)
    with task.clock:
        # Infos would be kept as a dictionary a step; the comparison is without them.
        episodes = rollout.rollout(
            policy, envs, until, rng=np.random.default_rng(), unwrap=False, exclude_infos=True, verbose=False
        )
        serialize.save(task.output / "episodes", episodes)
    envs.close()
    return sum(map(len, episodes))


def read(folder: Path) -> dict[str, int]:
    """Count the rows; an episode has one observation more, and one flag."""
    episodes = serialize.load(folder / "episodes")
    return {
        "observations": sum(len(episode.obs) - 1 for episode in episodes),
        "actions": sum(len(episode.acts) for episode in episodes),
        "rewards": sum(len(episode.rews) for episode in episodes),
        "terminal": sum(len(episode) for episode in episodes if episode.terminal is not None),
    }


if __name__ == "__main__":
    tried = [*({"envs": n} for n in (1, 8, 16, 64, 256)), {"envs": 2, "processes": 2}]
    main("imitation", {"rollout": Mode(run, best={"envs": 64}, tried=tried, read=read)})
