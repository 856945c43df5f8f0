"""Stable-Baselines3's vector environments, with its ReplayBuffer as the record, saved by its `save_to_pkl`."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import gymnasium
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.save_util import load_from_pkl, save_to_pkl
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from benchmarks.peers.driver import ENV_ID, Mode, Task, main

_FILE = "replay_buffer.pkl"


def run_subproc(task: Task) -> int:
    """Step environments in processes of their own."""
    return _collect(task, SubprocVecEnv([functools.partial(gymnasium.make, ENV_ID)] * task.n_envs))


def run_dummy(task: Task) -> int:
    """Step environments one after the other in this process."""
    return _collect(task, DummyVecEnv([functools.partial(gymnasium.make, ENV_ID)] * task.n_envs))


def _collect(task: Task, envs: Any) -> int:
    choose = task.chooser()
    rounds = -(-task.steps // envs.num_envs)
    steps = rounds * envs.num_envs
    buffer = ReplayBuffer(steps, envs.observation_space, envs.action_space, device="cpu", n_envs=envs.num_envs)
    observations = envs.reset()
    with task.clock:
        for _ in range(rounds):
            actions = choose(observations)
            following, rewards, dones, infos = envs.step(actions)
            last = following.copy() if dones.any() else following
            for row in dones.nonzero()[0]:
                last[row] = infos[row]["terminal_observation"]
            buffer.add(observations, last, actions, rewards, dones, infos)
            observations = following
        save_to_pkl(task.output / _FILE, buffer)
    envs.close()
    return int(steps)


def read(folder: Path) -> dict[str, int]:
    """Count the rows; `timeouts` are the truncations."""
    buffer: Any = load_from_pkl(folder / _FILE)
    columns = ("observations", "actions", "rewards", "dones", "timeouts")
    return {name: buffer.size() * getattr(buffer, name).shape[1] for name in columns}


if __name__ == "__main__":
    main(
        "stable-baselines3",
        {
            "subproc": Mode(run_subproc, {"envs": 8}, tried=[{"envs": n} for n in (2, 4, 8)], read=read),
            "dummy": Mode(run_dummy, {"envs": 256}, tried=[{"envs": n} for n in (1, 8, 64, 256)], read=read),
        },
    )
