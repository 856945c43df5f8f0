"""DatasetWriter: episodes in dataset order in, a dataset folder out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np

from rollout_cli.chunk import Chunk
from rollout_cli.dataset.card import render_card
from rollout_cli.dataset.columns import Array
from rollout_cli.dataset.cuts import CutLimits
from rollout_cli.dataset.files import FileStore, tidy_up
from rollout_cli.dataset.holdback import Holdback
from rollout_cli.dataset.lane import Lane, LaneSetting
from rollout_cli.dataset.layout import info_path, prepare_folder, remove_replaced, write_json
from rollout_cli.dataset.schema import FORMAT, FORMAT_VERSION, DatasetSchema, SpaceSchema
from rollout_cli.dataset.shard import CommittedShard, Place
from rollout_cli.dataset.stats import TableStats
from rollout_cli.episode_batch import EnvSpec
from rollout_cli.errors import InternalError, StorageError, UsageError

FILES_PER_CHUNK = 1_000
"""Files in one chunk folder of a dataset with one lane."""

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
    """

    path: Path
    status: Status
    episodes: int
    steps: int
    bytes: int
    shards: int
    window: str
    dropped_infos: Mapping[str, int]


class DatasetWriter:
    """Writes chunks to a new dataset.

    The bytes of `data/` are a function of the episodes, the spaces, the limits and `header["env"]` alone. A row group
    is encoded and dropped when it is full, so memory does not grow with the dataset; until the schema window closes
    (1,000 steps, to the end of an episode) the first chunks are held.

    As a context manager it commits nothing on an exception, or where `close` was not called: `abort` runs instead.

    Args:
        path: The dataset's folder; made if it is missing.
        env_spec: Spaces and limit of the environment.
        root_seed: The run's root seed, below 2**63.
        base: The number of the plan's first episode.
        n_lanes: 1 for episodes in number order; more for that many lanes, each written to its own chunk folder.
        header: What else info.json records (`env`, `policy`, `collector`, `versions`, …). `env` goes into every shard's
            footer too, so nothing in it may differ between two runs of one seed.
        next_observation: Whether to write a `next_observation` column.
        overwrite: Whether to replace a dataset of ours in that folder.
        limits: Where shards and row groups end.
        files: The disk.

    Raises:
        DatasetExistsError: If the folder holds something that may not be replaced.
        UnsupportedSpaceError: If a space has no fixed set of columns.
        UsageError: If the root seed is out of range.
        StorageError: From any method, if the disk fails.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        env_spec: EnvSpec,
        root_seed: int,
        base: int = 0,
        n_lanes: int = 1,
        header: Mapping[str, Any] | None = None,
        next_observation: bool = False,
        overwrite: bool = False,
        limits: CutLimits | None = None,
        files: FileStore | None = None,
    ) -> None:
        if not 0 <= root_seed < 2**63:
            raise UsageError(f"the root seed is {root_seed}", hint="give a seed from 0 to 2**63 - 1")
        self._root = Path(path).resolve()
        self._files = files or FileStore()
        self._root_seed = root_seed
        self._base = base
        self._n_lanes = n_lanes
        self._limits = limits or CutLimits()
        self._spaces = SpaceSchema.of(env_spec, next_observation=next_observation)
        self._holdback = Holdback(n_lanes=n_lanes, base=base)
        self._lanes: list[Lane] = []
        self._next_id = 0
        self._open = True
        self._has_episodes = False
        self._info = self._first_info(dict(header or {}), next_observation=next_observation)
        prepare_folder(self._files, self._root, overwrite=overwrite)
        self._write_info()
        self._write_card()
        remove_replaced(self._files, self._root)

    @property
    def path(self) -> Path:
        """Return the dataset's folder."""
        return self._root

    def observe(self, chunk: Chunk) -> None:
        """Let episodes take part in the schema window that are not kept: those before a plan's first one."""
        if self._lanes:
            return
        self._holdback.observe(chunk)

    def write(self, chunk: Chunk, *, lane: int = 0) -> None:
        """Take the next chunk of a lane: whole episodes in number order, or the next part of one."""
        self._check_open()
        self._has_episodes = self._has_episodes or chunk.part is None or chunk.part.is_last
        self._count_dropped(_dropped(chunk))
        if self._lanes:
            self._pass_on(chunk, lane)
            return
        self._holdback.hold(chunk, lane)
        if self._holdback.closed:
            self._begin_lanes()

    def close(self, *, status: Status, **facts: Any) -> DatasetSummary:
        """Commit all that was written and end the dataset.

        Args:
            status: `complete` where the plan is done, else `interrupted`.
            facts: What else info.json is to record.
        """
        self._check_open()
        if not self._lanes:
            self._begin_lanes()
        stats = TableStats()
        for lane in self._lanes:
            lane.finish()
            stats.merge(lane.stats)
        write_json(self._files, self._root / "meta" / "stats.json", stats.document())
        self._info.update(facts)
        self._end(status)
        self._write_card()
        return self._summary(status)

    def abort(self) -> None:
        """End the dataset with what was committed; the open shards are thrown away.

        Everything is tried, whatever fails; the first failure is raised at the end.
        """
        if not self._open:
            return
        self._open = False
        failures: list[StorageError] = []
        for step in (*(lane.discard for lane in self._lanes), lambda: self._end("interrupted"), self._write_card):
            try:
                step()
            except StorageError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    @property
    def has_episodes(self) -> bool:
        """Return whether any episode was written to it, whole."""
        return self._has_episodes

    def remove(self) -> None:
        """Throw the dataset away, with its folder: for a run that came to nothing."""
        self._check_open()
        self._open = False
        for lane in self._lanes:
            lane.discard()
        self._files.remove(self._root)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.abort()
        else:
            tidy_up(error, self.abort)

    def _check_open(self) -> None:
        if not self._open:
            raise InternalError("the dataset's writer was used after it was closed")

    def _begin_lanes(self) -> None:
        """Decide the columns and write what was held."""
        infos = self._holdback.result()
        schema = DatasetSchema.of(self._spaces, infos, self._info.get("env") or {})
        setting = LaneSetting(
            files=self._files,
            root=self._root,
            root_seed=self._root_seed,
            schema=schema,
            limits=self._limits.for_lanes(self._n_lanes),
            committed=self._committed,
            lost=self._count_dropped,
        )
        self._lanes = [Lane(setting, self._places(lane)) for lane in range(self._n_lanes)]
        self._info.update(window="closed" if infos.closed else "open", features=schema.describe())
        for chunk, lane in self._holdback.release():
            self._pass_on(chunk, lane)

    def _places(self, lane: int) -> Any:
        def place(shard: int) -> Place:
            return divmod(shard, FILES_PER_CHUNK) if self._n_lanes == 1 else (lane, shard)

        return place

    def _pass_on(self, chunk: Chunk, lane: int) -> None:
        self._lanes[lane].write(chunk, self._ids(chunk))

    def _ids(self, chunk: Chunk) -> Array:
        if self._n_lanes > 1:
            return chunk.numbers - self._base
        ids = self._next_id + np.arange(chunk.n_episodes)
        if chunk.part is None or chunk.part.is_last:
            self._next_id += chunk.n_episodes
        return ids

    def _committed(self, shard: CommittedShard) -> None:
        totals = {"episodes": shard.episodes, "steps": shard.steps, "bytes": shard.bytes, "shards": 1}
        self._info.update({name: self._info[name] + count for name, count in totals.items()})
        self._write_info()

    def _count_dropped(self, dropped: Mapping[str, int]) -> None:
        counts = self._info["dropped_infos"]
        for key, count in dropped.items():
            counts[key] = counts.get(key, 0) + count

    def _first_info(self, header: dict[str, Any], *, next_observation: bool) -> dict[str, Any]:
        now = _now()
        ours = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "status": "collecting",
            "episodes": 0,
            "steps": 0,
            "bytes": 0,
            "shards": 0,
            "root_seed": self._root_seed,
            "base": self._base,
            "lanes": self._n_lanes,
            "next_observation": next_observation,
            "limits": asdict(self._limits),
            "max_episode_length": self._spaces.env_spec.max_episode_length,
            "spaces": self._spaces.describe(),
            "features": {column.name: column.describe() for column in self._spaces.columns},
            "window": "waiting",
            "dropped_infos": {},
            "times": {"started": now, "updated": now, "ended": None},
        }
        taken = sorted(ours.keys() & header.keys())
        if taken:
            raise InternalError(f"the header of a dataset has keys that are the writer's own: {', '.join(taken)}")
        return ours | header

    def _end(self, status: Status) -> None:
        self._info["status"] = status
        self._info["times"]["ended"] = _now()
        self._write_info()
        self._open = False

    def _write_info(self) -> None:
        self._info["times"]["updated"] = _now()
        write_json(self._files, info_path(self._root), self._info)

    def _write_card(self) -> None:
        self._files.replace(self._root / "README.md", render_card(self._info).encode())

    def _summary(self, status: Status) -> DatasetSummary:
        counts = {name: self._info[name] for name in ("episodes", "steps", "bytes", "shards", "window")}
        return DatasetSummary(self._root, status, dropped_infos=dict(self._info["dropped_infos"]), **counts)


def _dropped(chunk: Chunk) -> dict[str, int]:
    tables = {"env_info": chunk.env_infos, "agent_info": chunk.agent_infos}
    if chunk.part is None or chunk.part.is_last:
        tables["episode_info"] = chunk.episode_infos  # Every part has these.
    return {f"{prefix}.{key}": count for prefix, table in tables.items() for key, count in table.dropped.items()}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
