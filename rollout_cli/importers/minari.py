"""Minari's HDF5 format: https://minari.farama.org/content/dataset_standards/."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from rollout_cli.episodes.spaces import Array, Space, space_leaves
from rollout_cli.errors import DatasetFormatError
from rollout_cli.importers.format import Foreign, Format
from rollout_cli.importers.hdf5 import array_of, hdf5_file, member, tree_of
from rollout_cli.recording.arrays import EpisodeArrays

_DATA = "main_data.hdf5"
_SPACES = ("observation_space", "action_space")
_IMAGE_SIDE = 32  # Minari encodes images with two sides of at least this size.


def recognises(path: Path) -> bool:
    """Return True if a folder, or its folder `data`, has the two files of Minari."""
    return _folder(path) is not None


@contextmanager
def read(path: Path) -> Iterator[Foreign]:
    """Open the dataset in a folder `<namespace>/<name>-v<N>`."""
    folder = _folder(path) or path / "data"
    metadata = _metadata(folder / "metadata.json")
    stated = [space for name in _SPACES if (space := _space(metadata, name)) is not None]
    if metadata.get("jpeg_encoding", True) and any(map(_has_images, stated)):
        raise DatasetFormatError(
            f"{folder / 'metadata.json'} states that images are JPEG, expected arrays",
            code="import-jpeg",
            hint="write the Minari dataset again with jpeg_encoding=False",
        )
    env_spec = json.loads(metadata.get("env_spec") or "null") or {}
    with hdf5_file(folder / _DATA) as file:
        yield Foreign(
            episodes=(_episode(file, number) for number in range(int(metadata["total_episodes"]))),
            observation_space=_space(metadata, _SPACES[0]),
            action_space=_space(metadata, _SPACES[1]),
            max_episode_length=env_spec.get("max_episode_steps"),
            env=env_spec.get("id"),
        )


def _folder(path: Path) -> Path | None:
    for folder in (path / "data", path):
        if (folder / _DATA).is_file() and (folder / "metadata.json").is_file():
            return folder
    return None


def _metadata(path: Path) -> dict[str, Any]:
    try:
        metadata = json.loads(path.read_text(encoding="utf-8"))
        int(metadata["total_episodes"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DatasetFormatError(
            f"{path} is not the metadata of a Minari dataset: {error!r}", code="import-damaged"
        ) from error
    return dict(metadata)


def _episode(file: Any, number: int) -> EpisodeArrays:
    group = member(file, f"episode_{number}")
    terminations = array_of(group, "terminations")
    truncations = array_of(group, "truncations")
    seed = group.attrs.get("seed")
    infos = tree_of(group, "infos") if "infos" in group else {}
    of_steps = {key: values[1:] for key, values in _flat(infos).items()}
    of_reset = {key: values[0] for key, values in _flat(infos).items()}
    return EpisodeArrays(
        observations=tree_of(group, "observations"),
        actions=tree_of(group, "actions"),
        rewards=array_of(group, "rewards"),
        terminated=bool(terminations[-1]),
        truncated=bool(truncations[-1]) or not terminations[-1],
        env_infos=of_steps,
        episode_info=of_reset,
        seed=int(seed) if seed is not None and 0 <= seed < 1 << 63 else None,
    )


def _flat(infos: Any, prefix: str = "") -> dict[str, Array]:
    """Return infos by dotted key."""
    flat: dict[str, Array] = {}
    for key, value in infos.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        elif isinstance(value, np.ndarray):
            flat[f"{prefix}{key}"] = value
    return flat


def _space(metadata: dict[str, Any], name: str) -> Space | None:
    if not metadata.get(name):
        return None
    try:
        return _built(json.loads(metadata[name]))
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        raise DatasetFormatError(
            f"the {name} of the Minari dataset is invalid: {error!r}", code="import-damaged"
        ) from error


def _has_images(space: Space) -> bool:
    """Return True if Minari encodes images of a space as JPEG."""
    images = [leaf for leaf in space_leaves(space) if leaf.kind == "box" and leaf.dtype == np.uint8]
    return any(len(leaf.shape) in {2, 3} and min(leaf.shape[:2]) >= _IMAGE_SIDE for leaf in images)


def _built(document: dict[str, Any]) -> Space:  # noqa: PLR0911 - one for each kind of space
    """Return the space of Minari's JSON form."""
    match document["type"]:
        case "Dict":
            return spaces.Dict({key: _built(child) for key, child in document["subspaces"].items()})
        case "Tuple":
            return spaces.Tuple([_built(child) for child in document["subspaces"]])
        case "Box":
            dtype: Any = np.dtype(document["dtype"]).type
            low, high = (np.array(document[bound], dtype) for bound in ("low", "high"))
            return spaces.Box(low, high, tuple(document["shape"]), dtype)
        case "Discrete":
            return spaces.Discrete(document["n"], start=document["start"])
        case "MultiDiscrete":
            start = document.get("start")
            return spaces.MultiDiscrete(
                np.array(document["nvec"]), np.dtype(document["dtype"]).type, start=start and np.array(start)
            )
        case "MultiBinary":
            return spaces.MultiBinary(document["n"])
        case "Text":
            return spaces.Text(
                document["max_length"], min_length=document["min_length"], charset=document["charset"]
            )
    raise ValueError(f"unknown space {document['type']!r}")


FORMAT = Format("minari", "Minari", recognises, read)
