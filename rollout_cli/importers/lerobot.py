"""LeRobot's dataset format, version 3.0: https://huggingface.co/docs/lerobot/lerobot-dataset-v3."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rollout_cli.dataset.layout import info_path, parsed_json
from rollout_cli.episodes.spaces import Array, map_tree
from rollout_cli.errors import DatasetFormatError
from rollout_cli.importers.format import (
    ENDS,
    LAST_OBSERVATION,
    REWARDS,
    SEEDS,
    Foreign,
    Format,
    integer_actions,
    with_last,
    with_unknown_last,
)
from rollout_cli.importers.parquet import episodes_in, images_of, tensor_of
from rollout_cli.recording.arrays import EpisodeArrays

_VERSION = "v3."
_IMAGE_AXES = 4
_NUMBERS = ("timestamp", "frame_index", "index", "episode_index", "task_index")
_REWARD, _DONE, _TERMINATED, _TRUNCATED = (
    f"next.{name}" for name in ("reward", "done", "terminated", "truncated")
)


@contextmanager
def read(path: Path) -> Iterator[Foreign]:
    """Open a folder. A step has no next observation, and videos are not read."""
    features = _info(path)["features"]
    unknown = [SEEDS, LAST_OBSERVATION]
    if _REWARD not in features:
        unknown.append(REWARDS)
    if _TERMINATED not in features:
        unknown.append(ENDS)
    for name, feature in features.items():
        if feature["dtype"] == "video":
            unknown.append(f"{name}: videos are not imported")
        elif feature["dtype"] == "image":
            unknown.append(f"last image of {name}: stored as black")
    stored = {name: feature for name, feature in features.items() if feature["dtype"] != "video"}
    yield Foreign(episodes=_episodes(path, stored), unknown=tuple(unknown))


def _info(path: Path) -> dict[str, Any]:
    document = parsed_json(info_path(path), info_path(path).read_bytes(), "")
    return document if isinstance(document, dict) else {}


def _episodes(path: Path, features: Mapping[str, Any]) -> Iterator[EpisodeArrays]:
    tasks = pq.read_table(path / "meta" / "tasks.parquet")
    # LeRobot writes the tasks as the index of pandas, a column with a name of pandas.
    (column,) = [name for name in tasks.column_names if name != "task_index"]
    names = dict(zip(tasks["task_index"].to_pylist(), tasks[column].to_pylist(), strict=True))
    files = sorted((path / "data").glob("chunk-*/file-*.parquet"))
    for file, rows in episodes_in(files, "episode_index", [*features]):
        columns = {name: _column(file, name, rows, feature) for name, feature in features.items()}
        yield _episode(file, columns, names)


def _column(file: Path, name: str, rows: pa.Table, feature: Mapping[str, Any]) -> Array:
    shape = tuple(feature["shape"])
    if feature["dtype"] != "image":
        return tensor_of(file, name, rows, shape)
    if str((feature.get("names") or ("",))[0]).startswith("channel"):
        shape = (*shape[1:], shape[0])  # The images themselves are as PNG has them.
    return images_of(file, name, rows, shape)


def _scalars(values: Array) -> Array:
    return values[:, 0] if values.shape[1:] == (1,) else values


def _episode(file: Path, columns: dict[str, Array], tasks: Mapping[int, str]) -> EpisodeArrays:
    found = {name: _scalars(values) for name, values in columns.items()}
    truncated = bool(found[_TRUNCATED][-1]) if _TRUNCATED in found else False
    terminated = bool(found[_TERMINATED][-1]) if _TERMINATED in found else False
    described = [tasks[number] for number in found["task_index"].tolist()]
    infos: dict[str, Any] = {
        name.removeprefix("next."): values
        for name, values in found.items()
        if not name.startswith(("observation", "action"))
        and name not in {*_NUMBERS, _REWARD, _DONE, _TERMINATED, _TRUNCATED}
    }
    if len({*described}) > 1:
        infos["task"] = described
    return EpisodeArrays(
        observations=map_tree(_with_last, _tree(file, "observation", columns)),
        actions=map_tree(integer_actions, _tree(file, "action", columns)),
        rewards=found.get(_REWARD),
        terminated=terminated,
        truncated=truncated or not terminated,
        env_infos=infos,
        episode_info={"task": described[0]},
    )


def _with_last(values: Array) -> Array:
    """Return an array (T, *shape) with a last row that is unknown: a black image, since uint8 has no nan."""
    if values.dtype == np.uint8 and values.ndim == _IMAGE_AXES:
        return with_last(values, np.zeros_like(values[:1]))
    return np.asarray(with_unknown_last(values))


def _tree(file: Path, name: str, columns: Mapping[str, Array]) -> Any:
    """Return the features with this prefix: a single feature as an array, several by the rest of their names."""
    found = {
        key.removeprefix(name).lstrip("."): column for key, column in columns.items() if key.startswith(name)
    }
    if not found:
        raise DatasetFormatError(f"{file} has no {name} that can be imported", code="import-damaged")
    return next(iter(found.values())) if len(found) == 1 else found


def _recognises(path: Path) -> bool:
    if not info_path(path).is_file():
        return False
    try:
        return str(_info(path).get("codebase_version")).startswith(_VERSION)
    except DatasetFormatError:
        return False


FORMAT = Format("lerobot", "LeRobot", _recognises, read)
