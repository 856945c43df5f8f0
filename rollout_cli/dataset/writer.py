"""DatasetWriter: episodes in dataset order in, a dataset folder out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from rollout_cli.dataset import metadata
from rollout_cli.dataset.commits import Committed, SegmentId, Written, segment_files
from rollout_cli.dataset.convert import Array
from rollout_cli.dataset.files import (
    REPLACED,
    FileStore,
    FolderLock,
    check_folder,
    file_store,
    has_rename,
    info_path,
    move_to_replaced,
    recover_replaced,
    remove_dataset,
    stats_path,
    tidy_up,
)
from rollout_cli.dataset.inference import SchemaInference
from rollout_cli.dataset.metadata import DatasetSummary, Status
from rollout_cli.dataset.schema import DatasetSchema, InfoColumns, SpaceSchema, info_columns_of
from rollout_cli.dataset.segments import Partition, SegmentJob, SegmentSettings, SizeLimits, WriteQueue, write_segment
from rollout_cli.dataset.stats import merge_stats, stats_document
from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.chunk import AnyChunk, Chunk
from rollout_cli.errors import InternalError, InterruptedRunError, StorageError, TerminatedRunError, UsageError
from rollout_cli.remote import folder_of


class DatasetWriter:
    """Writes chunks to the dataset in `path`; as a context manager it runs `abort` unless `close` was called.

    The bytes of `data/` are a function of the episodes, the spaces, the limits, the root seed and `header["env"]`
    alone, so nothing in that may differ between two runs of one seed. Segments are written by a thread that is at most
    two behind, so memory does not grow with the dataset. The first chunks are held until schema inference has decided
    the columns: 1,000 steps, to the end of an episode. Of several partitions it looks at the first one first, and what
    the others send until then is held in memory too.

    Open segments are committed at the first write after `flush_seconds`, and at the end. So while no episode comes,
    those that came since the last commit are not committed. In an object store they are committed when they are full,
    and at the end.

    Args:
        first_numbers: The first episode number of each partition; each of several has a chunk folder of its own. None
            stands for the first number that comes, and then gaps before it are not recorded as skipped.
        header: What else info.json records; its `env` goes into every file's footer too.
        overwrite: Whether to replace a dataset in that folder. It stays in place until the new one's first commit.
        committed: The committed part of the dataset in that folder, to be resumed; see `Committed.can_resume`.
        lock: The lock on the folder, if the caller has it; released with the writer's end either way.
        decided: The info columns and the run's fingerprint, where they are known beforehand.
        write_segment: What writes the files of a segment, here or on another machine that has the folder.

    Raises:
        DatasetExistsError: If the folder holds something that may not be replaced.
        DatasetLockedError: If another writer has the folder.
        StorageError: From any method, if the disk fails; perhaps not from the first one after it failed.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        env_spec: EnvSpec,
        root_seed: int,
        first_numbers: Sequence[int | None] = (None,),
        header: Mapping[str, Any] | None = None,
        next_observation: bool = False,
        overwrite: bool = False,
        committed: Committed | None = None,
        limits: SizeLimits | None = None,
        flush_seconds: float = 30.0,
        files: FileStore | None = None,
        lock: FolderLock | None = None,
        decided: tuple[InfoColumns, str] | None = None,
        write_segment: Callable[[SegmentSettings, SegmentJob], Written] = write_segment,
    ) -> None:
        if not 0 <= root_seed < 2**63:
            raise UsageError(f"the root seed is {root_seed}", hint="give a seed from 0 to 2**63 - 1")
        self.path = folder_of(path).resolve()
        self._files = files or file_store(self.path)
        self._firsts = list(first_numbers)
        self._limits = limits or SizeLimits()
        self._spaces = SpaceSchema.of(env_spec, next_observation=next_observation)
        settings = {
            "root_seed": root_seed,
            "partitions": len(self._firsts),
            "first_numbers": self._firsts,
            "next_observation": next_observation,
            "limits": asdict(self._limits),
        }
        self._info = metadata.new_info(self._spaces, settings, header or {}, committed.info if committed else None)
        self._inference = SchemaInference(self._firsts)
        self._queue = WriteQueue(self._commit)
        self._write_segment = write_segment
        self._settings: SegmentSettings | None = None  # None until the columns are decided.
        self._partitions: list[Partition] = []
        self._segments: dict[SegmentId, Written] = {}
        self._next_id = 0
        self._is_open = True
        self.has_episodes = False  # Whether any whole episode came, or was there.
        # An object is put whole: a growing one would be sent again and again.
        self._flush_seconds = flush_seconds if has_rename(self.path) else math.inf
        self._next_flush = time.monotonic() + self._flush_seconds
        if committed is None:
            check_folder(self.path, overwrite=overwrite)
        self._made_folder = not self.path.exists()
        self._files.make_folder(self.path)
        self._lock = lock or FolderLock(self._files, self.path)
        try:
            self._begin(committed, overwrite=overwrite)
            if decided is not None:
                self._inference.decided = True
                self._decide(*decided)
        except BaseException:
            self._lock.release()
            raise

    def _begin(self, committed: Committed | None, *, overwrite: bool) -> None:
        recover_replaced(self._files, self.path)
        self._remove_temporary()
        # Whether the folder holds a dataset that this one replaces at its first commit.
        self._has_old = committed is None and info_path(self.path).exists()
        if committed is None:
            check_folder(self.path, overwrite=overwrite)  # Again: another run may have ended just before the lock.
            if not self._has_old:
                metadata.write_info(self._files, self.path, self._info)
            return
        aside = self.path / f".repair-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
        for path in committed.damaged:
            self._files.move(path, aside / path.relative_to(self.path))
        self.has_episodes = True
        self._next_id = committed.episodes
        self._segments = {one.segment: one._replace(tables=None) for one in committed.segments}
        self._decide(info_columns_of(committed.info["features"]), committed.info["run"], committed.segments)

    def observe(self, chunk: Chunk) -> None:
        """Let episodes take part in schema inference that are not written: those before a plan's first one."""
        self._inference.observe(chunk)

    def record(self, **facts: Any) -> None:
        """Let info.json record these facts, from its next writing on."""
        self._info |= metadata.plain_json(facts)
        if self._settings is not None and not self._has_old:
            metadata.write_info(self._files, self.path, self._info)

    def write(self, chunk: AnyChunk, *, partition: int = 0) -> None:
        """Take the next chunk of a partition: whole episodes in number order, or the next part of one.

        Blocks while writing is behind. An error of a write is raised by a later call.
        """
        self._check()
        self.has_episodes = self.has_episodes or chunk.completes
        if self._settings is not None:
            self._partitions[partition].write(chunk, self._episode_ids(chunk))
        else:
            self._inference.hold(chunk.load(), partition)
            if self._inference.decided:
                self._write_held()
        if time.monotonic() >= self._next_flush:
            for one in self._partitions:
                one.flush()
            self._next_flush = time.monotonic() + self._flush_seconds

    def close(self, *, status: Status, **facts: Any) -> DatasetSummary:
        """Commit all that was written and end the dataset; info.json records the `facts` too."""
        self._check()
        self._commit_all()
        if self._has_old:
            self._begin_replacing()
        self._is_open = False
        with ExitStack() as stack:
            stack.callback(self._lock.release)
            self._end(status, **facts)
            self._end_replacing()
        return metadata.summary_of(self.path, self._info)

    def abort(self, *, commits: bool = True) -> None:
        """End the dataset as `interrupted`, if it has episodes; without `commits` only committed segments stay."""
        if not self._is_open:
            return
        self._is_open = False
        with ExitStack() as stack:  # Each step is tried, even where one before it failed.
            if self._made_folder:
                stack.callback(self._remove_empty_folder)
            stack.callback(self._lock.release)
            stack.callback(self._queue.check)
            stack.callback(self._end_aborted)
            stack.callback(self._remove_temporary)
            stack.callback(self._queue.stop)
            if commits and self.has_episodes and self._queue.failure is None:
                self._commit_all()

    def _end_aborted(self) -> None:
        recover_replaced(self._files, self.path)
        if self._has_old and not self._segments:
            return
        if not self._segments and not any((self.path / "meta" / "episodes").rglob("*.parquet")):
            remove_dataset(self._files, self.path)
        elif info_path(self.path).is_file():  # Else somebody removed the folder.
            self._end("interrupted")

    def _remove_temporary(self) -> None:
        for path in self.path.glob(".*.tmp"):
            self._files.remove(path)

    def _remove_empty_folder(self) -> None:
        with suppress(OSError):  # The run has episodes, or another one has begun in it.
            self.path.rmdir()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.abort()
            return
        # A second signal asks for an end at once.
        at_once = isinstance(error, KeyboardInterrupt | InterruptedRunError | TerminatedRunError)
        tidy_up(error, partial(self.abort, commits=not at_once))
        if isinstance(error, StorageError):
            kept = "nothing was committed"
            if self._segments and info_path(self.path).is_file():
                count = f"{self._info['episodes']:,} episodes ({self._info['steps']:,} steps)"
                kept = f"{count} are safe in {self.path}; --resume continues from there"
            error.hint = "; ".join(filter(None, [error.hint, kept]))

    def _check(self) -> None:
        if not self._is_open:
            raise InternalError("the dataset's writer was used after it was closed")
        self._queue.check()

    def _decide(self, infos: InfoColumns, run: str, segments: Sequence[Written] = ()) -> None:
        schema = DatasetSchema.of(self._spaces, infos, self._info.get("env") or {})
        is_decided = self._inference.decided or bool(segments)
        self._info.update(info_columns="decided" if is_decided else "partial", run=run, features=schema.describe())
        if not self._has_old:
            metadata.write_info(self._files, self.path, self._info)
        count = len(self._firsts)
        limits = self._limits.for_partitions(count)
        self._settings = SegmentSettings(self._files, self.path, self._info["root_seed"], run, schema, limits)
        for at, first in enumerate(self._firsts):
            own = [one for one in segments if one.segment.partition == at]
            segment = SegmentId(count, at, 0)
            self._partitions += [Partition(schema, limits, self._queue, segment, first_number=first, committed=own)]

    def _write_held(self) -> None:
        self._decide(self._inference.result(), self._inference.first_episode.fingerprint(self._info))
        for chunk, partition in self._inference.release():
            self._partitions[partition].write(chunk, self._episode_ids(chunk))

    def _episode_ids(self, chunk: AnyChunk) -> Array:
        if len(self._firsts) > 1:
            return chunk.numbers
        ids = self._next_id + np.arange(chunk.n_episodes)
        if chunk.completes:
            self._next_id += chunk.n_episodes
        return ids

    def _commit(self, job: SegmentJob) -> Written:
        """Write a segment and give its files their names, in the thread that writes."""
        assert self._settings is not None
        if self._has_old and not has_rename(self.path):
            self._begin_replacing()
            self._has_old = False  # It is gone.
        written = self._write_segment(self._settings, job)
        if self._has_old:
            self._begin_replacing()
        segment = written.segment
        for source, target in zip(segment.temporary(self.path), segment.paths(self.path), strict=True):
            if source != target:
                self._files.move(source, target)
        self._segments[segment] = written._replace(tables=None)
        self._end_replacing()
        return written

    def _begin_replacing(self) -> None:
        move_to_replaced(self._files, self.path)
        metadata.write_info(self._files, self.path, self._info)

    def _end_replacing(self) -> None:
        if self._has_old:
            self._files.remove(self.path / REPLACED)
            self._has_old = False

    def _commit_all(self) -> None:
        if self._settings is None:
            self._write_held()
        for partition in self._partitions:
            partition.flush()
        self._queue.stop(finish=True)
        self._queue.check()
        if removed := len(self._segments) - len(self._present_segments()):
            raise StorageError(
                f"files of {removed} segments were removed from {self.path} while it was written",
                hint="collect again, and let nothing else change the folder",
            )

    def _present_segments(self) -> list[Written]:
        """Return the committed segments whose files nobody removed meanwhile, in the order of their episodes."""
        # Each folder is listed once: a request for each object would take long.
        folders = (self.path / "data", self.path / "meta" / "episodes")
        present = set.intersection(*(set(segment_files(folder, len(self._firsts))) for folder in folders))
        return [found for segment, found in sorted(self._segments.items()) if segment in present]

    def _end(self, status: Status, **facts: Any) -> None:
        written = self._present_segments()
        metadata.end_info(self._info, status, facts, written)
        if self._settings is not None and written:
            stats = merge_stats([one.record.stats for one in written])
            self._files.write_json(stats_path(self.path), stats_document(stats, self._settings.schema))
        metadata.write_info(self._files, self.path, self._info)
