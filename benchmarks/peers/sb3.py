"""Stable-Baselines3's vector environments, with its ReplayBuffer as the record, saved by its `save_to_pkl`."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.save_util import save_to_pkl
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from benchmarks.peers.driver import ENV_ID, Task, main

BEST_SUBPROC, BEST_DUMMY = 8, 64


def run_subproc(task: Task) -> int:
    """Step environments in processes of their own."""
    return _collect(task, SubprocVecEnv([functools.partial(gymnasium.make, ENV_ID)] * task.envs(BEST_SUBPROC)))


def run_dummy(task: Task) -> int:
    """Step environments one after the other in this process."""
    return _collect(task, DummyVecEnv([functools.partial(gymnasium.make, ENV_ID)] * task.envs(BEST_DUMMY)))


def _collect(task: Task, envs: Any) -> int:
    choose = task.chooser()
    rounds = -(-task.steps // envs.num_envs)
    steps = rounds * envs.num_envs
    buffer = ReplayBuffer(steps, envs.observation_space, envs.action_space, device="cpu", n_envs=envs.num_envs)
    observations = envs.reset()
    for _ in range(rounds):
        actions = choose(observations)
        following, rewards, dones, infos = envs.step(actions)
        last = following.copy() if dones.any() else following
        for row in dones.nonzero()[0]:
            last[row] = infos[row]["terminal_observation"]
        buffer.add(observations, last, actions, rewards, dones, infos)
        observations = following
    save_to_pkl(task.output / "replay_buffer.pkl", buffer)
    envs.close()
    return int(steps)


if __name__ == "__main__":
    main("stable-baselines3", {"subproc": run_subproc, "dummy": run_dummy})
