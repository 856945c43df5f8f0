"""DatasetWriter: episodes in dataset order in, a dataset folder out."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from copy import deepcopy
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rollout_cli.dataset import metadata
from rollout_cli.dataset.build import DatasetBuild, WriteSegment
from rollout_cli.dataset.commits import Committed, Written, read_committed
from rollout_cli.dataset.files import (
    NEXT,
    FileStore,
    FolderLock,
    check_folder,
    file_store,
    has_rename,
    info_path,
    publish,
    read_info,
    recover_replaced,
    remove_dataset,
    remove_objects,
    remove_temporary,
    tidy_up,
)
from rollout_cli.dataset.inference import SchemaInference
from rollout_cli.dataset.metadata import DatasetSummary, Status
from rollout_cli.dataset.schema import DatasetSchema, InfoColumns, SpaceSchema, info_columns_of
from rollout_cli.dataset.segments import SegmentSettings, SizeLimits, write_segment
from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.chunk import AnyChunk, Chunk
from rollout_cli.errors import (
    DatasetFormatError,
    InternalError,
    InterruptedRunError,
    StorageError,
    TerminatedRunError,
    UsageError,
)
from rollout_cli.remote import folder_of


class DatasetWriter:
    """Writes chunks to the dataset in `path`; as a context manager it runs `abort` unless `close` was called.

    The bytes of `data/` are a function of the episodes, the spaces, the limits, the root seed and `header["env"]`
    alone, so nothing in that may differ between two runs of one seed. Segments are written by a thread that is at most
    two behind, so memory does not grow with the dataset. The first chunks are held until schema inference has decided
    the columns: 1,000 steps, to the end of an episode. Of several partitions it looks at the first one first, and what
    the others send until then is held in memory too.

    A timer commits all whole episodes, as `flush` does. Those that are still held are committed as a dataset by
    itself, with `partial` columns, which the one with the decided columns replaces when it has all of their episodes.
    In an object store segments are committed when they are full, and at the end.

    Args:
        first_numbers: The first episode number of each partition; each of several has a chunk folder of its own. None
            stands for the first number that comes, and then gaps before it are not recorded as skipped.
        header: What else info.json records; its `env` goes into every file's footer too.
        overwrite: Whether to replace a dataset in that folder. It stays in place until the new one's first commit.
        keep_until: The episode number of each partition that the new dataset must reach before it replaces the old
            one, unless it ends as complete; an object store ignores it.
        committed: The committed part of the dataset in that folder, to be resumed; see `Committed.can_resume`.
        flush_seconds: The seconds between two commits of the timer, above 0.
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
        keep_until: Sequence[int] = (),
        committed: Committed | None = None,
        limits: SizeLimits | None = None,
        flush_seconds: float = 30.0,
        files: FileStore | None = None,
        lock: FolderLock | None = None,
        decided: tuple[InfoColumns, str] | None = None,
        write_segment: WriteSegment = write_segment,
    ) -> None:
        if not 0 <= root_seed < 2**63:
            raise UsageError(f"the root seed is {root_seed}", hint="give a seed from 0 to 2**63 - 1")
        self.path = folder_of(path).resolve()
        self._files = files or file_store(self.path)
        self._limits = limits or SizeLimits()
        self._spaces = SpaceSchema.of(env_spec, next_observation=next_observation)
        settings = {
            "root_seed": root_seed,
            "partitions": len(first_numbers),
            "first_numbers": list(first_numbers),
            "next_observation": next_observation,
            "limits": asdict(self._limits),
        }
        self._info = metadata.new_info(self._spaces, settings, header or {}, committed.info if committed else None)
        self._inference = SchemaInference(first_numbers)
        self._write_segment = write_segment
        self._build: DatasetBuild | None = None  # None until the columns are decided.
        self._published: DatasetBuild | None = None  # The one whose files are in the folder itself.
        self._keep_until = keep_until
        self.has_episodes = False  # Whether any whole episode came, or was there.
        # The timer and the caller share the state: whoever changes it has the lock.
        self._changing = threading.Lock()
        # The thread that commits replaces the old dataset while a caller, who has the other lock, may wait for it.
        self._placing = threading.Lock()
        self._has_new = False  # Whether whole episodes came since the last flush.
        self._failure: BaseException | None = None  # The error of a flush.
        self._is_open = True
        self._is_ending = threading.Event()
        self._timer = threading.Thread(
            target=self._flush_regularly, args=[flush_seconds], name="rollout-flush", daemon=True
        )
        if committed is None:
            check_folder(self.path, overwrite=overwrite)
        self._made_folder = not self.path.exists()
        self._files.make_folder(self.path)
        self._lock = lock or FolderLock(self._files, self.path)
        try:
            self._begin(committed, overwrite=overwrite)
            if decided is not None:
                self._inference.decided = True
                self._build = self._new_build(*decided)
        except BaseException:
            self._lock.release()
            raise
        self._timer.start()

    def _begin(self, committed: Committed | None, *, overwrite: bool) -> None:
        recover_replaced(self._files, self.path)
        remove_temporary(self._files, self.path)
        # Whether the folder holds a dataset that a build elsewhere is to replace.
        self._has_old = committed is None and info_path(self.path).exists()
        if committed is None:
            check_folder(self.path, overwrite=overwrite)  # Again: another run may have ended just before the lock.
            if not self._has_old:
                metadata.write_info(self._files, self.path, self._info)
            return
        aside = self.path / f".repair-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
        for path in committed.damaged:
            self._files.move(self.path / path, aside / path)
        self.has_episodes = self._inference.decided = True
        columns, run = info_columns_of(committed.info["features"]), committed.info["run"]
        self._build = self._new_build(columns, run, committed.segments)

    def observe(self, chunk: Chunk) -> None:
        """Let episodes take part in schema inference that are not written: those before a plan's first one."""
        self._inference.observe(chunk)

    def record(self, **facts: Any) -> None:
        """Let info.json record these facts too."""
        with self._changing:
            self._info |= metadata.plain_json(facts)
            if self._build is not None:
                with self._placing:
                    self._build.info |= metadata.plain_json(facts)
                    self._build.write_info()

    def write(self, chunk: AnyChunk, *, partition: int = 0) -> None:
        """Take the next chunk of a partition: whole episodes in number order, or the next part of one.

        Blocks while writing is behind. An error of a write, or of the timer's, is raised by a later call.
        """
        with self._changing:
            self._check()
            # What an error or a signal cuts off in here is never flushed.
            had_new, self._has_new = self._has_new, False
            self.has_episodes = self.has_episodes or chunk.completes
            if self._build is not None:
                self._build.write(chunk, partition)
            else:
                self._inference.hold(chunk.load(), partition)
                if self._inference.decided:
                    self._write_held()
            self._has_new = had_new or chunk.completes

    def flush(self) -> None:
        """Commit all whole episodes now; before the columns are decided, as what a run that ended now would write.

        In an object store, which has no open segments, and where no episode came, it does nothing.
        """
        with self._changing:
            self._check()
            if not (self._has_new and has_rename(self.path)):
                return
            self._has_new = False
            try:
                if self._build is not None:
                    self._build.flush()
                else:
                    self._commit_partial()
            except BaseException as error:
                self._failure = error
                raise

    def _flush_regularly(self, seconds: float) -> None:
        while not self._is_ending.wait(min(seconds, threading.TIMEOUT_MAX)):
            try:
                self.flush()
            except BaseException:  # noqa: BLE001 - the next call raises it
                return

    def _stop_timer(self) -> None:
        self._is_ending.set()
        self._timer.join()

    def close(self, *, status: Status, **facts: Any) -> DatasetSummary:
        """Commit all that was written and end the dataset; info.json records the `facts` too.

        Where an interrupted run did not get as far as `keep_until`, the old dataset stays, and is summarised.
        """
        self._stop_timer()
        self._check()
        if status == "complete":
            self._inference.finish()
        build = self._commit_all()
        if self._has_old and (status == "complete" or not self._keep_until):
            self._replace_old(build)
        self._is_open = False
        with ExitStack() as stack:
            stack.callback(self._lock.release)
            if self._has_old:
                remove_temporary(self._files, self.path)
                return metadata.summary_of(self.path, self._end_old(status))
            build.end(status, **facts)
        return metadata.summary_of(self.path, build.info)

    def _end_old(self, status: Status) -> dict[str, Any]:
        info = read_info(self.path)
        metadata.end_info(info, status, {}, read_committed(self.path, info).segments)
        metadata.write_info(self._files, self.path, info)
        return info

    def abort(self, *, commits: bool = True) -> None:
        """End the dataset as `interrupted`, if it has episodes; without `commits` only committed segments stay."""
        if not self._is_open:
            return
        self._stop_timer()
        failure = self._failure or (self._build and self._build.queue.failure)
        self._is_open = False
        with ExitStack() as stack:  # Each step is tried, even where one before it failed.
            if self._made_folder:
                stack.callback(self._remove_empty_folder)
            stack.callback(self._lock.release)
            stack.callback(self._raise_failure)
            stack.callback(self._end_aborted)
            stack.callback(remove_temporary, self._files, self.path)
            if self._build is not None:
                stack.callback(self._build.queue.stop)
            if commits and self.has_episodes and failure is None:
                self._commit_all()

    def _end_aborted(self) -> None:
        recover_replaced(self._files, self.path)
        build = self._published
        if build is None and self._has_old:
            return
        has_segments = build is not None and bool(build.segments)
        if not has_segments and not any((self.path / "meta" / "episodes").rglob("*.parquet")):
            remove_dataset(self._files, self.path)
        elif build is not None and info_path(self.path).is_file():  # Else somebody removed the folder.
            build.end("interrupted")

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
            raise error.with_hint("; ".join(filter(None, [error.marked_hint, self._what_is_left()])))

    def _what_is_left(self) -> str:
        """Return in words what `--resume` would find in the folder after an error."""
        try:
            info = read_info(self.path)
            committed = read_committed(self.path, info)
            is_other = info["times"]["started"] != self._info["times"]["started"] and not self._keep_until
            if is_other or not committed.episodes:
                return "nothing was committed"
        except DatasetFormatError as error:
            if not self._keep_until and not (self._published and self._published.segments):
                return "nothing was committed"
            if not self.path.exists():
                return f"{self.path} is gone, with what was committed: it was removed or renamed during the run"
            return f"what was committed was removed or changed during the run: {error.message}"
        except StorageError:
            return f"what was committed stays in {self.path}; --resume continues from there"
        count = f"{committed.episodes:,} episodes ({committed.steps:,} steps)"
        return f"{count} are safe in {self.path}; --resume continues from there"

    def _check(self) -> None:
        if not self._is_open:
            raise InternalError("the dataset's writer was used after it was closed")
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._build is not None:
            self._build.queue.check()

    def _new_build(self, columns: InfoColumns, run: str, committed: Sequence[Written] = ()) -> DatasetBuild:
        is_aside = self._has_old and has_rename(self.path)
        schema = DatasetSchema.of(self._spaces, columns, self._info.get("env") or {})
        columns_are = "decided" if self._inference.decided else "partial"
        info = deepcopy(self._info) | {"info_columns": columns_are, "run": run, "features": schema.describe()}
        settings = SegmentSettings(
            files=self._files,
            root=self.path / NEXT if is_aside else self.path,
            root_seed=info["root_seed"],
            run=run,
            schema=schema,
            limits=self._limits.for_partitions(info["partitions"]),
        )
        build = DatasetBuild(settings, info, self._write_segment, self._committing, committed)
        if is_aside or not self._has_old:
            build.write_info()
        if not self._has_old:
            self._published = build
        return build

    def _write_held(self) -> DatasetBuild:
        self._build = self._new_build(*self._inference.result(self._info))
        for chunk, partition in self._inference.release():
            self._build.write(chunk, partition)
        return self._build

    def _commit_partial(self) -> None:
        """Commit the held episodes by themselves, unless the dataset in the folder has more of them."""
        build = self._new_build(*self._inference.result(self._info))
        for chunk, partition in self._inference.held():
            build.write(chunk, partition)
        build.finish()
        if self._published is build:
            self._has_old, self._keep_until = True, build.next_numbers()
        else:
            self._files.remove(self.path / NEXT)

    def _commit_all(self) -> DatasetBuild:
        build = self._build or self._write_held()
        build.finish()
        if removed := len(build.segments) - len(build.present_segments()):
            raise StorageError(
                f"files of {removed} segments were removed from {self.path} while it was written",
                hint="collect again, and let nothing else change the folder",
            )
        return build

    @contextmanager
    def _committing(self, build: DatasetBuild) -> Iterator[None]:
        """Let the build take the place of the old dataset: in an object store before a commit, else after it."""
        if self._has_old and not has_rename(self.path):
            self._replace_old(build)
        yield
        if self._has_old and all(map(int.__ge__, build.next_numbers(), self._keep_until)):
            self._replace_old(build)

    def _replace_old(self, build: DatasetBuild) -> None:
        self._published = None  # Until this has ended, it is for `recover_replaced` to say which one it is.
        with self._placing:
            if has_rename(self.path):
                publish(self._files, self.path)
                build.settings = replace(build.settings, root=self.path)
            else:
                remove_objects(self._files, self.path)
                build.write_info()
        self._published, self._has_old = build, False
