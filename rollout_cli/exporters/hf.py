"""Datasets for the Hugging Face hub, whose viewer shows images: https://huggingface.co/docs/datasets."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa

from rollout_cli.dataset.convert import encode_tensor
from rollout_cli.dataset.schema import hf_metadata, space_columns
from rollout_cli.episodes.batch import EpisodeBatch, Tree, at_ends
from rollout_cli.episodes.chunk import episode_returns
from rollout_cli.episodes.spaces import Arrays, Space, space_to_json, tree_leaves
from rollout_cli.exporters.format import ALL, Array, Export, Format
from rollout_cli.exporters.parquet import ParquetFiles, encode_images, is_image, write_card

SPACES_KEY = "rollout"
"""The key of the Parquet metadata with the spaces, from which `rollout import` builds the same dataset."""

_FRONT_MATTER = """\
configs:
- config_name: default
  default: true
  description: "{digest}"
  data_files:
  - split: train
    path: data/train-*.parquet
- config_name: episodes
  description: "{digest}"
  data_files:
  - split: train
    path: episodes/train-*.parquet
"""


def write(export: Export) -> None:
    """Write `data/` with one row per step, `episodes/` with one row per episode, and the card."""
    spec = export.env_spec
    described = {
        "env": export.run.get("env_source", {}).get("spec"),
        "max_episode_length": spec.max_episode_length,
        "observation_space": space_to_json(spec.observation_space),
        "action_space": space_to_json(spec.action_space),
    }
    metadata = {SPACES_KEY: json.dumps(described)}
    episodes = 0
    with (
        ParquetFiles(lambda number: export.path / f"data/train-{number:05}.parquet") as data,
        ParquetFiles(lambda number: export.path / f"episodes/train-{number:05}.parquet") as ends,
    ):
        for batch in export.blocks():
            ids = np.arange(episodes, episodes + len(batch))
            data.write(_described(_step_table(batch, ids), metadata))
            ends.write(_described(_episode_table(batch, ids), {}))
            episodes += len(batch)
    write_card(export, "hf", _FRONT_MATTER)


def _step_table(batch: EpisodeBatch, ids: Array) -> pa.Table:
    starts = np.cumsum(batch.lengths) - batch.lengths
    numbers = {
        "episode_id": np.repeat(ids, batch.lengths),
        "step": np.arange(len(batch.rewards)) - np.repeat(starts, batch.lengths),
    }
    ends = {
        "reward": batch.rewards,
        "terminated": at_ends(batch.lengths, batch.terminated),
        "truncated": at_ends(batch.lengths, batch.truncated),
    }
    observations = _leaves(batch.env_spec.observation_space, "observation", batch.observations)
    actions = _leaves(batch.env_spec.action_space, "action", batch.actions)
    return pa.table(_plain(numbers) | observations | actions | _plain(ends))


def _episode_table(batch: EpisodeBatch, ids: Array) -> pa.Table:
    numbers = {
        "episode_id": ids,
        "episode_number": batch.numbers,
        "seed": batch.seeds,
        "length": batch.lengths,
        "return": episode_returns([batch.rewards], batch.lengths),
        "terminated": batch.terminated,
        "truncated": batch.truncated,
    }
    last = _leaves(batch.env_spec.observation_space, "last_observation", batch.last_observations)
    return pa.table(_plain(numbers) | last)


def _plain(columns: Arrays) -> dict[str, pa.Array]:
    return {name: encode_tensor(values) for name, values in columns.items()}


def _leaves(space: Space, name: str, tree: Tree) -> dict[str, pa.Array]:
    arrays = {}
    for column, values in zip(space_columns(space, name), tree_leaves(tree), strict=True):
        if is_image(column.leaf):
            arrays[column.name] = encode_images(values)
        elif column.leaf.dtype == object:
            arrays[column.name] = column.encode([values])
        elif column.stored:
            arrays[column.name] = encode_tensor(values)
    return arrays


def _described(table: pa.Table, metadata: dict[str, str]) -> pa.Table:
    return table.replace_schema_metadata(hf_metadata(table.schema) | metadata)


FORMAT = Format(
    "hf", "Hugging Face: `load_dataset`, and the hub's viewer", write, leaves=ALL | {"sequence"}, nested=True
)
