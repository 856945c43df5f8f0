"""Building workers for tests, and comparing what they recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import gymnasium
import numpy as np

from rollout_cli.chunk import Chunk
from rollout_cli.envs import describe_env
from rollout_cli.episode_batch import EnvSpec
from rollout_cli.workers import DefaultWorker
from rollout_cli.workers.recording_worker import RecordingWorker
from rollout_cli.workers.rules import EpisodeRules
from tests.support.policies import LinearPolicy

SEED = 11


def make_worker(
    env: gymnasium.Env[Any, Any],
    policy: Callable[[EnvSpec], Any] = LinearPolicy,
    *,
    max_episode_length: float | None = None,
    rules: EpisodeRules | None = None,
    **options: Any,
) -> DefaultWorker:
    """Return a worker with this environment, and a policy made for its spaces."""
    worker = DefaultWorker(seed=SEED, max_episode_length=max_episode_length, worker_number=2, **options)
    worker.rules = rules or worker.rules
    worker.update_env(env)
    worker.update_agent(policy(describe_env(env)))
    return worker


def run_numbers(worker: RecordingWorker, numbers: Iterable[int]) -> Chunk:
    """Run these episodes and return them."""
    worker.assign(numbers)
    while worker.has_work:
        worker.advance(-1.0)
    chunk = worker.take()
    assert chunk is not None
    return chunk


def assert_same_episodes(expected: Chunk, actual: Chunk) -> None:
    """Check that two chunks hold the same episodes, bit for bit, wherever and however fast they were run."""
    for name in ("numbers", "seeds", "lengths", "terminated", "truncated", "rewards"):
        np.testing.assert_array_equal(getattr(expected, name), getattr(actual, name), err_msg=name)
    for name in ("observations", "actions", "last_observations"):
        for one, other in zip(getattr(expected, name), getattr(actual, name), strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other, err_msg=name)
    for name in ("env_infos", "agent_infos", "episode_infos"):
        for left, right in zip(getattr(expected, name).columns, getattr(actual, name).columns, strict=True):
            assert (left.path, left.kind) == (right.path, right.kind), name
            np.testing.assert_array_equal(left.row_numbers(), right.row_numbers(), err_msg=name)
            np.testing.assert_array_equal(left.values, right.values, err_msg=name)
