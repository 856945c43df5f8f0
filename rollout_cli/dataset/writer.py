"""DatasetWriter: episodes in dataset order in, a dataset folder out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from rollout_cli.chunk import Chunk
from rollout_cli.dataset.columns import Array
from rollout_cli.dataset.cuts import CutLimits
from rollout_cli.dataset.encoding import Encoder, EncodingThread
from rollout_cli.dataset.files import FileStore, tidy_up
from rollout_cli.dataset.holdback import Holdback
from rollout_cli.dataset.lane import Lane
from rollout_cli.dataset.layout import prepare_folder, remove_dataset, remove_replaced, write_json
from rollout_cli.dataset.record import DatasetRecord, DatasetSummary, Status, WriterSetting
from rollout_cli.dataset.schema import DatasetSchema, SpaceSchema
from rollout_cli.dataset.shard import Place
from rollout_cli.dataset.shards import LaneShards, ShardSetting
from rollout_cli.dataset.stats import TableStats
from rollout_cli.episode_batch import EnvSpec
from rollout_cli.errors import InternalError, StorageError, UsageError

FILES_PER_CHUNK = 1_000
"""Files in one chunk folder of a dataset with one lane."""


class DatasetWriter:
    """Writes chunks to a new dataset.

    The bytes of `data/` are a function of the episodes, the spaces, the limits and `header["env"]` alone. A row group
    goes to the encoder when it is full, a thread that is never more than a few row groups behind, so memory does not
    grow with the dataset; until the schema window closes (1,000 steps, to the end of an episode) the first chunks are
    held.

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
        encoder: Who encodes and commits; a thread of the writer's own if None.

    Raises:
        DatasetExistsError: If the folder holds something that may not be replaced.
        UnsupportedSpaceError: If a space has no fixed set of columns.
        UsageError: If the root seed is out of range.
        StorageError: From any method, if the disk fails; perhaps not from the first one after it failed.
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
        encoder: Encoder | None = None,
    ) -> None:
        if not 0 <= root_seed < 2**63:
            raise UsageError(f"the root seed is {root_seed}", hint="give a seed from 0 to 2**63 - 1")
        self._root = Path(path).resolve()
        self._files = files or FileStore()
        self._encoder = encoder or EncodingThread()
        self._setting = WriterSetting(root_seed, base, n_lanes, next_observation, limits or CutLimits())
        self._spaces = SpaceSchema.of(env_spec, next_observation=next_observation)
        self._record = DatasetRecord(self._files, self._root, self._setting, self._spaces, header or {})
        self._holdback = Holdback(n_lanes=n_lanes, base=base)
        self._lanes: list[Lane] = []
        self._shards: list[LaneShards] = []
        self._next_id = 0
        self._open = True
        self._has_episodes = False
        self._made_folder = prepare_folder(self._files, self._root, overwrite=overwrite)
        self._record.write_info()
        self._record.write_card()
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
        """Take the next chunk of a lane: whole episodes in number order, or the next part of one.

        Blocks while the encoder is behind. An error of the encoder is raised by the next call.
        """
        self._check_open()
        self._encoder.check()
        self._has_episodes = self._has_episodes or chunk.part is None or chunk.part.is_last
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
        for lane in self._lanes:
            lane.finish()
        self._encoder.finish()
        self._write_stats()
        self._record.end(status, **facts)
        self._open = False
        self._record.write_card()
        return self._record.summary()

    def abort(self) -> None:
        """End the dataset with what was committed; the open shards, and what waits for the encoder, are thrown away.

        Everything is tried, whatever fails; the first failure is raised at the end.
        """
        if not self._open:
            return
        self._open = False
        untold = self._encoder.stop()
        failures = [] if untold is None else [untold]
        discards = (shards.discard for shards in self._shards)
        for step in (*discards, lambda: self._record.end("interrupted"), self._record.write_card):
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
        """Throw the dataset away, with the folder that was made for it: for a run that came to nothing."""
        self._check_open()
        self._open = False
        untold = self._encoder.stop()
        for shards in self._shards:
            shards.discard()
        remove_dataset(self._files, self._root, with_folder=self._made_folder)
        if untold is not None:
            raise untold

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
        schema = DatasetSchema.of(self._spaces, self._holdback.result(), self._record.env)
        self._record.decide(schema)
        # From here on the encoder has the record, until it has finished or stopped.
        setting = ShardSetting(
            files=self._files,
            root=self._root,
            root_seed=self._setting.root_seed,
            schema=schema,
            committed=self._record.commit,
            lost=self._record.count_dropped,
        )
        limits = self._setting.limits.for_lanes(self._setting.n_lanes)
        self._shards = [LaneShards(setting, self._places(lane)) for lane in range(self._setting.n_lanes)]
        self._lanes = [Lane(shards, self._encoder, self._spaces, limits) for shards in self._shards]
        for chunk, lane in self._holdback.release():
            self._pass_on(chunk, lane)

    def _places(self, lane: int) -> Callable[[int], Place]:
        def place(shard: int) -> Place:
            return divmod(shard, FILES_PER_CHUNK) if self._setting.n_lanes == 1 else (lane, shard)

        return place

    def _pass_on(self, chunk: Chunk, lane: int) -> None:
        self._lanes[lane].write(chunk, self._ids(chunk))

    def _ids(self, chunk: Chunk) -> Array:
        if self._setting.n_lanes > 1:
            return chunk.numbers - self._setting.base
        ids = self._next_id + np.arange(chunk.n_episodes)
        if chunk.part is None or chunk.part.is_last:
            self._next_id += chunk.n_episodes
        return ids

    def _write_stats(self) -> None:
        stats = TableStats()
        for shards in self._shards:
            stats.merge(shards.stats)
        write_json(self._files, self._root / "meta" / "stats.json", stats.document())
