"""What a worker class of the user's own collects: checked, and as chunks."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollout_cli._info_arrays import info_rows
from rollout_cli.chunk import Chunk
from rollout_cli.episode_batch import EnvSpec, EpisodeBatch
from rollout_cli.errors import UserCodeError
from rollout_cli.infos import tabulate
from rollout_cli.spaces import flatten


def check_batch(batch: Any, spec: EnvSpec, name: str) -> None:
    """Check that a class has given whole episodes of its environment.

    Args:
        batch: What it gave.
        spec: The environment's spaces.
        name: The class's name, for messages.

    Raises:
        UserCodeError: If it has not.
    """
    hint = "collect_episode and rollout return an EpisodeBatch of whole episodes of the worker's environment"
    if not isinstance(batch, EpisodeBatch):
        raise UserCodeError(f"{name} gave a {type(batch).__name__}, not an EpisodeBatch", hint=hint)
    if batch.first_steps.any() or not (batch.terminated | batch.truncated).all():
        raise UserCodeError(f"{name} gave a part of an episode", hint=hint)
    theirs = batch.env_spec
    if (spec.observation_space, spec.action_space) != (theirs.observation_space, theirs.action_space):
        raise UserCodeError(f"{name} gave episodes of other spaces than its environment's", hint=hint)


def chunk_of(episode: EpisodeBatch, spec: EnvSpec, *, worker_number: int, seconds: float) -> Chunk:
    """Return a batch of one episode as a chunk; its number is filled in later."""
    steps = int(episode.lengths[0])
    return Chunk(
        numbers=np.zeros(1, np.int64),
        seeds=episode.seeds,
        lengths=episode.lengths,
        terminated=episode.terminated,
        truncated=episode.truncated,
        workers=np.full(1, worker_number, np.int32),
        wall_times=np.full(1, seconds, np.float64),
        observations=tuple(flatten(spec.observation_space, episode.observations)),
        actions=tuple(flatten(spec.action_space, episode.actions)),
        rewards=episode.rewards,
        last_observations=tuple(flatten(spec.observation_space, episode.last_observations)),
        env_infos=tabulate(info_rows(episode.env_infos, steps)),
        agent_infos=tabulate(info_rows(episode.agent_infos, steps)),
        episode_infos=tabulate(info_rows(episode.episode_infos, 1)),
    )
