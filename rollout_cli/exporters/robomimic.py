"""robomimic's HDF5 format: https://robomimic.github.io/docs/datasets/overview.html."""

from __future__ import annotations

import json
from operator import itemgetter

import numpy as np
from gymnasium import spaces

from rollout_cli.dataset.states import stored_states
from rollout_cli.episodes.batch import at_ends
from rollout_cli.episodes.spaces import Tree, map_tree
from rollout_cli.exporters.format import Array, Export, Format
from rollout_cli.exporters.hdf5 import hdf5_file, put_tree
from rollout_cli.exporters.source import with_last

_GYM = 2
"""robomimic's number for gym environments."""


def write(export: Export) -> None:
    """Write one group per episode, with observations named by the keys of their Dict space.

    The parts of a Tuple are named by position. All other observations are named `flat`, as in robomimic's gym
    environments.
    """
    env = {"env_name": export.env_id, "env_type": _GYM, "env_kwargs": export.env_kwargs}
    with hdf5_file(export) as file:
        data = file.create_group("data")
        data.attrs.update({"total": export.n_steps, "env_args": json.dumps(env)})
        for index, episode in enumerate(export.source):
            steps = len(episode)
            group = data.create_group(f"demo_{index}")
            group.attrs["num_samples"] = steps
            rows = map_tree(with_last, episode.observations, episode.last_observation)
            for name, part in (("obs", slice(steps)), ("next_obs", slice(1, None))):
                tree = map_tree(itemgetter(part), rows)
                put_tree(group, name, map_tree(_vectors, _modalities(tree)))
            group["actions"] = episode.actions.reshape(steps, -1)
            group["rewards"] = episode.rewards
            group["dones"] = at_ends(export.lengths[index : index + 1], episode.terminated)
            # The states before each step; readers require them, even if they are unknown.
            runs = export.source.info.get("sources", ())
            states = stored_states(runs[episode.source], episode.batch) if runs else None
            group["states"] = np.zeros((steps, 0)) if states is None else states[:-1]


def _modalities(tree: Tree) -> dict[str, Tree]:
    if isinstance(tree, dict):
        return tree
    if isinstance(tree, tuple):
        return {str(index): part for index, part in enumerate(tree)}
    return {"flat": tree}


def _vectors(values: Array) -> Array:
    return values[:, None] if values.ndim == 1 else values


FORMAT = Format(
    "robomimic",
    "robomimic",
    write,
    nested_observations=(spaces.Dict, spaces.Tuple),
    suffixes=(".hdf5", ".h5"),
    both_ends=False,
    float64=False,
    float64_rewards=False,
)
