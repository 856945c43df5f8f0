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
    """Write some datasets an episode, as `ReplayBuffer.load` reads them.

    Its readers take an observation's successor from the next row, and what is last in an episode that was not
    terminated has none: such a step would be lost. So there is a row more of the last observation, beside the
    last action again and no reward.
    """
    spec = export.env_spec
    if any(len(leaf.path) > 1 for leaf in space_leaves(spec.observation_space)):
        raise UnsupportedSpaceError(
            "d3rlpy does not hold the Tuple space of observations, in which spaces are nested",
            code="format-space",
            hint="make it a vector: {set=flatten=true}",
        )
    start = getattr(spec.action_space, "start", 0)  # d3rlpy counts actions from 0.
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
    """Write the first rows of the values (T, *shape) and the last one, as vectors where they are numbers."""
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
