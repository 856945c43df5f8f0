"""Policies and environments of the suite, and what to ask of the episodes that come back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import gymnasium
import numpy as np

from rollout_cli.chunk import Chunk, concatenate
from rollout_cli.envs import describe_env
from rollout_cli.episode_batch import EnvSpec, EpisodeBatch
from rollout_cli.samplers import LocalSampler, MinTimesteps, Plan
from rollout_cli.spaces import tree_leaves
from tests.support import datasets
from tests.support.envs import SleepyEnv
from tests.support.policies import GlobalNoisePolicy


def noisy(env: gymnasium.Env[Any, Any], kind: Callable[[EnvSpec], Any] = GlobalNoisePolicy) -> Any:
    """Return a policy for an environment; by default one that draws from `numpy.random`."""
    return kind(describe_env(env))


def slow_env() -> SleepyEnv:
    """Return an environment whose episodes take some milliseconds, so that every worker gets its share."""
    return SleepyEnv(seconds=0.001)


def serial(plan: Plan, env: gymnasium.Env[Any, Any], policy: Any = None, *, seed: int = 5, **options: Any) -> Chunk:
    """Return the episodes of a plan as one local worker gives them."""
    policy = noisy(env) if policy is None else policy
    with LocalSampler(policy, env, seed=seed, n_workers=1, **options) as sampler:
        return concatenate(list(sampler.stream(plan)))


def serial_batch(timesteps: int, env: gymnasium.Env[Any, Any], policy: Any = None, **options: Any) -> EpisodeBatch:
    """Return the shortest run with so many steps as one local worker gives it."""
    chunk = serial(MinTimesteps(timesteps), env, policy, **options)
    return EpisodeBatch.from_chunks(describe_env(env), [chunk])


def assert_same_batches(expected: EpisodeBatch, actual: EpisodeBatch) -> None:
    """Check that two batches hold the same episodes, bit for bit, infos included."""
    datasets.assert_same_batches(expected, actual)
    for name in ("env_infos", "agent_infos", "episode_infos"):
        left, right = (tree_leaves(dict(getattr(batch, name))) for batch in (expected, actual))
        for one, other in zip(left, right, strict=True):
            assert one.dtype == other.dtype, name
            np.testing.assert_array_equal(one, other, err_msg=name)


def shares(chunks: Iterable[Chunk]) -> Counter[int]:
    """Return how many episodes each worker ran."""
    return Counter(int(worker) for chunk in chunks for worker in chunk.workers)


def numbers_of(chunks: Iterable[Chunk]) -> list[int]:
    return [int(number) for chunk in chunks for number in chunk.numbers]
