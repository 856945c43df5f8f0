"""The bare loop: as many plain processes as workers step an environment with a policy, and record nothing."""

import json
import multiprocessing
import sys

import gymnasium

from benchmarks import policies


def run(env_id: str, policy: str, seeds: str, steps: int) -> None:
    """Take `steps` steps."""
    env = gymnasium.make(env_id)
    act = getattr(policies, policy, lambda _observation: env.action_space.sample())
    episode, over = 0, True
    for _ in range(steps):
        if over:
            observation, _ = env.reset(seed=episode if seeds == "seeded" else None)
            episode += 1
        observation, _, terminated, truncated, _ = env.step(act(observation))
        over = terminated or truncated


if __name__ == "__main__":
    processes, share = int(sys.argv[4]), int(sys.argv[5]) // int(sys.argv[4])
    with multiprocessing.Pool(processes) as pool:
        pool.starmap(run, [(*sys.argv[1:4], share)] * processes, chunksize=1)
    json.dump({"steps": share * processes}, sys.stdout)
