"""imitation's `rollout`, over Stable-Baselines3's vector environments, saved by its `serialize`."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
from imitation.data import rollout, serialize
from stable_baselines3.common.vec_env import DummyVecEnv

from benchmarks.peers.driver import ENV_ID, Task, main

BEST = 16


def run(task: Task) -> int:
    """Collect whole trajectories with at least as many steps, and save them."""
    envs = DummyVecEnv([functools.partial(gymnasium.make, ENV_ID)] * task.envs(BEST))
    choose = task.chooser()

    def policy(observations: Any, _states: Any, _dones: Any) -> tuple[Any, None]:
        return choose(observations), None

    until = rollout.make_sample_until(min_timesteps=task.steps)
    # Infos would be kept as a dictionary a step; the comparison is without them.
    trajectories = rollout.rollout(
        policy, envs, until, rng=np.random.default_rng(), unwrap=False, exclude_infos=True, verbose=False
    )
    serialize.save(task.output / "trajectories", trajectories)
    envs.close()
    return sum(len(trajectory) for trajectory in trajectories)


if __name__ == "__main__":
    main("imitation", {"rollout": run})
