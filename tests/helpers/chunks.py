"""Synthetic episodes as chunks: deterministic, of any space, cut and interleaved as a test asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.chunk import Chunk, concatenate
from rollout_cli.episodes.infos import tabulate
from rollout_cli.episodes.spaces import Leaf, SpaceRows, space_leaves
from rollout_cli.seeding.seeds import env_seed

Array = npt.NDArray[Any]
Info = Callable[[int, int], Mapping[Any, Any]]
"""Gives the info dictionary of (episode number, step)."""

BOX_SPEC = EnvSpec(spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2))


def no_info(number: int, step: int) -> Mapping[Any, Any]:
    return {}


def episode(
    number: int,
    length: int,
    *,
    spec: EnvSpec = BOX_SPEC,
    env_info: Info = no_info,
    agent_info: Info = no_info,
    episode_info: Info = no_info,
    worker: int = 0,
) -> Chunk:
    """Return episode `number` as a chunk: values drawn from its number, ended by either flag, or both."""
    rng = np.random.default_rng(number)
    observations = sample_columns(spec.observation_space, length + 1, rng)
    return Chunk(
        numbers=np.array([number], np.int64),
        seeds=np.array([env_seed(0, number)], np.int64),
        lengths=np.array([length], np.int64),
        terminated=np.array([number % 3 != 1]),
        truncated=np.array([number % 3 != 0]),
        workers=np.array([worker], np.int32),
        wall_times=np.array([0.5 * length]),
        observations=tuple(column[:-1] for column in observations),
        actions=sample_columns(spec.action_space, length, rng),
        rewards=rng.standard_normal(length),
        last_observations=tuple(column[-1:] for column in observations),
        env_infos=tabulate([env_info(number, step) for step in range(length)]),
        agent_infos=tabulate([agent_info(number, step) for step in range(length)]),
        episode_infos=tabulate([episode_info(number, 0)]),
    )


def seeded(chunk: Chunk, root_seed: int) -> Chunk:
    """Return a chunk with the seeds of a run of another root seed."""
    seeds = [env_seed(root_seed, number) for number in chunk.numbers.tolist()]
    return replace(chunk, seeds=np.array(seeds, np.int64))


def sample_columns(space: gymnasium.Space[Any], rows: int, rng: np.random.Generator) -> tuple[Array, ...]:
    """Return `rows` samples of `space`, one array a leaf."""
    space.seed(int(rng.integers(2**31)))
    columns_of = SpaceRows(space).columns
    samples = [columns_of(space.sample()) for _ in range(rows)]
    return tuple(
        _column(leaf, values)
        for leaf, values in zip(space_leaves(space), zip(*samples, strict=True), strict=True)
    )


def _column(leaf: Leaf, values: Sequence[Any]) -> Array:
    if leaf.kind == "text":
        column = np.empty(len(values), object)
        column[:] = values
        return column
    if leaf.kind == "sequence":
        shape, dtype = leaf.element.shape, leaf.element.dtype
        return np.fromiter((np.array(each, dtype).reshape(-1, *shape) for each in values), object)
    return np.array(values, leaf.dtype).reshape(len(values), *leaf.shape)


def grouped(episodes: Sequence[Chunk], sizes: Sequence[int]) -> list[Chunk]:
    """Return the episodes as chunks of `sizes` episodes, over and over."""
    out, at, turn = [], 0, 0
    while at < len(episodes):
        size = sizes[turn % len(sizes)]
        out.append(concatenate(list(episodes[at : at + size])))
        at, turn = at + size, turn + 1
    return out
