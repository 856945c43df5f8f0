"""DatasetRecord: what a dataset says of itself, in info.json and in its card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from rollout_cli.dataset.card import render_card
from rollout_cli.dataset.committed import Committed
from rollout_cli.dataset.cuts import CutLimits
from rollout_cli.dataset.files import FileStore
from rollout_cli.dataset.layout import info_path, write_json
from rollout_cli.dataset.quality import Strange
from rollout_cli.dataset.schema import FORMAT, FORMAT_VERSION, DatasetSchema, SpaceSchema
from rollout_cli.dataset.shard import CommittedShard, Place
from rollout_cli.errors import InternalError, RolloutError

Status = Literal["complete", "interrupted"]


@dataclass(frozen=True, slots=True)
class DatasetSummary:
    """What a closed dataset holds.

    Attributes:
        path: Its folder.
        status: `complete` or `interrupted`.
        episodes: Episodes in it.
        steps: Their steps.
        bytes: Bytes of its data and episodes files.
        shards: Data files.
        window: `closed`, or `open` where the run ended before its info columns were decided by a full window.
        dropped_infos: By column, how many info values could not be stored.
        strange_values: Columns that hold values which are not finite, or outside of their space.
    """

    path: Path
    status: Status
    episodes: int
    steps: int
    bytes: int
    shards: int
    window: str
    dropped_infos: Mapping[str, int]
    strange_values: tuple[Strange, ...] = ()


def tell_what_is_safe(error: RolloutError, kept: DatasetSummary) -> None:
    """Add to the hint of an error that ended a dataset what was committed before it."""
    if info_path(kept.path).is_file():
        told = f"{kept.episodes:,} episodes ({kept.steps:,} steps) are safe in {kept.path}, and --resume goes on there"
    else:
        told = f"{kept.path} is gone, and the {kept.episodes:,} episodes ({kept.steps:,} steps) that were in it"
    error.hint = f"{error.hint}; {told}" if error.hint else told


@dataclass(frozen=True, slots=True)
class WriterSetting:
    """How a dataset is written; all of it is in info.json.

    Attributes:
        root_seed: The run's root seed.
        base: The number of the plan's first episode.
        n_lanes: How many lanes there are.
        next_observation: Whether there is a `next_observation` column.
        limits: Where shards and row groups end.
    """

    root_seed: int
    base: int
    n_lanes: int
    next_observation: bool
    limits: CutLimits


class DatasetRecord:
    """info.json and the card of a dataset that is being written.

    Args:
        files: Where they are written.
        root: The dataset's folder.
        setting: How the dataset is written.
        spaces: The columns of the environment's spaces.
        header: What else info.json records.
        committed: What is committed of the dataset already; None for a new one.

    Raises:
        InternalError: If the header has keys that are not its own.
    """

    def __init__(
        self,
        files: FileStore,
        root: Path,
        setting: WriterSetting,
        spaces: SpaceSchema,
        header: Mapping[str, Any],
        *,
        committed: Committed | None = None,
    ) -> None:
        self._files = files
        self._root = root
        ours = _first_info(setting, spaces)
        taken = sorted(ours.keys() & header.keys())
        if taken:
            raise InternalError(f"the header of a dataset has keys that are the writer's own: {', '.join(taken)}")
        self._info = ours | dict(header)
        self._shards: dict[Place, CommittedShard] = {}
        self._strange: tuple[Strange, ...] = ()
        if committed is not None:
            self._go_on(committed)

    @property
    def env(self) -> Mapping[str, Any]:
        """Return what the header says of the environment."""
        env: Mapping[str, Any] = self._info.get("env") or {}
        return env

    def decide(self, schema: DatasetSchema) -> None:
        """Record the columns."""
        self._info.update(window="closed" if schema.infos.closed else "open", features=schema.describe())

    def commit(self, shard: CommittedShard) -> None:
        """Count what a shard holds, in place of what an earlier version of it held, and write info.json."""
        self._count(shard)
        self.write_info()

    def _go_on(self, committed: Committed) -> None:
        """Count what is committed; what was recorded of it stays, and the header's keys are those of this run."""
        before = committed.info
        self._info.update(dropped_infos=dict(before["dropped_infos"]))
        now = self._info["times"]["started"]
        self._info["times"].update(
            started=before["times"]["started"], resumed=[*before["times"].get("resumed", []), now]
        )
        for shard in committed.shards:
            self._count(shard)

    def _count(self, shard: CommittedShard) -> None:
        old = self._shards.get(shard.place)
        self._shards[shard.place] = shard
        self._info["shards"] = len(self._shards)
        for name in ("episodes", "steps", "bytes"):
            self._info[name] += getattr(shard, name) - (getattr(old, name) if old else 0)

    def count_dropped(self, dropped: Mapping[str, int]) -> None:
        """Count info values that are not in the dataset, by column."""
        counts = self._info["dropped_infos"]
        for key, count in dropped.items():
            counts[key] = counts.get(key, 0) + count

    def note_strange(self, found: Sequence[Strange]) -> None:
        """Record which columns hold values that are not finite, or outside of their space."""
        self._strange = tuple(found)
        self._info["strange_values"] = [one.to_dict() for one in found]

    def end(self, status: Status, **facts: Any) -> None:
        """Record how the dataset ended, and write info.json."""
        self._info.update(facts, status=status)
        self._info["times"]["ended"] = _now()
        self.write_info()

    def write_info(self) -> None:
        """Write info.json."""
        self._info["times"]["updated"] = _now()
        write_json(self._files, info_path(self._root), self._info)

    def write_card(self) -> None:
        """Write the card."""
        self._files.replace(self._root / "README.md", render_card(self._info).encode())

    def summary(self) -> DatasetSummary:
        """Return what the dataset holds."""
        names = ("status", "episodes", "steps", "bytes", "shards", "window")
        counts = {name: self._info[name] for name in names}
        dropped = dict(self._info["dropped_infos"])
        return DatasetSummary(self._root, dropped_infos=dropped, strange_values=self._strange, **counts)


def _first_info(setting: WriterSetting, spaces: SpaceSchema) -> dict[str, Any]:
    now = _now()
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "status": "collecting",
        "episodes": 0,
        "steps": 0,
        "bytes": 0,
        "shards": 0,
        "root_seed": setting.root_seed,
        "base": setting.base,
        "lanes": setting.n_lanes,
        "next_observation": setting.next_observation,
        "limits": asdict(setting.limits),
        "max_episode_length": spaces.env_spec.max_episode_length,
        "spaces": spaces.describe(),
        "features": {column.name: column.describe() for column in spaces.columns},
        "window": "waiting",
        "dropped_infos": {},
        "strange_values": [],
        "times": {"started": now, "updated": now, "ended": None},
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
