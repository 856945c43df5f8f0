"""Building VecWorkers for tests, and telling which row ran which episode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

from rollout_cli.chunk import Chunk
from rollout_cli.envs import describe_env
from rollout_cli.workers import VecWorker
from tests.support import rows
from tests.unit.workers.making import SEED

Row = rows.RowEnv


def make_vec(
    row_envs: Sequence[gymnasium.Env[Any, Any]],
    policy: Callable[[Any], Any] = rows.TablePolicy,
    *,
    max_episode_length: float | None = None,
) -> VecWorker:
    """Return worker number 2 with these environments, one a row."""
    worker = VecWorker(seed=SEED, max_episode_length=max_episode_length, worker_number=2, n_envs=len(row_envs))
    worker.update_env(list(row_envs))
    worker.update_agent(policy(describe_env(row_envs[0])))
    return worker


def tags(chunk: Chunk) -> dict[int, int]:
    """Return which environment ran each episode."""
    starts = np.cumsum(chunk.lengths) - chunk.lengths
    infos = chunk.env_infos.to_dicts()
    return {number: infos[start]["tag"] for number, start in zip(chunk.numbers.tolist(), starts.tolist(), strict=True)}
