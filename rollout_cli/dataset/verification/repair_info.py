"""info.json anew, from the footers and rows of the files: all that they tell of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rollout_cli.dataset.commits import Commit
from rollout_cli.dataset.limits import check_episode_rows, open_parquet, parse_json
from rollout_cli.dataset.reader import env_spec_of
from rollout_cli.dataset.schema import FORMAT, FORMAT_VERSION, SpaceSchema
from rollout_cli.dataset.shard import FILES_PER_CHUNK, Place, data_path, episodes_path
from rollout_cli.dataset.tables import reading
from rollout_cli.dataset.verification.claims import schema_of_files
from rollout_cli.dataset.verification.folder import Folder
from rollout_cli.dataset.window import WINDOW_STEPS
from rollout_cli.errors import DatasetFormatError, UnsupportedSpaceError


def rebuilt_info(root: Path, folder: Folder) -> dict[str, Any]:
    """Return what the files tell: spaces, columns, environment, root seed, base and lanes, but not totals.

    The number of lanes is the least that the files' places allow.

    Raises:
        DatasetFormatError: If there is no shard that can be read.
    """
    for place in folder.episodes:
        if place not in folder.data:
            continue
        try:
            return _info_of(_read(root, place), folder)
        except (DatasetFormatError, UnsupportedSpaceError, ValueError, KeyError, TypeError, RecursionError):
            continue
    raise DatasetFormatError(
        f"{root} has no info.json that can be read, and no data file from which one could be made",
        hint="put back meta/info.json from a copy, or collect the dataset again",
    )


@dataclass(frozen=True, slots=True)
class _Shard:
    footer: Mapping[bytes, bytes]
    data: pa.Schema
    episodes: pa.Schema
    facts: pa.Table
    commit: Commit


def _read(root: Path, place: Place) -> _Shard:
    path = episodes_path(root, place)
    with reading(data_path(root, place)):
        data = open_parquet(root, data_path(root, place)).schema_arrow
    with reading(path):
        file = open_parquet(root, path)
        check_episode_rows(path, file.metadata)
        facts = file.read(columns=["episode_id", "episode_number", "root_seed", "length"])
    commit = Commit.from_footer(file.metadata.metadata or {})
    return _Shard(data.metadata or {}, data, file.schema_arrow, facts, commit)


def _info_of(shard: _Shard, folder: Folder) -> dict[str, Any]:
    spaces, limit, env = (
        parse_json(shard.footer[f"rollout.{name}".encode()]) for name in ("spaces", "max_episode_length", "env")
    )
    following = any(name.split(".")[0] == "next_observation" for name in shard.data.names)
    columns = SpaceSchema.of(env_spec_of({"spaces": spaces, "max_episode_length": limit}), next_observation=following)
    closed = int(np.sum(shard.facts["length"].to_numpy())) >= WINDOW_STEPS
    schema = schema_of_files(columns, env, shard.data, shard.episodes, closed=closed)
    lanes = _lanes(folder)
    first = {name: int(shard.facts[name][0].as_py()) for name in ("episode_id", "episode_number", "root_seed")}
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "status": "interrupted",
        "episodes": 0,
        "steps": 0,
        "bytes": 0,
        "shards": 0,
        "root_seed": first["root_seed"],
        "base": first["episode_number"] - first["episode_id"] if lanes > 1 else 0,
        "lanes": lanes,
        "next_observation": following,
        "max_episode_length": limit,
        "spaces": spaces,
        "features": json.loads(json.dumps(schema.describe())),
        "window": "closed" if closed else "open",
        "dropped_infos": {},
        "env": env,
        "times": {"started": None, "updated": now, "ended": now},
    }


def _lanes(folder: Folder) -> int:
    """Return how many lanes there are at least: one lane has a second chunk folder only when the first is full."""
    last = max(chunk for chunk, _ in folder.places)
    if last == 0 or (0, FILES_PER_CHUNK - 1) in folder.places:
        return 1
    return last + 1
