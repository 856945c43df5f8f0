"""DatasetWriter: writes episodes, which arrive in dataset order, to a dataset folder.

A writer is in one of four states. After a kill at any point, `--resume` can continue from the folder:

| state | fields | in the folder | after a kill |
| --- | --- | --- | --- |
| inferring | no `_build` | info.json; after a flush the held episodes, as a dataset with `partial` columns | \
a resume collects them again, and they stay until it has them (`replace_from`) |
| open | `_build` is `_published` | segments; the last ones grow by renames | a resume continues after the last commit |
| replacing | `_build`, not `_published` | the old dataset; the new one in `.next.tmp` | \
the old dataset stays or is restored (`recover_replaced`), unless the new one has a commit |
| closed | not `_is_open` | a dataset that is `complete` or `interrupted` | - |

The process holds the lock on the folder until it ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self

from rollout_cli.dataset import metadata
from rollout_cli.dataset.commits import Written
from rollout_cli.dataset.committed import Committed, read_committed, recoverable_part
from rollout_cli.dataset.convert import Array
from rollout_cli.dataset.folder import OutputFolder, recover_replaced, remove_dataset, remove_temporary
from rollout_cli.dataset.inference import SchemaInference
from rollout_cli.dataset.layout import (
    episodes_folder,
    fingerprint_of,
    info_path,
    order_column,
    read_info,
    started_at,
)
from rollout_cli.dataset.metadata import DatasetBuild, DatasetSettings, DatasetSummary, Status, WriteSegment
from rollout_cli.dataset.record import DatasetInfo, add_facts
from rollout_cli.dataset.schema import DatasetSchema, SpaceSchema, env_record, info_columns_of
from rollout_cli.dataset.segments import SegmentSettings, write_segment
from rollout_cli.dataset.store import has_rename, tidy_up
from rollout_cli.episodes.chunk import AnyChunk, Chunk
from rollout_cli.episodes.infos import InfoColumns
from rollout_cli.episodes.plain import Fields
from rollout_cli.errors import (
    InternalError,
    InterruptedRunError,
    StorageError,
    TerminatedRunError,
)


class DatasetWriter:
    """Writes chunks to the dataset in a folder. As a context manager, it aborts unless it was closed.

    The bytes of `data/` depend only on the episodes, the spaces, the limits, and the `env` of the sources;
    these must not differ between two runs with one seed. A thread writes the segments, at most two behind,
    which bounds memory. The first chunks are held until schema inference has decided the columns: 1,000 steps,
    to the end of an episode. Of several partitions, inference observes the first one first; the others wait.

    A timer commits all complete episodes, as `flush` does. While the first chunks are held, they are a separate
    dataset with `partial` columns, which is replaced by one with the decided columns that has all its episodes.
    An object store commits segments when they are full, and at the end.

    Args:
        folder: The output folder, opened here and closed with the writer.
        committed: The part of the dataset in the folder to resume from; see `Committed.can_resume`.
        flush_seconds: The seconds between two commits of the timer, above 0.
        write_segment: Writes the files of a segment, here or on another machine that has the folder.
        on_failure: Called in the timer's thread after a failed commit.
        facts: Returns facts of the run that info.json records when it ends.

    Raises:
        DatasetExistsError: If the content of the folder may not be replaced.
        DatasetLockedError: If another writer holds the lock.
        StorageError: From any method, if a disk operation fails; possibly only from a later call.
    """

    def __init__(
        self,
        folder: OutputFolder,
        settings: DatasetSettings,
        *,
        committed: Committed | None = None,
        flush_seconds: float = 30.0,
        write_segment: WriteSegment = write_segment,
        on_failure: Callable[[], None] = lambda: None,
        facts: Callable[[], Fields] = dict,
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._write_segment = write_segment
        self._spaces = SpaceSchema.of(settings.env_spec, next_observation=settings.next_observation)
        self._info = metadata.new_info(self._spaces, settings, committed.info if committed else None)
        self._inference = SchemaInference(settings.first_numbers)
        self._build: DatasetBuild | None = None  # None until the columns are decided.
        self._published: DatasetBuild | None = None  # The build whose files are in the folder itself.
        self.has_episodes = False  # True after the first complete episode.
        self._on_failure = on_failure
        self._facts = facts
        # The timer and the caller share the state, which only the holder of this lock changes.
        self._changing = threading.Lock()
        self._has_new = False  # True if complete episodes arrived since the last flush.
        self._failure: BaseException | None = None  # The error of a failed flush.
        self._is_open = True
        self._is_ending = threading.Event()
        self._timer = threading.Thread(
            target=self._flush_regularly, args=[flush_seconds], name="rollout-flush", daemon=True
        )
        folder.open(resume=committed is not None)
        try:
            self._timer.start()
            self._start(committed)
        except BaseException as error:
            tidy_up(error, partial(self.abort, commits=False))
            raise

    def _start(self, committed: Committed | None) -> None:
        columns = self._settings.columns
        source = self._info["sources"][0]
        if committed is not None:
            self._folder.move_aside(committed.damaged)
            self.has_episodes = True
            columns = info_columns_of(committed.info["features"])
            source = committed.info["sources"][0]
        if columns is not None:
            self._inference.decided = True
            segments = committed.segments if committed else ()
            self._build = self._new_build(columns, source["run"], segments)
        elif not self._folder.has_old:
            metadata.write_info(self._folder.files, self._folder.path, self._info)

    def observe(self, chunk: Chunk) -> None:
        """Include episodes before a plan's first one in schema inference, without writing them."""
        self._inference.observe(chunk)

    def record(self, **facts: Any) -> None:
        """Add facts of the run to info.json."""
        with self._changing:
            add_facts(self._info["sources"][0], facts)
            if self._build is not None:
                with self._folder.replacing:
                    add_facts(self._build.info["sources"][0], facts)
                    self._write_info(self._build)

    def write(self, chunk: AnyChunk, *, partition: int = 0, sources: Array | None = None) -> None:
        """Add the next chunk of a partition: episodes in number order.

        `sources`, int64 (N,), has the index of each episode's run; None stands for the first run.

        Blocks while writing is behind. A later call raises the error of a write, or of the timer.
        """
        with self._changing:
            self.check()
            # If an error or a signal interrupts this block, its episodes are never flushed.
            self._has_new = False
            self.has_episodes = True
            if self._build is not None:
                self._build.write(chunk, partition, sources)
            else:
                self._inference.hold(chunk.load(), partition)
                if self._inference.decided:
                    self._write_held()
            self._has_new = True

    def flush(self) -> None:
        """Commit all complete episodes; before the columns are decided, as a dataset with `partial` columns.

        May return before the commit, see `wait`. Does nothing without new episodes, and in an object store.
        """
        with self._changing:
            self.check()
            if not (self._has_new and has_rename(self._folder.path)):
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

    def wait(self) -> None:
        """Wait until the flushed episodes are committed."""
        with self._changing:
            if self._build is not None:
                self._build.queue.wait()

    def _flush_regularly(self, seconds: float) -> None:
        while not self._is_ending.wait(min(seconds, threading.TIMEOUT_MAX)):
            try:
                self.flush()
            except BaseException:  # noqa: BLE001 - the next call raises it
                self._on_failure()
                return

    def close(self, *, status: Status, **facts: Any) -> DatasetSummary:
        """Commit all episodes and end the dataset; info.json records the `facts` of the run.

        If an interrupted run did not reach `replace_from`, the old dataset stays, and the summary describes it.
        """
        self._is_ending.set()
        self._timer.join()
        self.check()
        if status == "complete":
            self._inference.finish()
        build = self._commit_all()
        if self._folder.is_replaced_by(build.next_numbers(), is_complete=status == "complete"):
            self._replace_old(build)
        self._is_open = False
        with closing(self._folder):
            if self._folder.has_old:
                remove_temporary(self._folder.files, self._folder.path)
                return metadata.summary_of(self._folder.path, self._end_old(status))
            build.end(status, **self._facts(), **facts)
            return metadata.summary_of(self._folder.path, build.info)

    def _end_old(self, status: Status) -> DatasetInfo:
        info = read_info(root := self._folder.path)
        if info["status"] == "complete":  # A partial replacement does not change that.
            return info
        segments = read_committed(root, info).segments
        metadata.end_info(info, status, {}, segments)
        # A killed run may not have written statistics.
        metadata.write_contents(self._folder.files, root, info, segments, DatasetSchema.from_info(info))
        return info

    def abort(self, *, commits: bool = True) -> None:
        """End the dataset as `interrupted`, if not empty; without `commits`, uncommitted episodes are dropped."""
        if not self._is_open:
            return
        self._is_ending.set()
        self._timer.join()
        failure = self._failure or (self._build and self._build.queue.failure)
        self._is_open = False
        with ExitStack() as stack:  # Every step runs, even if an earlier one fails.
            stack.callback(self._folder.remove_if_empty)
            stack.callback(self._folder.close)
            stack.callback(self._raise_failure)
            stack.callback(self._end_aborted)
            stack.callback(remove_temporary, self._folder.files, self._folder.path)
            if self._build is not None:
                stack.callback(self._build.queue.stop)
            if commits and self.has_episodes and failure is None:
                self._commit_all()

    def _end_aborted(self) -> None:
        files = self._folder.files
        root = self._folder.path
        recover_replaced(files, root)
        # If it has neither build nor info.json, the user removed the folder.
        build = self._published
        has_info = info_path(root).is_file()
        if build is None and self._folder.has_old:  # An interrupted replacement left one of two datasets.
            if has_info and started_at(read_info(root)) == started_at(self._info):
                self._end_old("interrupted")
        elif not (build and build.segments) and not any(episodes_folder(root).rglob("*.parquet")):
            remove_dataset(files, root)
        elif build is not None and has_info:
            build.end("interrupted", **self._facts())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.abort()
            return
        # A second signal requests an immediate end.
        at_once = isinstance(error, KeyboardInterrupt | InterruptedRunError | TerminatedRunError)
        tidy_up(error, partial(self.abort, commits=not at_once))
        if isinstance(error, StorageError):
            recoverable = recoverable_part(
                self._folder.path,
                self._info,
                is_derived=bool(self._settings.derived),
                keeps_old=bool(self._folder.replace_from),
                has_committed=self._published is not None and bool(self._published.segments),
            )
            raise error.with_hint("; ".join(filter(None, [error.marked_hint, recoverable])))

    def check(self) -> None:
        """Raise the error of a write, or of the timer, if there was one."""
        if not self._is_open:
            raise InternalError(f"the writer of {self._folder.path} was used after it was closed")
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._build is not None:
            self._build.queue.check()

    def _new_build(self, columns: InfoColumns, run: str | None, committed: Sequence[Written]) -> DatasetBuild:
        folder = self._folder
        info = deepcopy(self._info)
        schema = DatasetSchema.of(self._spaces, columns, env_record(info))
        info["sources"][0]["run"] = run
        info |= {
            "info_columns": self._settings.info_columns if self._inference.decided else "partial",
            "features": schema.describe(),
        }
        settings = SegmentSettings(
            files=folder.files,
            root=folder.new_root,
            root_seeds=tuple(source["root_seed"] for source in info["sources"]),
            run=fingerprint_of(info),
            schema=schema,
            limits=self._settings.limits.for_partitions(info["partitions"]),
            order=order_column(info),
        )
        build = DatasetBuild(settings, info, self._write_segment, self._committing, committed)
        if not folder.has_old:
            self._published = build
        self._write_info(build)
        return build

    def _write_info(self, build: DatasetBuild) -> None:
        """Write the build's info.json, unless it would overwrite the old dataset's, which is still valid."""
        if not self._folder.has_old or has_rename(self._folder.path):
            build.write_info()

    def _write_held(self) -> DatasetBuild:
        self._build = self._new_build(*self._inference.result(self._info["sources"][0]), committed=())
        for chunk, partition in self._inference.release():
            self._build.write(chunk, partition)
        return self._build

    def _commit_partial(self) -> None:
        """Commit the held episodes as a separate dataset, unless the folder's dataset has more of them."""
        build = self._new_build(*self._inference.result(self._info["sources"][0]), committed=())
        for chunk, partition in self._inference.held():
            build.write(chunk, partition)
        build.finish()
        if self._published is build:
            self._folder.has_old = True
            self._folder.replace_from = build.next_numbers()
        else:
            remove_temporary(self._folder.files, self._folder.path)

    def _commit_all(self) -> DatasetBuild:
        build = self._build or self._write_held()
        build.finish()
        if removed := len(build.segments) - len(build.present_segments()):
            raise StorageError(
                f"files of {removed} segments were removed from {self._folder.path} during the run",
                code="segments-removed",
                hint="collect again, and do not change the folder during a run",
            )
        return build

    @contextmanager
    def _committing(self, build: DatasetBuild) -> Iterator[None]:
        """Let the build replace the old dataset: before a commit in an object store, else after it."""
        if self._folder.has_old and not has_rename(self._folder.path):
            self._replace_old(build)
        yield
        if self._folder.is_replaced_by(build.next_numbers()):
            self._replace_old(build)

    def _replace_old(self, build: DatasetBuild) -> None:
        self._published = None  # If this is interrupted, `recover_replaced` decides which dataset is valid.
        with self._folder.replacing:
            self._folder.replace_old()
            build.settings = replace(build.settings, root=self._folder.path)
            if not has_rename(self._folder.path):
                build.write_info()
        self._published = build
