"""Replay buffers of Stable-Baselines3, as `save_replay_buffer` pickles them: https://stable-baselines3.readthedocs.io."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, Space

from rollout_cli.episodes.spaces import Array
from rollout_cli.errors import DatasetFormatError
from rollout_cli.importers.format import LAST_OBSERVATION, SEEDS, Foreign, Format, spans, with_unknown_last
from rollout_cli.recording.arrays import EpisodeArrays
from rollout_cli.sources.loading import needing

_SUFFIX = ".pkl"
_STARTS = "the first steps of episodes that the full buffer had replaced in part"
_ENDS = "whether the last episode of each environment went on: it is stored as truncated"
_BOTH = "timeouts: the buffer did not handle them, so an end by time is stored as terminated"
_SCALED = "actions as the environment took them: they are scaled from -1 to 1 to the bounds"


@contextmanager
def read(path: Path) -> Iterator[Foreign]:
    """Unpickle a buffer, which may run any code, and give the steps of each of its environments in order.

    The algorithms of Stable-Baselines3 store actions of a Box scaled to -1 to 1.
    """
    with needing("stable_baselines3"):
        from stable_baselines3.common.buffers import ReplayBuffer  # noqa: PLC0415 - an optional package
    buffer = pickle.loads(path.read_bytes())  # noqa: S301 - the user trusts the file
    if not isinstance(buffer, ReplayBuffer):
        raise DatasetFormatError(
            f"{path} holds a {type(buffer).__name__}, expected a ReplayBuffer", code="import-damaged"
        )
    unknown = [SEEDS, _ENDS]
    if buffer.full:
        unknown.append(_STARTS)
    if buffer.optimize_memory_usage:
        unknown.append(LAST_OBSERVATION)
    if not buffer.handle_timeout_termination:
        unknown.append(_BOTH)
    space = buffer.action_space
    if isinstance(space, Box) and not (np.all(space.low == -1) and np.all(space.high == 1)):
        unknown.append(_SCALED)
    yield Foreign(
        episodes=_episodes(buffer),
        observation_space=buffer.observation_space,
        action_space=space,
        unknown=tuple(unknown),
    )


def _episodes(buffer: Any) -> Iterator[EpisodeArrays]:
    # A full buffer replaces its oldest step next.
    order = np.arange(buffer.pos)
    if buffer.full:
        order = np.roll(np.arange(buffer.buffer_size), -buffer.pos)
    for env in range(buffer.n_envs):
        dones = buffer.dones[order, env].astype(bool)
        for start, stop in spans(dones):
            yield _episode(buffer, order[start:stop], env)


def _episode(buffer: Any, rows: Array, env: int) -> EpisodeArrays:
    last = rows[-1]
    terminated = bool(buffer.dones[last, env]) and not bool(buffer.timeouts[last, env])
    return EpisodeArrays(
        observations=_observations(buffer, rows, env),
        actions=_actions(buffer.actions[rows, env], buffer.action_space),
        rewards=buffer.rewards[rows, env],
        terminated=terminated,
        truncated=not terminated,
    )


def _observations(buffer: Any, rows: Array, env: int) -> Any:
    """Return a tree of arrays (T + 1, *shape).

    A buffer that saves memory has a next observation in the next row, where the next episode's first one replaces
    the last one of an episode that ended.
    """
    last = rows[-1]

    def joined(seen: Array, after: Array) -> Array:
        return np.concatenate([seen[rows, env], after[np.newaxis]])

    if isinstance(buffer.observations, dict):
        return {
            key: _shaped(
                joined(seen, buffer.next_observations[key][last, env]), buffer.observation_space[key]
            )
            for key, seen in buffer.observations.items()
        }
    if not buffer.optimize_memory_usage:
        after = buffer.next_observations[last, env]
    elif buffer.dones[last, env]:
        return with_unknown_last(_shaped(buffer.observations[rows, env], buffer.observation_space))
    else:
        after = buffer.observations[(last + 1) % buffer.buffer_size, env]
    return _shaped(joined(buffer.observations, after), buffer.observation_space)


def _shaped(values: Array, space: Space[Any]) -> Array:
    """Return the values of a space; the buffer keeps a choice as an array (T, 1)."""
    return values.reshape(len(values), *(space.shape or ()))


def _actions(actions: Array, space: Space[Any]) -> Array:
    if isinstance(space, Discrete):
        return actions[:, 0]
    if isinstance(space, Box):
        middle = (actions.reshape(len(actions), *space.shape) + 1) / 2
        return np.asarray(space.low + middle * (space.high - space.low), space.dtype)
    return _shaped(actions, space)


FORMAT = Format(
    "sb3", "Stable-Baselines3", lambda path: path.suffix == _SUFFIX and path.is_file(), read, runs_code=True
)
