"""Stable-Baselines3's vector environments, with its ReplayBuffer as the record, saved by its `save_to_pkl`."""
# /// script
# dependencies = ["torch==2.13.0", "stable-baselines3"]
# ///

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import gymnasium
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.save_util import save_to_pkl
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from benchmarks.peers.driver import ENV_ID, Clock, chooser, main


def _collect(envs: Any, policy: str, steps: int, output: Path, clock: Clock) -> int:
    choose = chooser(policy)
    rounds = -(-steps // envs.num_envs)
    taken = int(rounds * envs.num_envs)
    buffer = ReplayBuffer(
        taken, envs.observation_space, envs.action_space, device="cpu", n_envs=envs.num_envs
    )
    observations = envs.reset()
    with clock:
        for _ in range(rounds):
            actions = choose(observations)
            following, rewards, dones, infos = envs.step(actions)
            last = following.copy() if dones.any() else following
            for row in dones.nonzero()[0]:
                last[row] = infos[row]["terminal_observation"]
            buffer.add(observations, last, actions, rewards, dones, infos)
            observations = following
        save_to_pkl(output / "replay_buffer.pkl", buffer)
    envs.close()
    return taken


def run_dummy(policy: str, steps: int, output: Path, clock: Clock) -> int:
    """Step 256 environments sequentially in this process."""
    return _collect(
        DummyVecEnv([functools.partial(gymnasium.make, ENV_ID)] * 256), policy, steps, output, clock
    )


def run_subproc(policy: str, steps: int, output: Path, clock: Clock) -> int:
    """Step 8 environments, each in a separate process."""
    return _collect(
        SubprocVecEnv([functools.partial(gymnasium.make, ENV_ID)] * 8), policy, steps, output, clock
    )


if __name__ == "__main__":
    main("stable-baselines3", {"dummy": run_dummy, "subproc": run_subproc})
