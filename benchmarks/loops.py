"""The bare loops that `rollout` is compared with: they step environments with a policy and record nothing.

`python -m benchmarks.loops LOOP ENV POLICY SEEDS N_ENVS PROCESSES STEPS` prints a JSON document with the
number of steps. `SEEDS` is `plain` (reset episodes without a seed) or `seeded` (with a seed per episode, like
`rollout`).
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from benchmarks import policies


def single(env_id: str, policy: str, seeds: str, n_envs: int, steps: int) -> None:
    """Step one environment, one action at a time."""
    del n_envs
    env = gymnasium.make(env_id)
    act = getattr(policies, policy, lambda _observation: env.action_space.sample())
    episode, over = 0, True
    for _ in range(steps):
        if over:
            observation, _ = env.reset(seed=episode if seeds == "seeded" else None)
            episode += 1
        observation, _, terminated, truncated, _ = env.step(act(observation))
        over = terminated or truncated


def batched(env_id: str, policy: str, seeds: str, n_envs: int, steps: int) -> None:
    """Step `n_envs` environments sequentially, with one call of a torch network for all actions."""
    import torch  # noqa: PLC0415  The import takes seconds, and other loops do not need it.

    torch.set_num_threads(1)
    envs = [gymnasium.make(env_id) for _ in range(n_envs)]
    net = getattr(policies, policy)()
    episode = 0

    def begin(env: gymnasium.Env[Any, Any]) -> Any:
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


def native(env_id: str, policy: str, seeds: str, n_envs: int, steps: int) -> None:
    """Step the environment's own vector form, which resets itself: the pure stepping rate."""
    del seeds
    envs = gymnasium.make_vec(env_id, num_envs=n_envs, vectorization_mode="vector_entry_point")
    batch = getattr(policies, policy, policies.BatchedMlp)()
    observations: Any = envs.reset(seed=0)[0]
    for _ in range(steps // n_envs):
        actions = envs.action_space.sample() if policy == "random" else batch.get_actions(observations)[0]
        observations = envs.step(actions)[0]


LOOPS: dict[str, Callable[[str, str, str, int, int], None]] = {
    "single": single,
    "batched": batched,
    "native": native,
}


def main(arguments: list[str]) -> None:
    """Run the loop in several processes, and divide the steps among them."""
    loop, env_id, policy, seeds = arguments[:4]
    n_envs, processes, steps = map(int, arguments[4:])
    share = max(1, steps // processes // n_envs) * n_envs
    if processes == 1:
        LOOPS[loop](env_id, policy, seeds, n_envs, share)
    else:
        # Spawn, since torch's threads do not survive a fork.
        with multiprocessing.get_context("spawn").Pool(processes) as pool:
            pool.starmap(LOOPS[loop], [(env_id, policy, seeds, n_envs, share)] * processes, chunksize=1)
    json.dump({"steps": share * processes}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
