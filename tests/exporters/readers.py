"""Reading each format by h5py and numpy alone, by the rules of its own readers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Leaves = dict[str, Array]
"""The leaves of a tree by dotted path; the empty path is the root."""


@dataclass(frozen=True)
class Read:
    """An episode as it was read; None for what the format does not hold."""

    observations: Leaves  # T rows
    next_observations: Leaves
    actions: Leaves
    rewards: Array | None
    terminated: bool | None
    truncated: bool | None


def minari(path: Path) -> Iterator[Read]:
    with h5py.File(path / "data" / "main_data.hdf5") as file:
        for at in range(len(file)):
            group = file[f"episode_{at}"]
            seen, ended, cut = (
                _tree(group["observations"]),
                group["terminations"][()],
                group["truncations"][()],
            )
            assert not ended[:-1].any()
            assert not cut[:-1].any()
            assert group.attrs["total_steps"] == len(ended)
            yield Read(*shifted(seen), _tree(group["actions"]), group["rewards"][()], ended[-1], cut[-1])


def d3rlpy(path: Path) -> Iterator[Read]:
    with h5py.File(path) as file:
        for at in range(file["num_episodes"][()]):
            terminated = bool(file[f"terminated_{at}"][()])
            names = [name for name in file if f"{name}_".startswith(f"observations_{at}_")]
            seen = {
                name.removeprefix(f"observations_{at}").removeprefix("_"): file[name][()] for name in names
            }
            rows = slice(None) if terminated else slice(-1)
            actions, rewards = file[f"actions_{at}"][rows], file[f"rewards_{at}"][rows, 0]
            now, later = shifted(seen)
            if terminated:  # The observation after a terminal step has no use, and no place.
                now, later = seen, {}
            yield Read(now, later, {"": actions}, rewards, terminated, None)


def robomimic(path: Path) -> Iterator[Read]:
    with h5py.File(path) as file:
        for at in range(len(file["data"])):
            group = file[f"data/demo_{at}"]
            now, later = (
                {k.removeprefix("flat"): v for k, v in _tree(group[n]).items()} for n in ("obs", "next_obs")
            )
            ended = group["dones"][()]
            assert not ended[:-1].any()
            yield Read(now, later, {"": group["actions"][()]}, group["rewards"][()], ended[-1], None)


def d4rl(path: Path) -> Iterator[Read]:
    with h5py.File(path) as file:
        fields = {name: file[name][()] for name in file}
    assert not (fields["terminals"] & fields["timeouts"]).any()
    for rows in parts(fields["terminals"] | fields["timeouts"]):
        part = {name: values[rows] for name, values in fields.items()}
        ends = part["terminals"][-1], part["timeouts"][-1] or None
        yield Read(
            {"": part["observations"]},
            {"": part["next_observations"]},
            {"": part["actions"]},
            part["rewards"],
            *ends,
        )


def tianshou(path: Path) -> Iterator[Read]:
    with h5py.File(path) as file:
        fields = {name: file[name][()] for name in file}
    for rows in parts(fields["done"]):
        part = {name: values[rows] for name, values in fields.items()}
        ends = part["terminated"][-1], part["truncated"][-1]
        yield Read({"": part["obs"]}, {"": part["obs_next"]}, {"": part["act"]}, part["rew"], *ends)


def ogbench(path: Path) -> Iterator[Read]:
    with np.load(path) as file:
        fields = {name: file[name] for name in file.files}
    for rows in parts(fields["terminals"]):
        part = {name: values[rows] for name, values in fields.items() if name != "not_held"}
        now, later = shifted({"": part["observations"]})
        yield Read(now, later, {"": part["actions"][:-1]}, None, None, None)


FILE_READERS: Mapping[str, Callable[[Path], Iterator[Read]]] = {
    each.__name__: each for each in (minari, d3rlpy, robomimic, d4rl, tianshou, ogbench)
}


@contextmanager
def attributes(path: Path) -> Iterator[Any]:
    """Give the attributes of an HDF5 file."""
    with h5py.File(path) as file:
        yield file.attrs


def _tree(item: Any, path: str = "") -> Leaves:
    if isinstance(item, h5py.Group):
        parts = [_tree(child, f"{path}.{name.removeprefix('_index_')}") for name, child in item.items()]
        return {name: leaf for part in parts for name, leaf in part.items()}
    values = item.asstr()[()] if h5py.check_string_dtype(item.dtype) else item[()]
    return {path.removeprefix("."): values}


def shifted(seen: Leaves) -> tuple[Leaves, Leaves]:
    return {key: each[:-1] for key, each in seen.items()}, {key: each[1:] for key, each in seen.items()}


def parts(ends: Array) -> Iterator[slice]:
    assert ends[-1]
    return (slice(start, stop) for start, stop in pairwise([0, *(np.flatnonzero(ends) + 1).tolist()]))
