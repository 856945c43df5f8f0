"""RLlib's recording env runners: two of them, each writing its episodes as Parquet."""

from __future__ import annotations

import os

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_DEDUP_LOGS", "0")

from typing import Any

import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.env.env_runner_group import EnvRunnerGroup
from ray.rllib.offline.offline_env_runner import OfflineSingleAgentEnvRunner

from benchmarks.peers.driver import ENV_ID, Task, main

BEST = 16
RUNNERS = 2


def run(task: Task) -> int:
    """Let each runner sample with random actions and write what it sampled."""
    ray.init(num_cpus=RUNNERS + 1, include_dashboard=False, log_to_driver=False)
    config = (
        PPOConfig()
        .environment(ENV_ID)
        .env_runners(
            env_runner_cls=OfflineSingleAgentEnvRunner,
            num_env_runners=RUNNERS,
            num_envs_per_env_runner=task.envs(BEST),
            batch_mode="complete_episodes",
        )
        .offline_data(output=str(task.output), output_write_episodes=True)
    )
    runners = EnvRunnerGroup(config=config, default_policy_class=None)
    share = -(-task.steps // RUNNERS)

    def sample(runner: Any) -> int:
        # One call writes one file; each more costs a run of Ray Data.
        return sum(map(len, runner.sample(num_timesteps=share, random_actions=True)))

    taken: int = sum(runners.foreach_env_runner(sample, local_env_runner=False, timeout_seconds=None))
    ray.shutdown()
    if not any(task.output.rglob("*.parquet")):
        # It logs what went wrong with a write and goes on.
        raise RuntimeError("RLlib wrote nothing")
    return taken


if __name__ == "__main__":
    main("ray", {"recording": run})
