"""Pure stepping of a native vector environment in one process: `vector.step(actions)`, and nothing is recorded."""

from __future__ import annotations

import json
import sys
from typing import Any

import gymnasium

from benchmarks import policies

if __name__ == "__main__":
    env_id, policy = sys.argv[1:3]
    n_envs, steps = map(int, sys.argv[3:])
    envs = gymnasium.make_vec(env_id, num_envs=n_envs, vectorization_mode="vector_entry_point")
    batched = policies.BatchedMlp()
    rounds = steps // n_envs
    observations: Any = envs.reset(seed=0)[0]
    for _ in range(rounds):
        actions = envs.action_space.sample() if policy == "random" else batched.get_actions(observations)[0]
        observations = envs.step(actions)[0]
    json.dump({"steps": rounds * n_envs}, sys.stdout)
