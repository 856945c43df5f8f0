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
    with_unknown_last,
)
from rollout_cli.recording.arrays import EpisodeArrays

_VERSION = "v3."
_PICTURES = ("image", "video")
_NUMBERS = ("timestamp", "frame_index", "index", "episode_index", "task_index")
_REWARD, _DONE, _TERMINATED, _TRUNCATED = (
    f"next.{name}" for name in ("reward", "done", "terminated", "truncated")
)


@contextmanager
def read(path: Path) -> Iterator[Foreign]:
    """Open a folder. A step has no next observation, and images and videos are not read."""
    features = _info(path)["features"]
    unknown = [SEEDS, LAST_OBSERVATION]
    if _REWARD not in features:
        unknown.append(REWARDS)
    if _TERMINATED not in features:
        unknown.append(ENDS)
    pictures = [name for name, feature in features.items() if feature["dtype"] in _PICTURES]
    unknown += [f"{name}: images are not imported" for name in pictures]
    shapes = {name: tuple(feature["shape"]) for name, feature in features.items() if name not in pictures}
    yield Foreign(episodes=_episodes(path, shapes), unknown=tuple(unknown))


def _info(path: Path) -> dict[str, Any]:
    document = parsed_json(info_path(path), info_path(path).read_bytes(), "")
    return document if isinstance(document, dict) else {}


def _episodes(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[EpisodeArrays]:
    tasks = pq.read_table(path / "meta" / "tasks.parquet")
    # LeRobot writes the tasks as the index of pandas, a column with a name of pandas.
    (column,) = [name for name in tasks.column_names if name != "task_index"]
    names = dict(zip(tasks["task_index"].to_pylist(), tasks[column].to_pylist(), strict=True))
    files = sorted((path / "data").glob("chunk-*/file-*.parquet"))
    last = -1
    for file in files:
        table = pq.read_table(file, columns=[*shapes])
        numbers = table["episode_index"].to_numpy()
        if np.any(np.diff(numbers, prepend=last) < 0) or numbers[:1] == last:
            raise DatasetFormatError(
                f"the episode_index of {file} starts with {numbers[:1].tolist()} after {last}, "
                "expected rising numbers, and each episode in one file",
                code="import-damaged",
            )
        last = int(numbers[-1])
        stops = [*(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        start = 0
        for stop in stops:
            rows = table.slice(start, stop - start)
            columns = {name: _column(file, name, rows[name], shape) for name, shape in shapes.items()}
            yield _episode(file, columns, names)
            start = stop


def _column(file: Path, name: str, column: pa.ChunkedArray, shape: tuple[int, ...]) -> Array:
    """Return a feature as an array (T, *shape); a list of one number is a scalar in the file.

    Raises:
        DatasetFormatError: If values are missing.
    """
    array = column.combine_chunks()
    while pa.types.is_list(array.type) or pa.types.is_fixed_size_list(array.type):
        array = array.flatten()
    values = array.to_numpy(zero_copy_only=False)
    if array.null_count or values.size != len(column) * int(np.prod(shape)):
        raise DatasetFormatError(
            f"{name} of {file} has {values.size} values in {len(column)} rows, expected the shape {shape} in each",
            code="import-damaged",
        )
    return np.asarray(values.reshape(len(column), *shape))


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
        observations=with_unknown_last(_tree(file, "observation", columns)),
        actions=map_tree(integer_actions, _tree(file, "action", columns)),
        rewards=found.get(_REWARD),
        terminated=terminated,
        truncated=truncated or not terminated,
        env_infos=infos,
        episode_info={"task": described[0]},
    )


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
