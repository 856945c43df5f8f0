"""`python -m benchmarks.intake KIND WORKERS STEPS`: takes in ready-made episodes and throws them away.

Beside `rollout collect` with the same worker class, it tells what the writing costs.
"""

from __future__ import annotations

import json
import sys

from benchmarks import synthetic
from rollout_cli.envs import env_source
from rollout_cli.policies import policy_source
from rollout_cli.samplers import MinTimesteps, MultiprocessingSampler
from rollout_cli.workers import WorkerFactory


def main(kind: str, n_workers: int, steps: int) -> int:
    """Take in at least `steps` steps from workers of a class of `benchmarks.synthetic`; return how many came."""
    factory = WorkerFactory(n_workers=n_workers, seed=0, worker_class=getattr(synthetic, kind))
    with MultiprocessingSampler(policy_source("random"), env_source("CartPole-v1"), worker_factory=factory) as sampler:
        return sum(chunk.n_steps for chunk in sampler.stream(MinTimesteps(steps)))


if __name__ == "__main__":
    json.dump({"steps": main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))}, sys.stdout)
