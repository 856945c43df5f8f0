"""robomimic's HDF5 format: https://robomimic.github.io/docs/datasets/overview.html."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rollout_cli.episodes.spaces import map_tree
from rollout_cli.importers.format import (
    ENDS,
    LAST_OBSERVATION,
    SEEDS,
    Foreign,
    Format,
    integer_actions,
    with_last,
    with_unknown_last,
)
from rollout_cli.importers.hdf5 import array_of, has_members, hdf5_file, member, tree_of
from rollout_cli.recording.arrays import EpisodeArrays


@contextmanager
def read(path: Path) -> Iterator[Foreign]:
    """Open a file of demonstrations. One whose last `dones` is set terminated; the others were truncated."""
    with hdf5_file(path) as file:
        data = member(file, "data")
        names = sorted((name for name in data if re.fullmatch(r"demo_\d+", name)), key=_number)
        unknown = [SEEDS, ENDS]
        if names and "next_obs" not in data[names[0]]:
            unknown.append(LAST_OBSERVATION)
        yield Foreign(
            episodes=(_episode(member(data, name)) for name in names),
            env=_env(data.attrs.get("env_args")),
            unknown=tuple(unknown),
        )


def _number(name: str) -> int:
    return int(name.removeprefix("demo_"))


def _env(arguments: Any) -> str | None:
    """Return the environment's name from the JSON string of the file, if it has one."""
    try:
        return str(json.loads(arguments)["env_name"])
    except (TypeError, ValueError, KeyError):
        return None


def _episode(group: Any) -> EpisodeArrays:
    observations = _unwrapped(tree_of(group, "obs"))
    if "next_obs" in group:
        following = _unwrapped(tree_of(group, "next_obs"))
        observations = map_tree(with_last, observations, following)
    else:
        observations = with_unknown_last(observations)
    terminated = bool(array_of(group, "dones")[-1])
    return EpisodeArrays(
        observations=observations,
        actions=integer_actions(array_of(group, "actions")),
        rewards=array_of(group, "rewards"),
        terminated=terminated,
        truncated=not terminated,
    )


def _unwrapped(tree: Any) -> Any:
    """Return the one array of observations that were not named: `flat` is the name in gym environments."""
    return tree["flat"] if isinstance(tree, dict) and list(tree) == ["flat"] else tree


FORMAT = Format("robomimic", "robomimic", lambda path: has_members(path, "data", "data/demo_0"), read)
