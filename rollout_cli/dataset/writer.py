"""DatasetWriter: episodes in dataset order in, a dataset folder out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from rollout_cli.chunk import Chunk
from rollout_cli.dataset.columns import Array
from rollout_cli.dataset.committed import Committed
from rollout_cli.dataset.cuts import CutLimits
from rollout_cli.dataset.encoding import Encoder, EncodingThread
from rollout_cli.dataset.files import FileStore, tidy_up
from rollout_cli.dataset.flushing import FlushTimer
from rollout_cli.dataset.holdback import Holdback
from rollout_cli.dataset.lanes import Lanes
from rollout_cli.dataset.layout import check_folder, prepare_folder, remove_dataset, remove_replaced, write_json
from rollout_cli.dataset.lock import FolderLock
from rollout_cli.dataset.quality import strange_values
from rollout_cli.dataset.record import DatasetRecord, DatasetSummary, Status, WriterSetting, tell_what_is_safe
from rollout_cli.dataset.schema import DatasetSchema, SpaceSchema, infos_from_features
from rollout_cli.dataset.shards import ShardSetting
from rollout_cli.dataset.window import InfoSchema
from rollout_cli.episode_batch import EnvSpec
from rollout_cli.errors import InternalError, InterruptedRunError, StorageError, TerminatedRunError, UsageError


class DatasetWriter:
    """Writes chunks to a new dataset.

    The bytes of `data/` are a function of the episodes, the spaces, the limits and `header["env"]` alone. A row group
    goes to the encoder when it is full, a thread that is never more than a few row groups behind, so memory does not
    grow with the dataset; until the schema window closes (1,000 steps, to the end of an episode) the first chunks are
    held.

    From time to time what is there is committed, though its last shard is not full (see `FlushTimer`); this changes no
    byte of the dataset in the end. As a context manager it runs `abort` where `close` was not called.

    Args:
        path: The dataset's folder; made if it is missing.
        env_spec: Spaces and limit of the environment.
        root_seed: The run's root seed, below 2**63.
        base: The number of the plan's first episode.
        n_lanes: 1 for episodes in number order; more for that many lanes, each written to its own chunk folder.
        first_numbers: The first number of each lane; by default those of the first episodes that come.
        header: What else info.json records (`env`, `policy`, `collector`, `versions`, …). `env` goes into every shard's
            footer too, so nothing in it may differ between two runs of one seed.
        next_observation: Whether to write a `next_observation` column.
        overwrite: Whether to replace a dataset of ours in that folder.
        committed: What is committed of the dataset in that folder, to go on behind it; its window must be closed.
        limits: Where shards and row groups end.
        timer: When to commit what is there.
        files: The disk.
        encoder: Who encodes and commits; a thread of the writer's own if None.
        lock: The lock on the folder, where the caller has it; released with the writer's end either way.

    Raises:
        DatasetExistsError: If the folder holds something that may not be replaced.
        DatasetLockedError: If another writer has the folder.
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
        first_numbers: Sequence[int] | None = None,
        header: Mapping[str, Any] | None = None,
        next_observation: bool = False,
        overwrite: bool = False,
        committed: Committed | None = None,
        limits: CutLimits | None = None,
        timer: FlushTimer | None = None,
        files: FileStore | None = None,
        encoder: Encoder | None = None,
        lock: FolderLock | None = None,
    ) -> None:
        if not 0 <= root_seed < 2**63:
            raise UsageError(f"the root seed is {root_seed}", hint="give a seed from 0 to 2**63 - 1")
        self._root = Path(path).resolve()
        self._files = files or FileStore()
        self._encoder = encoder or EncodingThread()
        self._timer = timer or FlushTimer()
        self._setting = WriterSetting(root_seed, base, n_lanes, next_observation, limits or CutLimits())
        self._spaces = SpaceSchema.of(env_spec, next_observation=next_observation)
        self._record = DatasetRecord(
            self._files, self._root, self._setting, self._spaces, header or {}, committed=committed
        )
        self._holdback = Holdback(n_lanes=n_lanes, base=base)
        self._first_numbers = first_numbers
        self._lanes: Lanes | None = None
        self._next_id = 0
        self._open = True
        self._has_episodes = False
        # While an exception leaves a write half done, nobody knows what the open row groups hold.
        self._is_writing = False
        self._made_folder = not self._root.is_dir()
        self._lock = lock or self._locked(committed, overwrite=overwrite)
        try:
            self._begin(committed, overwrite=overwrite)
        except BaseException:
            self._lock.release()
            raise

    def _locked(self, committed: Committed | None, *, overwrite: bool) -> FolderLock:
        if committed is None:
            check_folder(self._root, overwrite=overwrite)
        self._files.make_folder(self._root)
        return FolderLock(self._files, self._root)

    def _begin(self, committed: Committed | None, *, overwrite: bool) -> None:
        """Put info.json in place, of a new dataset or of one that goes on."""
        if committed is None:
            prepare_folder(self._files, self._root, overwrite=overwrite)
        else:
            self._go_on(committed)
        self._record.write_info()
        self._record.write_card()
        remove_replaced(self._files, self._root)

    @property
    def path(self) -> Path:
        """Return the dataset's folder."""
        return self._root

    def observe(self, chunk: Chunk) -> None:
        """Let episodes take part in the schema window that are not kept: those before a plan's first one."""
        if self._lanes is None:
            self._holdback.observe(chunk)

    def write(self, chunk: Chunk, *, lane: int = 0) -> None:
        """Take the next chunk of a lane: whole episodes in number order, or the next part of one.

        Blocks while the encoder is behind. An error of the encoder is raised by the next call.
        """
        self._check_open()
        self._encoder.check()
        self._is_writing = True
        self._take(chunk, lane)
        self._is_writing = False
        if self._lanes is not None and self._timer.due():
            self._lanes.flush(self._timer)

    def _take(self, chunk: Chunk, lane: int) -> None:
        self._has_episodes = self._has_episodes or chunk.part is None or chunk.part.is_last
        if self._lanes is not None:
            self._lanes.write(chunk, self._ids(chunk), lane)
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
        self._commit_all()
        self._record.end(status, **facts)
        self._open = False
        try:
            self._record.write_card()
        finally:
            self._lock.release()
        return self._record.summary()

    def abort(self, *, commits: bool = True) -> None:
        """End the dataset as `interrupted`, with what can be committed.

        Everything is tried, whatever fails; the first failure is raised at the end.

        Args:
            commits: Whether to commit what was written, unless the disk or a write failed; else it is thrown away.
        """
        if not self._open:
            return
        self._open = False
        can_commit = commits and self._has_episodes and not self._is_writing and not self._encoder.has_failed
        steps: list[Callable[[], None]] = [self._commit_all] if can_commit else []
        steps += [self._stop_encoder, self._discard]
        steps += [lambda: self._record.end("interrupted"), self._record.write_card]
        failures: list[Exception] = []
        for step in steps:
            try:
                step()
            except Exception as error:  # noqa: BLE001  Whatever it is, the rest must be tidied up.
                failures.append(error)
        self._lock.release()
        if failures:
            raise failures[0]

    @property
    def has_episodes(self) -> bool:
        """Return whether it has any episode, whole."""
        return self._has_episodes

    def remove(self) -> None:
        """Throw the dataset away, with the folder that was made for it: for a run that came to nothing."""
        self._check_open()
        self._open = False
        try:
            self._stop_encoder()
        finally:
            self._discard()
            self._lock.release()
            remove_dataset(self._files, self._root, with_folder=self._made_folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.abort()
        else:
            # Who asks a second time for the end does not want to wait.
            at_once = isinstance(error, KeyboardInterrupt | InterruptedRunError | TerminatedRunError)
            tidy_up(error, partial(self.abort, commits=not at_once))
            if isinstance(error, StorageError):
                tell_what_is_safe(error, self._record.summary())

    def _check_open(self) -> None:
        if not self._open:
            raise InternalError("the dataset's writer was used after it was closed")

    def _begin_lanes(self) -> Lanes:
        """Decide the columns and write what was held."""
        self._lanes = lanes = self._make_lanes(self._holdback.result())
        for chunk, lane in self._holdback.release():
            lanes.write(chunk, self._ids(chunk), lane)
        return lanes

    def _make_lanes(self, infos: InfoSchema) -> Lanes:
        schema = DatasetSchema.of(self._spaces, infos, self._record.env)
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
        return Lanes(
            setting,
            self._encoder,
            limits=self._setting.limits,
            n_lanes=self._setting.n_lanes,
            first_numbers=self._first_numbers,
        )

    def _go_on(self, committed: Committed) -> None:
        """Begin behind what is committed, once nothing else is there."""
        for path in committed.stale:
            self._files.remove(path)
        self._has_episodes = True
        self._next_id = committed.episodes
        self._lanes = self._make_lanes(infos_from_features(committed.info["features"]))
        self._lanes.go_on(committed)

    def _commit_all(self) -> None:
        """Commit all that was written; nothing may follow."""
        lanes = self._lanes or self._begin_lanes()
        stats = lanes.finish()
        write_json(self._files, self._root / "meta" / "stats.json", stats.document())
        steps = self._record.summary().steps
        self._record.note_strange(strange_values(self._root, stats, self._spaces, steps))

    def _discard(self) -> None:
        if self._lanes is not None:
            self._lanes.discard()

    def _stop_encoder(self) -> None:
        untold = self._encoder.stop()
        if untold is not None:
            raise untold

    def _ids(self, chunk: Chunk) -> Array:
        if self._setting.n_lanes > 1:
            return chunk.numbers - self._setting.base
        ids = self._next_id + np.arange(chunk.n_episodes)
        if chunk.part is None or chunk.part.is_last:
            self._next_id += chunk.n_episodes
        return ids
