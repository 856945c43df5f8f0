"""Formats as values: how a dataset of another tool is recognised, and read as episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from rollout_cli.episodes.spaces import Array, Space, map_tree
from rollout_cli.errors import DatasetFormatError
from rollout_cli.recording.arrays import EpisodeArrays

LAST_OBSERVATION = "last observations: stored as nan"
ENDS = "whether an episode terminated or was truncated"
SEEDS = "seeds"
REWARDS = "rewards: stored as nan"


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """An open dataset of another tool.

    Attributes:
        episodes: The episodes, each read when it is needed.
        observation_space: The space of the observations; None if the dataset does not state it.
        action_space: The space of the actions; None if the dataset does not state it.
        max_episode_length: The time limit of the environment, if the dataset states it.
        env: The environment's id or name, if the dataset states it.
        unknown: What the dataset does not say, a few words each.
    """

    episodes: Iterator[EpisodeArrays]
    observation_space: Space | None = None
    action_space: Space | None = None
    max_episode_length: int | None = None
    env: str | None = None
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Format:
    """A format to import.

    Attributes:
        name: Its name for `--from`.
        title: The tools that write it.
        recognises: Whether a path, which exists, holds such a dataset, by its content.
        read: Opens it; closing the context closes its files.
        runs_code: Whether opening it may run any code.
    """

    name: str
    title: str
    recognises: Callable[[Path], bool]
    read: Callable[[Path], AbstractContextManager[Foreign]]
    runs_code: bool = False


def spans(ends: Array) -> Iterator[tuple[int, int]]:
    """Yield the first row of each episode, and the row after its last one.

    `ends` (N,) is true in the last row of an episode; the rows after the last end are an episode too.
    """
    stops = np.flatnonzero(ends) + 1
    return pairwise(dict.fromkeys([0, *stops.tolist(), len(ends)]))


def with_last(values: Array, following: Array) -> Array:
    """Return values (T, *shape) with the last row of `following` behind them."""
    return np.concatenate([values, following[-1:]])


def with_unknown_last(observations: Any) -> Any:
    """Return a tree of arrays (T, *shape) with a row of nan behind each array, for an unknown observation.

    Raises:
        DatasetFormatError: If an array has a dtype without nan.
    """
    return map_tree(_with_nan, observations)


def _with_nan(values: Array) -> Array:
    if values.dtype.kind != "f":
        raise DatasetFormatError(
            f"the dataset lacks the last observations, and observations of dtype {values.dtype} cannot be unknown",
            code="import-last-observation",
            hint="export the dataset again with next observations",
        )
    return np.concatenate([values, np.full((1, *values.shape[1:]), np.nan, values.dtype)])


def integer_actions(actions: Array) -> Array:
    """Return the choices of a Discrete space, which some formats store as (T, 1), as integers (T,)."""
    if actions.dtype.kind in "iu" and actions.shape[1:] == (1,):
        return actions[:, 0]
    return actions
