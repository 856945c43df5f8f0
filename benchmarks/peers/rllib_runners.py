"""RLlib's recording env runners: two of them, each writing its episodes as Parquet."""
# /// script
# dependencies = ["torch==2.13.0", "ray[rllib]", "msgpack-numpy"]
# ///

from __future__ import annotations

import os

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_DEDUP_LOGS", "0")

from pathlib import Path
from typing import Any

import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.env.env_runner_group import EnvRunnerGroup
from ray.rllib.offline.offline_env_runner import OfflineSingleAgentEnvRunner

from benchmarks.peers.driver import ENV_ID, Clock, main

N_RUNNERS = 2


def run(policy: str, steps: int, output: Path, clock: Clock) -> int:
    """Sample with random actions in each runner and write its episodes, with one call, which writes one file."""
    del policy
    ray.init(num_cpus=N_RUNNERS + 1, include_dashboard=False, log_to_driver=False)
    config = (
        PPOConfig()
        .environment(ENV_ID)
        .env_runners(
            env_runner_cls=OfflineSingleAgentEnvRunner,
            num_env_runners=N_RUNNERS,
            batch_mode="complete_episodes",
        )
        .offline_data(output=str(output), output_write_episodes=True)
    )
    runners = EnvRunnerGroup(config=config, default_policy_class=None)
    share = -(-steps // N_RUNNERS)

    def sample(runner: Any) -> int:
        return sum(map(len, runner.sample(num_timesteps=share, random_actions=True)))

    with clock:
        taken: int = sum(runners.foreach_env_runner(sample, local_env_runner=False, timeout_seconds=None))
    ray.shutdown()
    if not any(output.rglob("*.parquet")):
        # RLlib logs a failed write and continues.
        raise RuntimeError("RLlib wrote nothing")
    return taken


if __name__ == "__main__":
    main("ray", {"recording": run})
