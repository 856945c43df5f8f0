"""Building NativeVecWorkers for tests, running their episodes, and checking that these are whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from rollout_cli.chunk import Chunk, concatenate
from rollout_cli.episode_batch import EnvSpec
from rollout_cli.workers import DefaultWorker, NativeVecWorker
from tests.support.policies import LinearPolicy
from tests.unit.workers.making import SEED

DISABLED, NEXT_STEP, SAME_STEP = AutoresetMode.DISABLED, AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP
MODES = [DISABLED, NEXT_STEP, SAME_STEP]
each_mode = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
each_self_resetting = pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP], ids=lambda mode: mode.value)

Make = Callable[[EnvSpec], Any]


def native(
    env: Any, policy: Make = LinearPolicy, *, n_envs: int = 3, limit: float | None = None, worker: int = 0
) -> NativeVecWorker:
    """Return a worker with this vector environment, and a policy made for its spaces."""
    made = NativeVecWorker(seed=SEED, max_episode_length=limit, worker_number=worker, n_envs=n_envs)
    made.update_env(env)
    made.update_agent(policy(made.env_spec))
    return made


def default(env: gymnasium.Env[Any, Any], policy: Make = LinearPolicy, *, limit: float | None = None) -> DefaultWorker:
    """Return a worker with one environment alone, of the same seed."""
    made = DefaultWorker(seed=SEED, max_episode_length=limit, worker_number=2)
    made.update_env(env)
    made.update_agent(policy(made.env_spec))
    return made


def run(worker: NativeVecWorker | DefaultWorker, numbers: Any, *, steps: int = 1) -> Chunk:
    """Run these episodes to the end, taking what is finished every few steps."""
    worker.assign(numbers)
    chunks = []
    while worker.has_work:
        for _ in range(steps):
            if worker.has_work:
                worker.advance(-1.0)
        if (chunk := worker.take()) is not None:
            chunks.append(chunk)
    whole = concatenate(chunks)
    order = np.argsort(whole.numbers)
    return concatenate([whole.episodes(at, at + 1) for at in order.tolist()])


def check_chain(chunk: Chunk) -> None:
    """Check that every episode of ChainEnv is whole: it counts its steps from 0 to the length that it tells."""
    for at in range(chunk.n_episodes):
        one = chunk.episodes(at, at + 1)
        length = int(one.lengths[0])
        (observations,), (last,) = one.observations, one.last_observations
        assert list(range(length)) == observations[:, 0].tolist()
        assert [length] * length == observations[:, 1].tolist()
        assert [length, length] == last[0, :2].tolist()
        assert [{"position": step + 1} for step in range(length)] == one.env_infos.to_dicts()
        assert [{"length": length}] == one.episode_infos.to_dicts()
        assert np.where(one.actions[0] == 1, 1.0, 0.5).tolist() == one.rewards.tolist()
