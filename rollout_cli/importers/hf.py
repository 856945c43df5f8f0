"""The folder of `rollout export --to hf`, whose Parquet files have the spaces in their metadata."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rollout_cli.dataset.layout import parsed_json
from rollout_cli.dataset.schema import space_columns
from rollout_cli.episodes.spaces import Space, SpaceRows, map_tree, space_from_json
from rollout_cli.errors import DatasetFormatError
from rollout_cli.exporters.hf import SPACES_KEY
from rollout_cli.exporters.parquet import is_image
from rollout_cli.importers.format import Foreign, Format, with_last
from rollout_cli.importers.parquet import episodes_in, images_of
from rollout_cli.recording.arrays import EpisodeArrays

_FACTS = ("episode_id", "length", "seed", "terminated", "truncated")


@contextmanager
def read(path: Path) -> Iterator[Foreign]:
    """Open a folder with a row per step in `data/` and a row per episode in `episodes/`."""
    content = _description(path)
    if content is None:
        raise DatasetFormatError(
            f"the Parquet files of {path}/data do not state their spaces, expected those of `rollout export`",
            code="import-damaged",
        )
    described = parsed_json(path / "data", content, "")
    observation_space, action_space = (
        space_from_json(described[name]) for name in ("observation_space", "action_space")
    )
    limit = described["max_episode_length"]
    env = described["env"]
    yield Foreign(
        episodes=_episodes(path, observation_space, action_space),
        observation_space=observation_space,
        action_space=action_space,
        max_episode_length=None if limit is None else int(limit),
        env=None if env is None else str(env),
        unknown=("infos",),
    )


def _files(path: Path, folder: str) -> list[Path]:
    return sorted(path.glob(f"{folder}/train-*.parquet"))


def _description(path: Path) -> bytes | None:
    """Return the JSON document in the metadata of the first file, if it has one."""
    for file in _files(path, "data"):
        return (pq.read_schema(file).metadata or {}).get(SPACES_KEY.encode())
    return None


def _episodes(path: Path, observation_space: Space, action_space: Space) -> Iterator[EpisodeArrays]:
    ends = pa.concat_tables([pq.read_table(file) for file in _files(path, "episodes")])
    n_episodes = 0
    for file, steps in episodes_in(_files(path, "data"), "episode_id"):
        end = ends.slice(n_episodes, 1)
        facts: dict[str, Any] = dict.fromkeys(_FACTS)
        for row in end.select(_FACTS).to_pylist():
            facts = row
        found = (steps["episode_id"][0].as_py(), len(steps))
        if not len(end):
            raise DatasetFormatError(
                f"{file} has episode {found[0]}, which is not in {path}/episodes",
                code="import-damaged",
            )
        if found != (facts["episode_id"], facts["length"]):
            raise DatasetFormatError(
                f"{file} has {found[1]} steps of episode {found[0]}, but {path}/episodes lists "
                f"{facts['length']} steps of episode {facts['episode_id']}",
                code="import-damaged",
            )
        n_episodes += 1
        seen = _tree(file, observation_space, "observation", steps)
        last = _tree(path, observation_space, "last_observation", end)
        yield EpisodeArrays(
            observations=map_tree(with_last, seen, last),
            actions=_tree(file, action_space, "action", steps),
            rewards=steps["reward"].to_numpy(),
            terminated=facts["terminated"],
            truncated=facts["truncated"],
            seed=facts["seed"] if facts["seed"] >= 0 else None,
        )
    if n_episodes != len(ends):
        raise DatasetFormatError(
            f"{path}/data has {n_episodes} episodes, expected {len(ends)} as in {path}/episodes",
            code="import-damaged",
        )


def _tree(file: Path, space: Space, name: str, rows: pa.Table) -> Any:
    """Return the values of a space's columns as a tree of arrays (T, *shape)."""
    columns = []
    for column in space_columns(space, name):
        if column.stored and is_image(column.leaf):
            images = images_of(file, column.name, rows, (*column.leaf.shape, 1)[:3])
            columns.append(images.reshape(-1, *column.leaf.shape))
        else:
            columns.append(column.decode(rows))
    return SpaceRows(space).tree(columns)


def _recognises(path: Path) -> bool:
    try:
        return _description(path) is not None
    except (OSError, pa.ArrowException):
        return False


FORMAT = Format("hf", "Hugging Face", _recognises, read)
