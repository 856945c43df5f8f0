"""A dataset for the Hugging Face hub, whose viewer shows its images: https://huggingface.co/docs/datasets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from rollout_cli.dataset.convert import encode_tensor
from rollout_cli.dataset.schema import SpaceColumn, space_columns
from rollout_cli.episodes.batch import EpisodeBatch, Tree
from rollout_cli.episodes.spaces import Space, tree_leaves
from rollout_cli.exporters.format import ALL, Array, Export, Format, at_ends
from rollout_cli.exporters.parquet import ParquetFiles, encode_images, is_image, write_card

_FRONT_MATTER = """\
configs:
- config_name: default
  default: true
  data_files:
  - split: train
    path: data/train-*.parquet
- config_name: episodes
  data_files:
  - split: train
    path: episodes/train-*.parquet
"""


def write(export: Export) -> None:
    """Write `data/` with a row a step, `episodes/` with a row an episode, and the card that names both."""
    episodes = 0
    with (
        ParquetFiles(lambda number: export.path / f"data/train-{number:05}.parquet") as data,
        ParquetFiles(lambda number: export.path / f"episodes/train-{number:05}.parquet") as ends,
    ):
        for batch in export.blocks():
            ids = np.arange(episodes, episodes + len(batch))
            data.write(_step_table(batch, ids))
            ends.write(_episode_table(batch, ids))
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
        "terminated": at_ends(batch, batch.terminated),
        "truncated": at_ends(batch, batch.truncated),
    }
    observations = _leaves(batch.env_spec.observation_space, "observation", batch.observations)
    actions = _leaves(batch.env_spec.action_space, "action", batch.actions)
    return _table(_plain(numbers) | observations | actions | _plain(ends))


def _episode_table(batch: EpisodeBatch, ids: Array) -> pa.Table:
    starts = np.cumsum(batch.lengths) - batch.lengths
    numbers = {
        "episode_id": ids,
        "episode_number": batch.numbers,
        "seed": batch.seeds,
        "length": batch.lengths,
        "return": np.add.reduceat(batch.rewards, starts),
        "terminated": batch.terminated,
        "truncated": batch.truncated,
    }
    last = _leaves(batch.env_spec.observation_space, "last_observation", batch.last_observations)
    return _table(_plain(numbers) | last)


_Columns = dict[str, tuple[pa.Array, Any]]
"""By name the values of a column, and its feature as `datasets` describes it."""


def _plain(columns: Mapping[str, Array]) -> _Columns:
    return {name: (encode_tensor(values), _feature(values)) for name, values in columns.items()}


def _leaves(space: Space, name: str, tree: Tree) -> _Columns:
    columns = zip(space_columns(space, name), tree_leaves(tree), strict=True)
    return {column.name: _encoded(column, values) for column, values in columns if column.stored}


def _encoded(column: SpaceColumn, values: Array) -> tuple[pa.Array, Any]:
    if is_image(column.leaf):
        return encode_images(values), {"_type": "Image"}
    if column.leaf.kind == "text":
        return column.encode([values]), {"dtype": "string", "_type": "Value"}
    return encode_tensor(values), _feature(values)


def _feature(values: Array) -> Any:
    feature: Any = {"dtype": values.dtype.name, "_type": "Value"}
    for length in reversed(values.shape[1:]):
        feature = {"feature": feature, "length": length, "_type": "Sequence"}
    return feature


def _table(columns: _Columns) -> pa.Table:
    table = pa.table({name: values for name, (values, _) in columns.items()})
    features = {name: feature for name, (_, feature) in columns.items()}
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})


FORMAT = Format("hf", "Hugging Face: `load_dataset`, and the hub's viewer", write, leaves=ALL, nested=True)
