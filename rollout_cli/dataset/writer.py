"""DatasetWriter: episodes in dataset order in, a dataset folder out."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from rollout_cli.dataset.commits import Committed, SegmentId, Written
from rollout_cli.dataset.convert import Array
from rollout_cli.dataset.files import (
    REPLACED,
    FileStore,
    FolderLock,
    check_folder,
    info_path,
    move_to_replaced,
    recover_replaced,
    remove_dataset,
    stats_path,
    tidy_up,
)
from rollout_cli.dataset.inference import SchemaInference
from rollout_cli.dataset.metadata import DatasetRecord, DatasetSummary, Status, note_what_is_kept
from rollout_cli.dataset.partitions import Partition, WriteQueue
from rollout_cli.dataset.schema import DatasetSchema, InfoSchema, SpaceSchema
from rollout_cli.dataset.segments import SegmentSettings, SizeLimits
from rollout_cli.dataset.stats import Place, anomalies, merge_stats, stats_document
from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.chunk import Chunk
from rollout_cli.errors import InternalError, InterruptedRunError, StorageError, TerminatedRunError, UsageError

__all__ = ["DatasetSummary", "DatasetWriter", "Status"]


class DatasetWriter:
    """Writes chunks to a dataset.

    The bytes of `data/` are a function of the episodes, the spaces, the limits and `header["env"]` alone. Segments are
    written by a thread that is at most two behind, so memory does not grow with the dataset. Until schema inference
    has decided the columns (1,000 steps, to the end of an episode) the first chunks are held.

    As a context manager it runs `abort` where `close` was not called.

    Args:
        path: The dataset's folder; made if it is missing.
        env_spec: Spaces and limit of the environment.
        root_seed: The run's root seed, from 0 to 2**63 - 1.
        n_partitions: 1 for episodes in number order; with more, each partition has a chunk folder of its own.
        first_numbers: The first number of each partition; by default those of the first episodes that come, and then
            gaps before them are not recorded as skipped.
        header: What else info.json records (`env`, `policy`, `collector`, `versions`, …). `env` goes into every file's
            footer too, so nothing in it may differ between two runs of one seed.
        next_observation: Whether to write a `next_observation` column.
        overwrite: Whether to replace a dataset in that folder. It stays in place until the new one's first commit.
        committed: The committed part of the dataset in that folder, to be resumed; see `Committed.can_resume`.
        limits: Where segments end.
        flush_seconds: How often open segments are committed.
        files: The disk.
        lock: The lock on the folder, if the caller has it; released with the writer's end either way.

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
        n_partitions: int = 1,
        first_numbers: Sequence[int] | None = None,
        header: Mapping[str, Any] | None = None,
        next_observation: bool = False,
        overwrite: bool = False,
        committed: Committed | None = None,
        limits: SizeLimits | None = None,
        flush_seconds: float = 30.0,
        files: FileStore | None = None,
        lock: FolderLock | None = None,
    ) -> None:
        if not 0 <= root_seed < 2**63:
            raise UsageError(f"the root seed is {root_seed}", hint="give a seed from 0 to 2**63 - 1")
        self._root = Path(path).resolve()
        self._files = files or FileStore()
        self._root_seed = root_seed
        self._firsts: Sequence[int | None] = first_numbers or [None] * n_partitions
        self._limits = limits or SizeLimits()
        self._spaces = SpaceSchema.of(env_spec, next_observation=next_observation)
        settings = {
            "root_seed": root_seed,
            "partitions": n_partitions,
            "first_numbers": None if first_numbers is None else list(first_numbers),
            "next_observation": next_observation,
            "limits": dataclasses.asdict(self._limits),
        }
        before = None if committed is None else committed.info
        self._record = DatasetRecord(self._files, self._root, settings, self._spaces, header or {}, before=before)
        self._inference = SchemaInference(n_partitions=n_partitions)
        self._queue = WriteQueue()
        self._schema: DatasetSchema | None = None
        self._partitions: list[Partition] = []
        self._segments: dict[SegmentId, Written] = {}
        self._next_id = 0
        self._is_open = True
        self._has_episodes = False
        self._flush_seconds = flush_seconds
        self._next_flush = time.monotonic() + flush_seconds
        # After an exception in the middle of `write`, nobody knows which of its episodes the open segments hold.
        self._is_writing = False
        # Whether info.json is this dataset's, and not that of the one to be replaced.
        self._is_begun = False
        # Whether that one was moved to `REPLACED`, and this one has no commit yet.
        self._replaced = False
        if committed is None:
            check_folder(self._root, overwrite=overwrite)
        self._made_folder = not self._root.exists()
        self._files.make_folder(self._root)
        self._lock = lock or FolderLock(self._files, self._root)
        try:
            self._begin(committed, overwrite=overwrite)
        except BaseException:
            self._lock.release()
            raise

    def _begin(self, committed: Committed | None, *, overwrite: bool) -> None:
        recover_replaced(self._files, self._root)
        if committed is None:
            check_folder(self._root, overwrite=overwrite)  # Again: another run may have ended just before the lock.
        for path in self._root.glob(".*.tmp"):
            self._files.remove(path)
        if committed is not None:
            self._resume(committed)
        elif not info_path(self._root).exists():  # Else a dataset is to be replaced, at the first commit.
            self._begin_record()

    def _begin_record(self) -> None:
        self._is_begun = True
        self._record.write()

    def _resume(self, committed: Committed) -> None:
        aside = self._root / f".repair-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
        for path in committed.damaged:
            target = aside / path.relative_to(self._root)
            self._files.make_folder(target.parent)
            self._files.move(path, target)
        self._has_episodes, self._is_begun = True, True
        self._next_id = committed.episodes
        self._segments = {one.segment: dataclasses.replace(one, tables=None) for one in committed.segments}
        self._decide(InfoSchema.from_features(committed.info["features"]))
        for partition, before in zip(self._partitions, committed.partitions, strict=True):
            partition.resume(before)

    @property
    def path(self) -> Path:
        """Return the dataset's folder."""
        return self._root

    @property
    def has_episodes(self) -> bool:
        """Return whether it has any whole episode."""
        return self._has_episodes

    def observe(self, chunk: Chunk) -> None:
        """Let episodes take part in schema inference that are not written: those before a plan's first one."""
        if self._schema is None:
            self._inference.observe(chunk)

    def write(self, chunk: Chunk, *, partition: int = 0) -> None:
        """Take the next chunk of a partition: whole episodes in number order, or the next part of one.

        Blocks while writing is behind. An error of a write is raised by a later call.
        """
        self._check_open()
        self._queue.check()
        self._is_writing = True
        self._has_episodes = self._has_episodes or chunk.part is None or chunk.part.is_last
        if self._schema is not None:
            self._partitions[partition].write(chunk, self._episode_ids(chunk))
        else:
            self._inference.hold(chunk, partition)
            if self._inference.decided:
                self._write_held()
        self._is_writing = False
        if time.monotonic() >= self._next_flush:
            for one in self._partitions:
                one.flush()
            self._next_flush = time.monotonic() + self._flush_seconds

    def close(self, *, status: Status, **facts: Any) -> DatasetSummary:
        """Commit all that was written and end the dataset.

        Args:
            status: `complete` where the plan is done, else `interrupted`.
            facts: What else info.json is to record.
        """
        self._check_open()
        self._commit_all()
        self._before_commit()
        self._is_open = False
        with ExitStack() as stack:
            stack.callback(self._lock.release)
            self._record.end(status, **facts)
            self._remove_replaced()
        return self._record.summary()

    def abort(self, *, commits: bool = True) -> None:
        """End the dataset as `interrupted`, with what can be committed.

        Args:
            commits: Whether to commit what was written, unless a write failed; else only committed segments stay.
        """
        if self._is_open:
            self._is_open = False
            with ExitStack() as stack:  # Each step is tried, even where one before it failed.
                stack.callback(self._lock.release)
                stack.callback(self._queue.check)
                stack.callback(self._end_aborted)
                stack.callback(self._discard)
                stack.callback(self._queue.stop)
                if commits and self._has_episodes and not self._is_writing and self._queue.failure is None:
                    self._commit_all()

    def _end_aborted(self) -> None:
        self._count()
        recover_replaced(self._files, self._root)
        # Without a commit of ours, a dataset that was to be replaced is still there; or somebody removed the folder.
        if self._is_begun and (self._segments or not self._replaced) and info_path(self._root).is_file():
            self._record.end("interrupted")

    def remove(self) -> None:
        """Throw the dataset away, with the folder that was made for it: for a run that came to nothing."""
        self._check_open()
        self._is_open = False
        with ExitStack() as stack:
            if self._made_folder:
                stack.callback(self._remove_empty_folder)
            stack.callback(self._lock.release)
            stack.callback(self._remove_files)
            stack.callback(self._discard)
            stack.callback(self._queue.stop)

    def _remove_files(self) -> None:
        recover_replaced(self._files, self._root)
        if self._is_begun and not self._replaced:
            remove_dataset(self._files, self._root)

    def _remove_empty_folder(self) -> None:
        with suppress(OSError):  # Another run may have begun in it.
            self._root.rmdir()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.abort()
        else:
            # A second signal asks for an end at once.
            at_once = isinstance(error, KeyboardInterrupt | InterruptedRunError | TerminatedRunError)
            tidy_up(error, partial(self.abort, commits=not at_once))
            if isinstance(error, StorageError) and self._is_begun:
                note_what_is_kept(error, self._record.summary())

    def _check_open(self) -> None:
        if not self._is_open:
            raise InternalError("the dataset's writer was used after it was closed")

    def _decide(self, infos: InfoSchema) -> None:
        """Fix the columns."""
        self._schema = DatasetSchema.of(self._spaces, infos, self._record.env)
        self._record.decide(self._schema)
        if self._is_begun:
            self._record.write()
        count = len(self._firsts)
        settings = SegmentSettings(
            files=self._files,
            root=self._root,
            root_seed=self._root_seed,
            schema=self._schema,
            limits=self._limits.for_partitions(count),
            before_commit=self._before_commit,
            committed=self._after_commit,
        )
        self._partitions = [
            Partition(settings, self._queue, SegmentId(count, at, 0), first) for at, first in enumerate(self._firsts)
        ]

    def _write_held(self) -> None:
        self._decide(self._inference.result())
        for chunk, partition in self._inference.release():
            self._partitions[partition].write(chunk, self._episode_ids(chunk))

    def _episode_ids(self, chunk: Chunk) -> Array:
        if len(self._firsts) > 1:
            return chunk.numbers
        ids = self._next_id + np.arange(chunk.n_episodes)
        if chunk.part is None or chunk.part.is_last:
            self._next_id += chunk.n_episodes
        return ids

    # The next two run in the thread that writes.

    def _before_commit(self) -> None:
        """Move a dataset that is to be replaced aside, and put this one's info.json in its place."""
        if self._is_begun:
            return
        self._replaced = True
        try:
            move_to_replaced(self._files, self._root)
            self._begin_record()
        except BaseException as error:
            tidy_up(error, partial(recover_replaced, self._files, self._root))
            self._replaced = self._is_begun = False
            raise

    def _after_commit(self, written: Written) -> None:
        self._segments[written.segment] = written
        self._remove_replaced()

    def _remove_replaced(self) -> None:
        if self._replaced:
            self._files.remove(self._root / REPLACED)
            self._replaced = False

    def _commit_all(self) -> None:
        """Commit all that was written; nothing may follow."""
        if self._schema is None:
            self._write_held()
        for partition in self._partitions:
            partition.flush()
        self._queue.stop(finish=True)
        self._queue.check()
        self._discard()
        if removed := len(self._segments) - len(self._present_segments()):
            raise StorageError(
                f"files of {removed} segments were removed from {self._root} while it was written",
                hint="collect again, and let nothing else change the folder",
            )
        self._count()

    def _present_segments(self) -> list[Written]:
        """Return the committed segments whose files nobody removed meanwhile, in the order of their episodes."""
        ordered = sorted(self._segments.items(), key=lambda item: (item[0].partition, item[0].number))
        return [
            written
            for segment, written in ordered
            if segment.data_path(self._root).is_file() and segment.episodes_path(self._root).is_file()
        ]

    def _count(self) -> None:
        """Record totals, statistics and anomalies of the committed segments."""
        written = self._present_segments()
        if self._schema is not None and written:
            places: dict[str, Place] = {}
            for one in written:
                places = dict(one.record.anomalies) | places
            self._record.count(written, anomalies(places))
            stats = merge_stats([one.record.stats for one in written])
            self._files.write_json(stats_path(self._root), stats_document(stats, self._schema))

    def _discard(self) -> None:
        """Remove the files of long episodes that did not end; of all partitions, even where one removal fails."""
        with ExitStack() as stack:
            for partition in self._partitions:
                stack.callback(partition.discard)
