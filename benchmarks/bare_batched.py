"""The bare loop with a batched policy: each process steps several environments and asks the policy once for all.

Like `bare.py`, it records nothing. The policy is a torch network whose logits are sampled for the whole batch at once.
"""

from __future__ import annotations

import json
import multiprocessing
import sys

import gymnasium
import numpy as np
import torch

from benchmarks import policies


def run(env_id: str, n_envs: int, steps: int, seeds: str) -> None:
    """Take `steps` steps in all, spread over `n_envs` environments."""
    torch.set_num_threads(1)
    envs = [gymnasium.make(env_id) for _ in range(n_envs)]
    net = policies.torch_mlp()
    episode = 0

    def begin(env: gymnasium.Env[np.ndarray, int]) -> np.ndarray:
        nonlocal episode
        episode += 1
        return env.reset(seed=episode if seeds == "seeded" else None)[0]

    observations = np.stack([begin(env) for env in envs])
    with torch.no_grad():
        for _ in range(steps // n_envs):
            logits = net(torch.from_numpy(observations))
            actions = torch.multinomial(logits.softmax(1), 1)[:, 0].tolist()
            observations = np.empty_like(observations)
            for row, (env, action) in enumerate(zip(envs, actions, strict=True)):
                observation, _, terminated, truncated, _ = env.step(action)
                observations[row] = begin(env) if terminated or truncated else observation


if __name__ == "__main__":
    env_id, seeds = sys.argv[1:3]
    n_envs, processes, steps = map(int, sys.argv[3:])
    share = steps // processes // n_envs * n_envs
    # Spawned, as torch's threads do not survive a fork.
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        pool.starmap(run, [(env_id, n_envs, share, seeds)] * processes, chunksize=1)
    json.dump({"steps": share * processes}, sys.stdout)
