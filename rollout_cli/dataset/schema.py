"""The tables `data` (one row per step) and `meta/episodes` (one row per episode), as Arrow schemas."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rollout_cli.dataset.convert import Array, decode, encode_leaf, info_type, joined, leaf_type, object_array
from rollout_cli.dataset.layout import FORMAT_VERSION, LOST_INFO
from rollout_cli.dataset.record import DatasetInfo
from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.infos import InfoColumns, free_name
from rollout_cli.episodes.plain import Document, Fields
from rollout_cli.episodes.spaces import (
    Leaf,
    Space,
    empty_column,
    space_from_json,
    space_leaves,
    space_to_json,
)
from rollout_cli.errors import DatasetFormatError, UnsupportedSpaceError

BIG_ROW_BYTES = 32 << 10
"""Columns with rows of at least this size are written in chunks: joining them costs more than writing."""


def is_big(kind: pa.DataType) -> bool:
    """Return True if a column of this type is written in chunks, e.g. large images."""
    return pa.types.is_fixed_size_binary(kind) and int(kind.byte_width) >= BIG_ROW_BYTES


def _fields(**types: pa.DataType) -> list[pa.Field]:
    return [pa.field(name, kind, nullable=False) for name, kind in types.items()]


_STEP_START = _fields(episode_id=pa.int64(), step=pa.int32())
_STEP_END = _fields(reward=pa.float64(), terminated=pa.bool_(), truncated=pa.bool_(), step_type=pa.uint8())
EPISODE_FIELDS = _fields(
    episode_id=pa.int64(),
    source=pa.int32(),
    episode_number=pa.int64(),
    root_seed=pa.int64(),
    length=pa.int64(),
    **{"return": pa.float64()},
    terminated=pa.bool_(),
    truncated=pa.bool_(),
    seed=pa.int64(),
    worker=pa.int32(),
    wall_time_s=pa.float64(),
    data_chunk_index=pa.int32(),
    data_file_index=pa.int32(),
    data_row_index=pa.int64(),
)
"""The columns of `meta/episodes` that every dataset has, for any spaces and infos."""


@dataclass(frozen=True, slots=True)
class SpaceColumn:
    """A leaf of a space and its column, such as `observation.camera.0`; not `stored` if it has no elements."""

    name: str
    leaf: Leaf
    type: pa.DataType

    @property
    def stored(self) -> bool:
        return 0 not in self.leaf.shape

    def encode(self, parts: Sequence[Array]) -> pa.Array | pa.ChunkedArray:
        """Return the column of consecutive parts, values (n, *leaf.shape).

        It is one contiguous array, because a Parquet page ends at the end of a part. Big rows are exempt: their
        pages are cut row by row.
        """
        if is_big(self.type):
            return pa.chunked_array([encode_leaf(self.type, values) for values in parts])
        return encode_leaf(self.type, joined(parts))

    def decode(self, table: pa.Table) -> Array:
        """Return the leaf's values in the rows of `table`, (T, *leaf.shape)."""
        if not self.stored:
            return empty_column(self.leaf, table.num_rows)
        values = decode(table[self.name])
        if self.leaf.kind == "sequence":
            element = self.leaf.element
            return object_array([each.reshape(-1, *element.shape).astype(element.dtype) for each in values])
        return values.reshape(-1, *self.leaf.shape).astype(self.leaf.dtype, copy=False)

    def describe(self) -> Fields:
        """Return the column's entry in the `features` of info.json."""
        leaf = self.leaf
        return {
            "kind": leaf.kind,
            "dtype": "string" if leaf.kind == "text" else np.dtype(leaf.dtype).name,
            "shape": list(leaf.shape),
            "path": list(leaf.path),
            "stored": self.stored,
        }


SpaceColumns = tuple[SpaceColumn, ...]


def space_columns(space: Space, prefix: str) -> SpaceColumns:
    """Return one column per leaf of `space`, in the order of its leaves, named `prefix` or `prefix.path`.

    Keys may contain dots. If two paths have one dotted name, the later ones get the suffixes `#2`, `#3`, ….

    Raises:
        UnsupportedSpaceError: For a space without a fixed number of columns, or an unsupported dtype.
    """
    columns: dict[str, SpaceColumn] = {}
    for leaf in space_leaves(space):
        name = free_name(f"{prefix}.{leaf.name}" if leaf.path else prefix, columns)
        columns[name] = SpaceColumn(name, leaf, leaf_type(leaf))
    return tuple(columns.values())


@dataclass(frozen=True, slots=True)
class SpaceSchema:
    """The columns of the environment's spaces, known before the first episode."""

    env_spec: EnvSpec
    observation: SpaceColumns
    action: SpaceColumns
    last_observation: SpaceColumns
    next_observation: SpaceColumns

    @classmethod
    def of(cls, env_spec: EnvSpec, *, next_observation: bool = False) -> SpaceSchema:
        """Return the columns of `env_spec`; the errors are those of `space_columns`."""
        observed = env_spec.observation_space
        return cls(
            env_spec,
            observation=space_columns(observed, "observation"),
            action=space_columns(env_spec.action_space, "action"),
            last_observation=space_columns(observed, "last_observation"),
            next_observation=space_columns(observed, "next_observation") if next_observation else (),
        )

    @property
    def columns(self) -> SpaceColumns:
        return (*self.observation, *self.action, *self.next_observation, *self.last_observation)

    def describe(self) -> Fields:
        """Return the spaces as JSON."""
        return {
            "observation": space_to_json(self.env_spec.observation_space),
            "action": space_to_json(self.env_spec.action_space),
        }


def info_columns_of(features: Document) -> InfoColumns:
    """Return the info columns that the `features` of an info.json describe."""
    infos = {name: feature for name, feature in features.items() if feature["kind"] == "info"}
    return {name: (tuple(map(str, feature["path"])), feature["dtype"]) for name, feature in infos.items()}


def env_record(info: DatasetInfo) -> Document:
    """Return the record of the environment that all sources of a dataset share; empty if they differ."""
    first, *others = (source.get("env") or {} for source in info["sources"])
    return first if all(env == first for env in others) else {}


def _space_fields(columns: Sequence[SpaceColumn]) -> list[pa.Field]:
    return _fields(**{column.name: column.type for column in columns if column.stored})


def _info_fields(prefix: str, infos: InfoColumns) -> list[pa.Field]:
    """Return the Arrow fields of the typed columns of a group, followed by its JSON remainder."""
    typed = [
        pa.field(name, info_type(kind)) for name, (_, kind) in infos.items() if name.startswith(f"{prefix}.")
    ]
    return [*typed, pa.field(f"{prefix}_extra", pa.string())]


def _row_bytes(column: pa.Field) -> int:
    """Return the nominal bytes of a value, without strings and info arrays; a bool counts as one."""
    kind = column.type
    count = 1
    while pa.types.is_fixed_size_list(kind):
        count = count * kind.list_size
        kind = kind.value_type
    if pa.types.is_string(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        # Empty rows of info columns count, or the memory of many rare infos would escape all limits.
        return 4 if column.nullable and "." in column.name else 0
    return int(count * max(1, kind.bit_width // 8))


@dataclass(frozen=True, slots=True)
class DatasetSchema:
    """All columns of a dataset.

    Attributes:
        data: The Arrow schema of `data`, with its metadata.
        episodes: The Arrow schema of `meta/episodes`, with its metadata.
        step_bytes: Nominal bytes of a step, without strings and info arrays.
        episode_bytes: Nominal bytes of a row of `meta/episodes`, without strings and info arrays.
    """

    spaces: SpaceSchema
    infos: InfoColumns
    data: pa.Schema
    episodes: pa.Schema
    step_bytes: int
    episode_bytes: int

    @classmethod
    def of(cls, spaces: SpaceSchema, infos: InfoColumns, env: Document) -> DatasetSchema:
        """Return the schema of spaces and infos; the record `env` goes into every file's footer."""
        data = [
            *_STEP_START,
            *_space_fields((*spaces.observation, *spaces.action)),
            *_STEP_END,
            *_space_fields(spaces.next_observation),
            *_info_fields("env_info", infos),
            *_info_fields("agent_info", infos),
        ]
        last = _space_fields(spaces.last_observation)
        episodes = [*EPISODE_FIELDS, *last, *_info_fields("episode_info", infos)]
        return cls(
            spaces,
            infos,
            _schema(data, spaces, env),
            _schema(episodes, spaces, env),
            step_bytes=sum(map(_row_bytes, data)),
            episode_bytes=sum(map(_row_bytes, episodes)),
        )

    @classmethod
    def from_info(cls, info: DatasetInfo) -> DatasetSchema:
        """Return the schema that an info.json describes; raise `DatasetFormatError` if it is invalid."""
        try:
            observation, action = (
                space_from_json(info["spaces"][name]) for name in ("observation", "action")
            )
            spec = EnvSpec(observation, action, info["max_episode_length"])
            spaces = SpaceSchema.of(spec, next_observation=info["next_observation"])
            return cls.of(spaces, info_columns_of(info["features"]), env_record(info))
        except (
            KeyError,
            TypeError,
            ValueError,
            AttributeError,
            OverflowError,
            UnsupportedSpaceError,
        ) as error:
            raise DatasetFormatError(
                f"info.json does not describe valid columns: {error!r}", code="info-features", hint=LOST_INFO
            ) from error

    def describe(self) -> Fields:
        """Return `features`, by column name: kind, dtype, shape and true path."""
        fields = (*self.data, *self.episodes)
        facts = {field.name: {"kind": "fact", "dtype": str(field.type)} for field in fields}
        spaces = {column.name: column.describe() for column in self.spaces.columns}
        infos = {
            name: {"kind": "info", "dtype": kind, "path": list(path), "stored": True}
            for name, (path, kind) in self.infos.items()
        }
        return {**facts, **spaces, **infos}


def _schema(columns: list[pa.Field], spaces: SpaceSchema, env: Document) -> pa.Schema:
    metadata = {
        "rollout.format_version": str(FORMAT_VERSION),
        "rollout.spaces": json.dumps(spaces.describe()),
        "rollout.max_episode_length": json.dumps(spaces.env_spec.max_episode_length),
        # The first dump makes all keys strings, which can be sorted.
        "rollout.env": json.dumps(json.loads(json.dumps(env)), sort_keys=True),
        **hf_metadata(columns),
    }
    return pa.schema(columns, metadata)


def hf_metadata(columns: Iterable[pa.Field]) -> dict[str, str]:
    """Return the metadata from which the `datasets` library reads the types of columns."""
    features = {field.name: _hf_feature(field.type) for field in columns}
    return {"huggingface": json.dumps({"info": {"features": features}})}


_HF_NAMES = {"double": "float64", "float": "float32", "halffloat": "float16"}


def _hf_feature(kind: pa.DataType) -> Fields:
    """Return the feature of a column's type for the `datasets` library; only images are structs."""
    if pa.types.is_struct(kind):
        return {"_type": "Image"}
    if pa.types.is_nested(kind):
        # Every version reads `Sequence`; its replacement `List` needs version 4.0.
        length = kind.list_size if pa.types.is_fixed_size_list(kind) else -1
        return {"feature": _hf_feature(kind.value_type), "length": length, "_type": "Sequence"}
    return {"dtype": _HF_NAMES.get(str(kind), str(kind)), "_type": "Value"}
