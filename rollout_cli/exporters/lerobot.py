"""LeRobot's dataset format, version 3.0: https://huggingface.co/docs/lerobot/lerobot-dataset-v3."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rollout_cli.dataset.convert import encode_tensor, text_array
from rollout_cli.dataset.schema import SpaceColumn, space_columns
from rollout_cli.episodes.batch import EnvSpec, EpisodeBatch, at_ends
from rollout_cli.episodes.plain import Fields
from rollout_cli.episodes.spaces import Leaf, tree_leaves
from rollout_cli.errors import UnsupportedSpaceError, UsageError
from rollout_cli.exporters.format import ALL, Array, Export, Format, check_keys
from rollout_cli.exporters.lerobot_stats import FeatureStats
from rollout_cli.exporters.parquet import ParquetFiles, encode_images, is_image, write_card
from rollout_cli.exporters.source import EpisodeLike
from rollout_cli.exporters.videos import Videos, video_info

_FILES_PER_CHUNK = 1000
_DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
_VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
_TABLE_PATH = "meta/episodes/chunk-000/file-000.parquet"
_MOST_AXES = 5
_COLORS = 3
_PICTURES = ("image", "video")

_FRONT_MATTER = """\
tags: [LeRobot]
configs:
- config_name: default
  description: "{digest}"
  data_files: data/*/*.parquet
"""


def write(export: Export, *, fps: int | None = None, task: str | None = None, video: bool = False) -> None:
    """Write `data/` with one row per step, and `meta/` with features, statistics, episodes and tasks.

    Args:
        export: The episodes.
        fps: Steps per second, which decide timestamps; defaults to the environment's `render_fps`, or 30.
        task: The task of all episodes; defaults to `episode_info.task` of each, or the environment's id.
        video: True to store RGB images as MP4, which changes pixels, instead of PNG.
    """
    fps = _fps(export, fps)
    names = _leaf_names(export.env_spec)
    kinds = _kinds(names, video=video)
    tasks, task_of_episode = _tasks(export, task)
    stats: dict[str, FeatureStats] = {}
    columns = {}
    files: list[int] = []
    steps = 0

    def path_of(pattern: str, key: str, number: int) -> Path:
        chunk, file = divmod(number, _FILES_PER_CHUNK)
        return export.path / pattern.format(chunk_index=chunk, file_index=file, video_key=key)

    videos = {
        name: Videos(partial(path_of, _VIDEO_PATH, name), fps)
        for name, kind in kinds.items()
        if kind == "video"
    }
    with ParquetFiles(partial(path_of, _DATA_PATH, "")) as data, ExitStack() as stack:
        for camera in videos.values():
            stack.enter_context(camera)
        for batch in export.blocks():
            chosen = task_of_episode[len(files) : len(files) + len(batch)]
            columns = dict(_columns(batch, names, kinds, chosen, first=(len(files), steps), fps=fps))
            for name, camera in videos.items():
                for images in np.split(columns[name].values, np.cumsum(batch.lengths)[:-1]):
                    camera.write(images)
            table = {name: column.encoded() for name, column in columns.items() if name not in videos}
            files += [data.write(pa.table(table))] * len(batch)
            steps += len(batch.rewards)
            for name, column in columns.items():
                if column.kind != "string":
                    feature = stats.setdefault(name, FeatureStats(is_image=column.kind in _PICTURES))
                    feature.add(column.values)
    _write_episodes(export, np.array(files), [tasks[number] for number in task_of_episode], videos)
    _write_tasks(export, tasks)
    info = {
        "codebase_version": "v3.0",
        "robot_type": None,
        "total_episodes": len(files),
        "total_frames": steps,
        "total_tasks": len(tasks),
        "chunks_size": _FILES_PER_CHUNK,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200,
        "fps": fps,
        "splits": {"train": f"0:{len(files)}"},
        "data_path": _DATA_PATH,
        "video_path": _VIDEO_PATH if videos else None,
        "features": {name: column.feature(fps) for name, column in columns.items()},
    }
    (export.path / "meta" / "info.json").write_text(json.dumps(info))
    described = {name: feature.document(steps) for name, feature in stats.items()}
    (export.path / "meta" / "stats.json").write_text(json.dumps(described))
    write_card(export, "lerobot", _FRONT_MATTER)


def _fps(export: Export, fps: int | None) -> int:
    if fps is None:
        fps = round((export.run.get("env") or {}).get("render_fps") or 30)
    if fps < 1:
        raise UsageError(
            f"fps of the format lerobot is {fps}, expected at least 1",
            code="format-option",
            hint="pass {set=fps=30}",
        )
    return fps


def _leaf_names(spec: EnvSpec) -> list[tuple[str, SpaceColumn]]:
    """Return the leaves of both spaces with column names that follow LeRobot's convention."""
    check_keys("lerobot", spec)
    observed = space_columns(spec.observation_space, "observation")
    taken = {column.name for column in observed}
    names = []
    for column in (*observed, *space_columns(spec.action_space, "action")):
        if len(column.leaf.shape) > _MOST_AXES:
            raise UnsupportedSpaceError(
                f"lerobot cannot store {column.name!r}: its values have more than {_MOST_AXES} axes",
                code="format-space",
                hint="flatten the space to a vector: {set=flatten=true}",
            )
        robot_name = _robot_name(column)
        names.append((column.name if robot_name in taken else robot_name, column))
    return names


def _kinds(leaves: Sequence[tuple[str, SpaceColumn]], *, video: bool) -> dict[str, str]:
    """Return LeRobot's names of the dtypes of leaves, by the name of the leaf."""
    kinds = {name: _kind(column.leaf, video=video) for name, column in leaves}
    if video and "video" not in kinds.values():
        raise UsageError(
            "video of the format lerobot is true, but no space has RGB images",
            code="format-option",
            hint="omit {set=video=true}",
        )
    return kinds


def _kind(leaf: Leaf, *, video: bool) -> str:
    if is_image(leaf):
        return "video" if video and leaf.shape[2:] == (_COLORS,) else "image"
    return "string" if leaf.kind == "text" else leaf.dtype.name


def _robot_name(column: SpaceColumn) -> str:
    """Return the name that LeRobot gives to an observation of an environment, or the column's own name."""
    if column.name == "observation":
        return "observation.image" if is_image(column.leaf) else "observation.state"
    if column.name.startswith("observation"):
        match column.leaf.path:
            case ("agent_pos",):
                return "observation.state"
            case ("pixels",) if is_image(column.leaf):
                return "observation.image"
            case ("pixels", camera) if is_image(column.leaf):
                return f"observation.images.{camera}"
    return column.name


def _tasks(export: Export, task: str | None) -> tuple[list[str], Array]:
    """Return the distinct tasks, in order of first use, and the index of the task of each episode (N,)."""
    numbers: dict[str, int] = {}
    chosen = []
    for episode in export.source:
        text = task or _stored_task(episode)
        chosen.append(numbers.setdefault(export.env_id if text is None else text, len(numbers)))
    return [*numbers], np.array(chosen)


def _stored_task(episode: EpisodeLike) -> str | None:
    """Return the string `episode_info.task`; None if there is none."""
    values = episode.episode_infos.get("task", [None])
    return str(values[0]) if isinstance(values[0], str) else None


@dataclass(frozen=True, eq=False)
class _Column:
    """Values (T, *shape) of a feature; `kind` is LeRobot's name of its dtype."""

    values: Array
    kind: str

    def feature(self, fps: int) -> Fields:
        shape = list(self.values.shape[1:])
        if self.kind in _PICTURES:
            picture = {
                "dtype": self.kind,
                "shape": [*shape, 1][:3],
                "names": ["height", "width", "channels"],
            }
            return picture | ({"info": video_info(tuple(shape), fps)} if self.kind == "video" else {})
        return {"dtype": self.kind, "shape": shape or [1], "names": None}

    def encoded(self) -> pa.Array:
        if self.kind == "image":
            return encode_images(self.values)
        if self.kind == "string":
            return text_array(self.values.tolist())
        # LeRobot stores a vector of one number as a scalar.
        return encode_tensor(self.values[:, 0] if self.values.shape[1:] == (1,) else self.values)


def _columns(
    batch: EpisodeBatch,
    leaves: Sequence[tuple[str, SpaceColumn]],
    kinds: Mapping[str, str],
    tasks: Array,
    *,
    first: tuple[int, int],
    fps: int,
) -> Iterator[tuple[str, _Column]]:
    """Yield the features of a batch, with `tasks` (N,) and the indices of the `first` episode and step."""
    first_episode, first_step = first
    trees = (*tree_leaves(batch.observations), *tree_leaves(batch.actions))
    for (name, column), values in zip(leaves, trees, strict=True):
        if column.stored:
            yield name, _Column(values, kinds[name])
    steps = np.arange(len(batch.rewards))
    frames = steps - np.repeat(np.cumsum(batch.lengths) - batch.lengths, batch.lengths)
    facts = {
        "next.reward": batch.rewards.astype(np.float32),
        "next.done": at_ends(batch.lengths, np.ones(len(batch), np.bool_)),
        "next.terminated": at_ends(batch.lengths, batch.terminated),
        "next.truncated": at_ends(batch.lengths, batch.truncated),
        "timestamp": (frames / fps).astype(np.float32),
        "frame_index": frames,
        "episode_index": first_episode + np.repeat(np.arange(len(batch)), batch.lengths),
        "index": first_step + steps,
        "task_index": np.repeat(tasks, batch.lengths),
    }
    for name, values in facts.items():
        yield name, _Column(values, values.dtype.name)


def _write_episodes(export: Export, files: Array, tasks: Sequence[str], videos: Mapping[str, Videos]) -> None:
    """Write the table of episodes, with `files` (N,) as their file numbers, and the task of each."""
    zeros = np.zeros(len(files), np.int64)
    stops = np.cumsum(export.lengths)
    chunk, file = np.divmod(files, _FILES_PER_CHUNK)
    episodes = {
        "episode_index": np.arange(len(files)),
        "tasks": pa.array([[task] for task in tasks]),
        "length": export.lengths,
        "data/chunk_index": chunk,
        "data/file_index": file,
        "dataset_from_index": stops - export.lengths,
        "dataset_to_index": stops,
        "meta/episodes/chunk_index": zeros,
        "meta/episodes/file_index": zeros,
    }
    for name, camera in videos.items():
        numbers, starts, ends = np.array(camera.places).T
        chunk, file = np.divmod(numbers.astype(np.int64), _FILES_PER_CHUNK)
        columns = {"chunk_index": chunk, "file_index": file, "from_timestamp": starts, "to_timestamp": ends}
        episodes |= {f"videos/{name}/{column}": values for column, values in columns.items()}
    (export.path / _TABLE_PATH).parent.mkdir(parents=True)
    pq.write_table(pa.table(episodes), export.path / _TABLE_PATH)


def _write_tasks(export: Export, tasks: Sequence[str]) -> None:
    # The metadata makes the task the index when pandas reads the table.
    described = [("task_index", "int64", "int64"), ("task", "unicode", "object")]
    columns = [
        {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": dtype, "metadata": None}
        for name, kind, dtype in described
    ]
    pandas = {"index_columns": ["task"], "column_indexes": [], "columns": columns}
    table = pa.table({"task_index": np.arange(len(tasks)), "task": tasks})
    table = table.replace_schema_metadata({"pandas": json.dumps(pandas)})
    pq.write_table(table, export.path / "meta" / "tasks.parquet")


FORMAT = Format(
    "lerobot",
    "LeRobot: v3.0, images as PNG or MP4",
    write,
    leaves=ALL,
    nested=True,
    last_observation=False,
    float64=False,
    float64_rewards=False,
    option_losses=(("video", "the exact values of pixels"),),
)
