"""d3rlpy's HDF5 format, version 2.1: https://d3rlpy.readthedocs.io."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from rollout_cli.episodes.spaces import Tree, space_leaves
from rollout_cli.errors import UnsupportedSpaceError
from rollout_cli.exporters.format import Array, Export, Format
from rollout_cli.exporters.hdf5 import hdf5_file
from rollout_cli.exporters.source import with_last

_VERSION = "2.1"
_FIELDS = ("observations", "actions", "rewards", "terminated")


def write(export: Export) -> None:
    """Write several HDF5 datasets per episode, for `ReplayBuffer.load`.

    d3rlpy takes a next observation from the next row, and drops the last row of an episode that was not
    terminated. Therefore such an episode gets an extra row with the last observation, the last action again and
    reward 0.
    """
    spec = export.env_spec
    if any(len(leaf.path) > 1 for leaf in space_leaves(spec.observation_space)):
        raise UnsupportedSpaceError(
            "d3rlpy cannot store the Tuple space of observations with nested spaces in it",
            code="format-space",
            hint="flatten the space to a vector: {set=flatten=true}",
        )
    start = getattr(spec.action_space, "start", 0)  # d3rlpy numbers actions from 0.
    with hdf5_file(export) as file:
        file["columns"] = _FIELDS
        file["num_episodes"] = len(export.source)
        file["version"] = _VERSION
        for index, episode in enumerate(export.source):
            n_rows = len(episode)
            if not episode.terminated:
                n_rows += 1
            _put(file, f"observations_{index}", n_rows, episode.observations, episode.last_observation)
            _put(file, f"actions_{index}", n_rows, episode.actions - start, episode.actions[-1] - start)
            _put(file, f"rewards_{index}", n_rows, episode.rewards.astype(np.float32), 0)
            file[f"terminated_{index}"] = episode.terminated


def _put(file: Any, name: str, n_rows: int, values: Tree, last: Tree) -> None:
    """Write the first rows of `values` (T, *shape) and the last one; scalars become vectors."""
    if isinstance(values, tuple):
        for index, part in enumerate(values):
            _put(file, f"{name}_{index}", n_rows, part, last[index])
    else:
        rows: Array = with_last(values, last)[:n_rows]
        file[name] = rows[:, None] if rows.ndim == 1 else rows


FORMAT = Format(
    "d3rlpy",
    "d3rlpy",
    write,
    nested_observations=(spaces.Tuple,),
    suffixes=(".h5", ".hdf5"),
    both_ends=False,
    float64=False,
    float64_rewards=False,
    start=False,
)
