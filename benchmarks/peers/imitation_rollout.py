"""imitation's `rollout` over Stable-Baselines3's DummyVecEnv, saved by its `serialize`."""
# /// script
# dependencies = ["torch==2.13.0", "imitation"]
# ///

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from imitation.data import rollout, serialize
from stable_baselines3.common.vec_env import DummyVecEnv

from benchmarks.peers.driver import ENV_ID, Clock, chooser, main


def run(policy: str, steps: int, output: Path, clock: Clock) -> int:
    """Collect complete episodes in 64 environments with at least `steps` steps, and save them."""
    envs = DummyVecEnv([functools.partial(gymnasium.make, ENV_ID)] * 64)
    choose = chooser(policy)

    def act(observations: Any, _states: Any, _dones: Any) -> tuple[Any, None]:
        return choose(observations), None

    until = rollout.make_sample_until(min_timesteps=steps)
    with clock:
        # Infos would be stored as one dictionary per step; the comparison excludes them.
        rng = np.random.default_rng()
        episodes = rollout.rollout(act, envs, until, rng=rng, unwrap=False, exclude_infos=True, verbose=False)
        serialize.save(output / "episodes", episodes)
    envs.close()
    return sum(map(len, episodes))


if __name__ == "__main__":
    main("imitation", {"rollout": run})
