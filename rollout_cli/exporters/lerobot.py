"""LeRobot's dataset format, version 3.0: https://huggingface.co/docs/lerobot/lerobot-dataset-v3."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rollout_cli.dataset.convert import encode_tensor, text_array
from rollout_cli.dataset.schema import SpaceColumn, space_columns
from rollout_cli.dataset.stats import ColumnStats, column_stats, merged
from rollout_cli.episodes.batch import EnvSpec, EpisodeBatch, at_ends
from rollout_cli.episodes.plain import Fields
from rollout_cli.episodes.spaces import tree_leaves
from rollout_cli.errors import UnsupportedSpaceError, UsageError
from rollout_cli.exporters.format import ALL, Array, Export, Format, check_keys
from rollout_cli.exporters.parquet import ParquetFiles, encode_images, is_image, write_card

_FILES_PER_CHUNK = 1000
_DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
_TABLE_PATH = "meta/episodes/chunk-000/file-000.parquet"
_MOST_AXES = 5
_IMAGE_SAMPLE = 100
"""One image in this many counts in the statistics."""

_FRONT_MATTER = """\
tags: [LeRobot]
configs:
- config_name: default
  description: "{digest}"
  data_files: data/*/*.parquet
"""


def write(export: Export, *, fps: int | None = None, task: str | None = None) -> None:
    """Write `data/` with one row per step, and `meta/` with features, statistics, episodes and tasks.

    Args:
        export: The episodes.
        fps: Steps per second, which decide timestamps; defaults to the environment's `render_fps`, or 30.
        task: The description of the policy's task; defaults to the environment's id.
    """
    if fps is None:
        fps = round((export.run.get("env") or {}).get("render_fps") or 30)
    if fps < 1:
        raise UsageError(
            f"fps of the format lerobot is {fps}, expected at least 1",
            code="format-option",
            hint="pass {set=fps=30}",
        )
    names = _leaf_names(export.env_spec)
    stats: dict[str, ColumnStats] = {}
    columns = {}
    files: list[int] = []
    steps = 0

    def data_path(number: int) -> Path:
        chunk, file = divmod(number, _FILES_PER_CHUNK)
        return export.path / _DATA_PATH.format(chunk_index=chunk, file_index=file)

    with ParquetFiles(data_path) as data:
        for batch in export.blocks():
            columns = dict(_columns(batch, names, len(files), steps, fps))
            table = pa.table({name: column.encoded() for name, column in columns.items()})
            files += [data.write(table)] * len(batch)
            steps += len(batch.rewards)
            for name, column in columns.items():
                if column.kind != "string":
                    parts = [column.stats()]
                    if name in stats:
                        parts.insert(0, stats[name])
                    stats[name] = merged(parts)
    _write_tables(export, np.array(files), task or export.env_id)
    info = {
        "codebase_version": "v3.0",
        "robot_type": None,
        "total_episodes": len(files),
        "total_frames": steps,
        "total_tasks": 1,
        "chunks_size": _FILES_PER_CHUNK,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200,
        "fps": fps,
        "splits": {"train": f"0:{len(files)}"},
        "data_path": _DATA_PATH,
        "video_path": None,
        "features": {name: column.feature() for name, column in columns.items()},
    }
    (export.path / "meta" / "info.json").write_text(json.dumps(info))
    described = {name: _stats_document(columns[name], values, steps) for name, values in stats.items()}
    (export.path / "meta" / "stats.json").write_text(json.dumps(described))
    write_card(export, "lerobot", _FRONT_MATTER)


def _leaf_names(spec: EnvSpec) -> list[tuple[str, SpaceColumn]]:
    """Return the leaves of both spaces with column names that follow LeRobot's convention."""
    check_keys("lerobot", spec)
    names = []
    for column in (
        *space_columns(spec.observation_space, "observation"),
        *space_columns(spec.action_space, "action"),
    ):
        if len(column.leaf.shape) > _MOST_AXES:
            raise UnsupportedSpaceError(
                f"lerobot cannot store {column.name!r}: its values have more than {_MOST_AXES} axes",
                code="format-space",
                hint="flatten the space to a vector: {set=flatten=true}",
            )
        name = column.name
        if name == "observation":
            name = "observation.image" if is_image(column.leaf) else "observation.state"
        names.append((name, column))
    return names


@dataclass(frozen=True, eq=False)
class _Column:
    """Values (T, *shape) of a feature; `kind` is LeRobot's name of its dtype."""

    values: Array
    kind: str

    def feature(self) -> Fields:
        shape = list(self.values.shape[1:])
        if self.kind == "image":
            return {
                "dtype": "image",
                "shape": [*shape, 1][:3],
                "names": ["height", "width", "channels"],
            }
        return {"dtype": self.kind, "shape": shape or [1], "names": None}

    def encoded(self) -> pa.Array:
        if self.kind == "image":
            return encode_images(self.values)
        if self.kind == "string":
            return text_array(self.values.tolist())
        # LeRobot stores a vector of one number as a scalar.
        return encode_tensor(self.values[:, 0] if self.values.shape[1:] == (1,) else self.values)

    def stats(self) -> ColumnStats:
        """Return statistics per number of a value, or per channel of images scaled to [0, 1]."""
        if self.kind != "image":
            return column_stats(self.values)
        sample = self.values[::_IMAGE_SAMPLE]
        return column_stats(sample.reshape(-1, *sample.shape[3:] or (1,)) / 255)


def _columns(
    batch: EpisodeBatch,
    leaves: Sequence[tuple[str, SpaceColumn]],
    first_episode: int,
    first_step: int,
    fps: int,
) -> Iterator[tuple[str, _Column]]:
    trees = (*tree_leaves(batch.observations), *tree_leaves(batch.actions))
    for (name, column), values in zip(leaves, trees, strict=True):
        if column.stored:
            kind = values.dtype.name
            if is_image(column.leaf):
                kind = "image"
            elif column.leaf.kind == "text":
                kind = "string"
            yield name, _Column(values, kind)
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
        "task_index": np.zeros_like(steps),
    }
    for name, values in facts.items():
        yield name, _Column(values, values.dtype.name)


def _stats_document(column: _Column, values: ColumnStats, steps: int) -> Fields:
    """Return the statistics of a column in LeRobot's form; those of images have shape (channels, 1, 1)."""
    count, low, high, mean, m2 = values
    shape = (-1, 1, 1) if column.kind == "image" else column.values.shape[1:] or (1,)
    named = {"min": low, "max": high, "mean": mean, "std": np.sqrt(m2 / np.maximum(count, 1))}
    return {name: value.reshape(shape).tolist() for name, value in named.items()} | {"count": [steps]}


def _write_tables(export: Export, files: Array, task: str) -> None:
    """Write the tables of episodes, with `files` (N,) as their file numbers, and of the task."""
    zeros = np.zeros(len(files), np.int64)
    stops = np.cumsum(export.lengths)
    chunk, file = np.divmod(files, _FILES_PER_CHUNK)
    episodes = {
        "episode_index": np.arange(len(files)),
        "tasks": pa.array([[task]] * len(files)),
        "length": export.lengths,
        "data/chunk_index": chunk,
        "data/file_index": file,
        "dataset_from_index": stops - export.lengths,
        "dataset_to_index": stops,
        "meta/episodes/chunk_index": zeros,
        "meta/episodes/file_index": zeros,
    }
    (export.path / _TABLE_PATH).parent.mkdir(parents=True)
    pq.write_table(pa.table(episodes), export.path / _TABLE_PATH)
    # The metadata makes the task the index when pandas reads the table.
    described = [("task_index", "int64", "int64"), ("task", "unicode", "object")]
    columns = [
        {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": dtype, "metadata": None}
        for name, kind, dtype in described
    ]
    pandas = {"index_columns": ["task"], "column_indexes": [], "columns": columns}
    tasks = pa.table({"task_index": [0], "task": [task]}).replace_schema_metadata(
        {"pandas": json.dumps(pandas)}
    )
    pq.write_table(tasks, export.path / "meta" / "tasks.parquet")


FORMAT = Format(
    "lerobot",
    "LeRobot: v3.0, images as PNG",
    write,
    leaves=ALL,
    nested=True,
    last_observation=False,
    float64=False,
    float64_rewards=False,
)
