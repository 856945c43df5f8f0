"""What info.json says, taken apart, as far as it can be believed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rollout_cli.dataset.layout import info_path
from rollout_cli.dataset.reader import env_spec_of
from rollout_cli.dataset.schema import INFO_PREFIXES, DatasetSchema, SpaceSchema, infos_from_features
from rollout_cli.dataset.verification.report import Findings
from rollout_cli.dataset.window import InfoField, InfoSchema
from rollout_cli.errors import DatasetFormatError, UnsupportedSpaceError
from rollout_cli.infos import STRING

STATUSES = ("collecting", "complete", "interrupted")
TOTALS = ("episodes", "steps", "bytes", "shards")
_WINDOWS = ("waiting", "open", "closed")


@dataclass(frozen=True, slots=True)
class Claims:
    """What a dataset says of itself.

    Attributes:
        info: Its info.json.
        status: `collecting`, `complete` or `interrupted`.
        root_seed: Its root seed.
        base: The number of the plan's first episode.
        lanes: How many lanes it has.
        in_order: Whether the episodes of a lane are in the order of their numbers.
        spaces: The columns of its spaces.
        schema: Its columns; None while they are not decided.
    """

    info: Mapping[str, Any]
    status: str
    root_seed: int
    base: int
    lanes: int
    in_order: bool
    spaces: SpaceSchema
    schema: DatasetSchema | None

    @property
    def group_rows(self) -> int | None:
        """Return the most rows that a row group may have; None where that is not recorded."""
        limits = self.info.get("limits")
        rows = limits.get("group_rows") if isinstance(limits, Mapping) else None
        return rows if isinstance(rows, int) and rows > 0 else None

    def lane_of(self, chunk: int) -> int:
        """Return the lane that a chunk folder belongs to."""
        return chunk if self.lanes > 1 else 0


def read_claims(root: Path, info: Mapping[str, Any], findings: Findings) -> Claims | None:
    """Return what `info` says; None, and a fault for each reason, where nothing can be held against it."""
    path = info_path(root)
    before = len(findings.faults)
    for problem in _problems(info):
        findings.fault(path, problem)
    if len(findings.faults) > before:
        return None
    try:
        spaces = SpaceSchema.of(env_spec_of(info), next_observation=info["next_observation"])
        schema = _schema(info, spaces)
    except (DatasetFormatError, UnsupportedSpaceError) as error:
        findings.fault(path, error.message)
        return None
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        findings.fault(path, f"its spaces and features are not those of a dataset: {error!r}"[:300])
        return None
    if schema is not None and info["features"] != schema.describe():
        findings.fault(path, "its features are not those of its spaces")
    collector = info.get("collector")
    in_order = not (isinstance(collector, Mapping) and collector.get("order") == "arrival")
    return Claims(info, info["status"], info["root_seed"], info["base"], info["lanes"], in_order, spaces, schema)


def _problems(info: Mapping[str, Any]) -> list[str]:
    problems = [
        f"{name} is {info.get(name)!r}, expected a whole number"
        for name in (*TOTALS, "root_seed", "base", "lanes")
        if not isinstance(info.get(name), int) or isinstance(info[name], bool) or info[name] < (name == "lanes")
    ]
    for name, known in (("status", STATUSES), ("window", _WINDOWS), ("next_observation", (True, False))):
        if info.get(name) not in known:
            problems.append(f"{name} is {info.get(name)!r}, expected one of {', '.join(map(str, known))}")
    problems += [
        f"it has no {name}" for name in ("features", "spaces", "times") if not isinstance(info.get(name), dict)
    ]
    if not problems and info["window"] == "waiting" and info["episodes"]:
        problems.append("it counts episodes, but its window is waiting")
    return [problem[:300] for problem in problems]


def _schema(info: Mapping[str, Any], spaces: SpaceSchema) -> DatasetSchema | None:
    if info["window"] == "waiting":
        return None
    infos = replace(infos_from_features(info["features"]), closed=info["window"] == "closed")
    return DatasetSchema.of(spaces, infos, info.get("env") or {})


def schema_of_files(
    spaces: SpaceSchema, env: Mapping[str, Any], data: pa.Schema, episodes: pa.Schema, *, closed: bool
) -> DatasetSchema:
    """Return the columns of a dataset of which only its files tell the info columns.

    A dotted name is taken for a path of as many keys.

    Args:
        spaces: The columns of its spaces.
        env: What is recorded of its environment.
        data: The schema of a data file.
        episodes: The schema of an episodes file.
        closed: Whether its schema window is full.

    Raises:
        ValueError: If a column has a type that no info column has.
    """
    names = zip(INFO_PREFIXES, (data, data, episodes), strict=True)
    env_infos, agent_infos, episode_infos = (
        tuple(
            InfoField(tuple(field.name.split(".")[1:]), _kind(field.type))
            for field in schema
            if field.name.startswith(f"{prefix}.")
        )
        for prefix, schema in names
    )
    return DatasetSchema.of(spaces, InfoSchema(env_infos, agent_infos, episode_infos, closed=closed), env)


def _kind(kind: pa.DataType) -> str:
    shape = []
    while pa.types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        kind = kind.value_type
    if pa.types.is_string(kind) and not shape:
        return STRING
    if not (pa.types.is_primitive(kind) or pa.types.is_boolean(kind)):
        raise ValueError(f"no info column has the type {kind}")
    name = np.dtype(kind.to_pandas_dtype()).name
    return f"{name}[{','.join(map(str, shape))}]" if shape else name
