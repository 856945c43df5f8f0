"""Building workers of the user's own classes for tests, as a sampler does."""

from __future__ import annotations

from typing import Any

from rollout_cli.envs import describe_env
from rollout_cli.workers import WorkerFactory
from tests.support.envs import ChainEnv
from tests.support.policies import LinearPolicy
from tests.unit.workers.making import SEED

SPEC = describe_env(ChainEnv())


def factory(kind: type[Any], **options: Any) -> WorkerFactory:
    """Return a factory of one worker of this class, or with other options."""
    return WorkerFactory(**{"n_workers": 1, "seed": SEED, "worker_class": kind, **options})


def make(kind: type[Any], policy: Any = None, **options: Any) -> Any:
    """Return the worker with ChainEnv, and a linear policy if no other is given."""
    worker = factory(kind, **options)(0)
    worker.update_env(ChainEnv())
    worker.update_agent(policy or LinearPolicy(SPEC))
    return worker
