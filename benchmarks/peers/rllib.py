"""RLlib's recording env runners: two of them, each writing its episodes as Parquet."""

from __future__ import annotations

import os

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_DEDUP_LOGS", "0")

from pathlib import Path
from typing import Any

import msgpack
import msgpack_numpy
import pyarrow.parquet as pq
import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.env.env_runner_group import EnvRunnerGroup
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.offline.offline_env_runner import OfflineSingleAgentEnvRunner

from benchmarks.peers.driver import ENV_ID, Mode, Task, main


def run(task: Task) -> int:
    """Let each runner sample with random actions and write what it sampled."""
    n_runners = task.settings["processes"]
    ray.init(num_cpus=n_runners + 1, include_dashboard=False, log_to_driver=False)
    config = (
        PPOConfig()
        .environment(ENV_ID)
        .env_runners(
            env_runner_cls=OfflineSingleAgentEnvRunner,
            num_env_runners=n_runners,
            num_envs_per_env_runner=task.n_envs,
            batch_mode="complete_episodes",
        )
        .offline_data(output=str(task.output), output_write_episodes=True)
    )
    runners = EnvRunnerGroup(config=config, default_policy_class=None)
    share = -(-task.steps // n_runners)

    def sample(runner: Any) -> int:
        # One call writes one file; each more costs a run of Ray Data.
        return sum(map(len, runner.sample(num_timesteps=share, random_actions=True)))

    with task.clock:
        taken: int = sum(runners.foreach_env_runner(sample, local_env_runner=False, timeout_seconds=None))
    ray.shutdown()
    if not any(task.output.rglob("*.parquet")):
        # It logs what went wrong with a write and goes on.
        raise RuntimeError("RLlib wrote nothing")
    return taken


def read(folder: Path) -> dict[str, int]:
    """Count the rows; each row of a file is one packed episode."""
    packed = [item for file in folder.rglob("*.parquet") for item in pq.read_table(file)["item"].to_pylist()]
    episodes = [
        SingleAgentEpisode.from_state(msgpack.unpackb(item, object_hook=msgpack_numpy.decode)) for item in packed
    ]
    return {
        "observations": sum(len(episode.observations) - 1 for episode in episodes),
        "actions": sum(len(episode.actions) for episode in episodes),
        "rewards": sum(len(episode.rewards) for episode in episodes),
    }


if __name__ == "__main__":
    tried = [{"processes": 2, "envs": n} for n in (1, 16, 64)]
    main("ray", {"recording": Mode(run, best={"processes": 2, "envs": 1}, tried=tried, read=read)})
