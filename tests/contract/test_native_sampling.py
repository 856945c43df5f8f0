"""Native vector environments give the same episodes through every sampler and transport."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollout_cli.envs import env_source
from rollout_cli.samplers import LocalSampler
from rollout_cli.workers import NativeVecWorker, WorkerFactory
from tests.contract.conftest import MakeSampler
from tests.contract.making import assert_same_batches, noisy
from tests.support.envs import ChainEnv
from tests.support.policies import LinearPolicy

CALLS = (300, 40, 500)
"""Steps of successive calls: more than the smallest ring takes at once, and less."""


def arguments() -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return those of a sampler whose two workers have eight rows each, which are reset from seeds."""
    source = env_source("tests.support.vector_envs:chain", {"autoreset_mode": "Disabled"})
    factory = WorkerFactory(seed=5, n_workers=2, worker_class=NativeVecWorker, worker_args={"n_envs": 8})
    return (noisy(ChainEnv(), LinearPolicy), source), {"worker_factory": factory}


def test_episodes_are_the_same_through_every_sampler(make_sampler: MakeSampler) -> None:
    """Bit for bit, call after call; what an earlier call gave does not change meanwhile."""
    positional, options = arguments()
    with LocalSampler(*positional, **options) as reference:
        expected = [reference.obtain_samples(0, steps, None) for steps in CALLS]
    sampler = make_sampler(*positional, **options)
    actual = [sampler.obtain_samples(0, steps, None) for steps in CALLS]
    for one, other in zip(expected, actual, strict=True):
        assert_same_batches(one, other)
        assert np.isfinite(other.observations).all()
