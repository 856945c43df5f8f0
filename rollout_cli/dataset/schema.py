"""The two tables of a dataset, `data` (one row a step) and `meta/episodes` (one row an episode), as Arrow schemas."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from rollout_cli.dataset.features import SpaceColumn, fields, row_bytes, space_columns
from rollout_cli.dataset.huggingface import features_metadata
from rollout_cli.dataset.info_columns import info_fields
from rollout_cli.dataset.space_json import space_to_json
from rollout_cli.dataset.window import InfoField, InfoSchema
from rollout_cli.episode_batch import EnvSpec

FORMAT = "rollout"
FORMAT_VERSION = 1


def _fact(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


_STEP_START = [_fact("episode_id", pa.int64()), _fact("step", pa.int32())]
_STEP_END = [
    _fact("reward", pa.float64()),
    _fact("terminated", pa.bool_()),
    _fact("truncated", pa.bool_()),
    _fact("step_type", pa.uint8()),
]
EPISODE_FIELDS = [
    _fact("episode_id", pa.int64()),
    _fact("episode_number", pa.int64()),
    _fact("root_seed", pa.int64()),
    _fact("length", pa.int64()),
    _fact("return", pa.float64()),
    _fact("terminated", pa.bool_()),
    _fact("truncated", pa.bool_()),
    _fact("seed", pa.int64()),
    _fact("worker", pa.int32()),
    _fact("wall_time_s", pa.float64()),
    _fact("data_chunk_index", pa.int32()),
    _fact("data_file_index", pa.int32()),
    _fact("data_row_index", pa.int64()),
]
_STEP_BYTES = 8 + 4 + 8 + 1 + 1 + 1
_EPISODE_BYTES = 8 * 8 + 3 * 4 + 2


@dataclass(frozen=True, slots=True)
class SpaceSchema:
    """The columns that come from the environment's spaces, known before the first episode."""

    env_spec: EnvSpec
    observation: tuple[SpaceColumn, ...]
    action: tuple[SpaceColumn, ...]
    last_observation: tuple[SpaceColumn, ...]
    next_observation: tuple[SpaceColumn, ...]

    @classmethod
    def of(cls, env_spec: EnvSpec, *, next_observation: bool = False) -> SpaceSchema:
        """Name the columns of `env_spec`.

        Raises:
            UnsupportedSpaceError: For a space that has no fixed set of columns.
        """
        observed = env_spec.observation_space
        return cls(
            env_spec,
            observation=space_columns(observed, "observation"),
            action=space_columns(env_spec.action_space, "action"),
            last_observation=space_columns(observed, "last_observation"),
            next_observation=space_columns(observed, "next_observation") if next_observation else (),
        )

    @property
    def columns(self) -> tuple[SpaceColumn, ...]:
        """Return all columns that come from the spaces."""
        return (*self.observation, *self.action, *self.next_observation, *self.last_observation)

    @property
    def step_bytes(self) -> int:
        """Return the nominal bytes of a step's fixed-size columns."""
        return _STEP_BYTES + row_bytes((*self.observation, *self.action, *self.next_observation))

    @property
    def episode_bytes(self) -> int:
        """Return the nominal bytes of an episode's own row."""
        return _EPISODE_BYTES + row_bytes(self.last_observation)

    def describe(self) -> dict[str, Any]:
        """Return the spaces as JSON."""
        return {
            "observation": space_to_json(self.env_spec.observation_space),
            "action": space_to_json(self.env_spec.action_space),
        }


@dataclass(frozen=True, slots=True)
class DatasetSchema:
    """All columns of a dataset.

    Attributes:
        spaces: Those of the spaces.
        infos: Those of the info dictionaries.
        data: The Arrow schema of `data`, with its metadata.
        episodes: The Arrow schema of `meta/episodes`, with its metadata.
    """

    spaces: SpaceSchema
    infos: InfoSchema
    data: pa.Schema
    episodes: pa.Schema

    @classmethod
    def of(cls, spaces: SpaceSchema, infos: InfoSchema, env: Mapping[str, Any]) -> DatasetSchema:
        """Join the columns of spaces and infos.

        Args:
            spaces: The columns of the spaces.
            infos: The info columns that the window decided.
            env: What is recorded of the environment; it goes into every shard's footer, so nothing in it may differ
                between two runs of one seed.
        """
        data = [
            *_STEP_START,
            *fields((*spaces.observation, *spaces.action)),
            *_STEP_END,
            *fields(spaces.next_observation),
            *info_fields("env_info", infos.env),
            *info_fields("agent_info", infos.agent),
        ]
        episodes = [*EPISODE_FIELDS, *fields(spaces.last_observation), *info_fields("episode_info", infos.episode)]
        return cls(spaces, infos, _schema(data, spaces, env), _schema(episodes, spaces, env))

    def describe(self) -> dict[str, Any]:
        """Return `features`, by column name: kind, dtype, shape and true path."""
        out = {column.name: column.describe() for column in self.spaces.columns}
        for prefix, columns in zip(INFO_PREFIXES, (self.infos.env, self.infos.agent, self.infos.episode), strict=True):
            out |= {f"{prefix}.{column.key}": _describe_info(column) for column in columns}
        known = (*self.data, *self.episodes)
        return {field.name: {"kind": "fact", "dtype": str(field.type)} for field in known} | out


def infos_from_features(features: Mapping[str, Any]) -> InfoSchema:
    """Return the info columns of a dataset whose window was closed, from its info.json's `features`."""
    env, agent, episode = (
        tuple(
            InfoField(tuple(feature["path"]), feature["dtype"])
            for name, feature in features.items()
            if feature["kind"] == "info" and name.startswith(f"{prefix}.")
        )
        for prefix in INFO_PREFIXES
    )
    return InfoSchema(env, agent, episode, closed=True)


INFO_PREFIXES = ("env_info", "agent_info", "episode_info")


def _describe_info(column: InfoField) -> dict[str, Any]:
    return {"kind": "info", "dtype": column.kind, "path": list(column.path), "stored": True}


def _schema(columns: list[pa.Field], spaces: SpaceSchema, env: Mapping[str, Any]) -> pa.Schema:
    schema = pa.schema(columns)
    metadata = {
        "rollout.format_version": str(FORMAT_VERSION),
        "rollout.spaces": json.dumps(spaces.describe()),
        "rollout.max_episode_length": json.dumps(spaces.env_spec.max_episode_length),
        "rollout.env": json.dumps(env, sort_keys=True),
        "huggingface": features_metadata(schema),
    }
    return schema.with_metadata(metadata)
