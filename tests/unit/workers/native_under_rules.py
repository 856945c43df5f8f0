"""Running native environments under the rules of a run, as a sampler does."""

from __future__ import annotations

from typing import Any

from rollout_cli.episode_batch import EnvSpec
from rollout_cli.workers import NativeVecWorker, WorkerFactory
from rollout_cli.workers.rules import EpisodeRules
from tests.support.policies import LinearPolicy

N_ENVS = 3


def run(env: Any, policy: Any, rules: EpisodeRules | None = None, **options: Any) -> Any:
    """Run some episodes; return what a sampler takes: the chunk, and the error of an episode."""
    factory = WorkerFactory(
        n_workers=1, seed=3, worker_class=NativeVecWorker, worker_args={"n_envs": N_ENVS}, rules=rules, **options
    )
    worker = factory(0)
    worker.update_env(env)
    worker.update_agent(policy(worker.env_spec) if isinstance(policy, type) else policy)
    worker.assign(range(6))
    while worker.has_work:
        worker.advance(-1.0)
    return factory.take(worker)


class FixedPolicy(LinearPolicy):
    """Gives what it is told to."""

    given: Any = None

    def __init__(self, spec: EnvSpec) -> None:
        del spec

    def reset(self, do_resets: Any = None) -> None:
        """Begin."""

    def get_actions(self, observations: Any) -> Any:
        return self.given
