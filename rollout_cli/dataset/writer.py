"""DatasetWriter: episodes in dataset order in, a dataset folder out.

A writer is in one of four states. A kill at any point leaves a folder that `--resume` continues:

| state | fields | in the folder | after a kill |
| --- | --- | --- | --- |
| inferring | no `_build` | info.json; after a flush the held episodes, as a dataset with `partial` columns | \
a resume collects them again, and they stay until it has them (`keep_until`) |
| open | `_build` is `_published` | segments; the last ones grow by renames | a resume continues after the last commit |
| replacing | `_build`, not `_published` | the old dataset; the new one in `.next.tmp` | \
the old dataset stays or is restored (`recover_replaced`), unless the new one has a commit |
| closed | not `_is_open` | a dataset that is `complete` or `interrupted` | - |

The lock on the folder ends with the process.
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
    """Writes chunks to the dataset in a folder; as a context manager it aborts unless it was closed.

    The bytes of `data/` are a function of the episodes, the spaces, the limits, and the `env` of the sources
    alone, so nothing in that may differ between two runs of one seed. Segments are written by a thread that
    is at most two behind, so memory does not grow with the dataset. The first chunks are held until schema
    inference has decided the columns: 1,000 steps, to the end of an episode. Of several partitions it looks
    at the first one first, and what the others send until then is held in memory too.

    A timer commits all whole episodes, as `flush` does. Those that are still held are committed as a dataset
    by itself, with `partial` columns, which the one with the decided columns replaces when it has all of
    their episodes. In an object store segments are committed when they are full, and at the end.

    Args:
        folder: Where it is written; it is opened here, and closed with the writer.
        committed: The committed part of the dataset in that folder, to be resumed; see
            `Committed.can_resume`.
        flush_seconds: The seconds between two commits of the timer, above 0.
        write_segment: What writes the files of a segment, here or on another machine that has the folder.
        on_failure: Called in the timer's thread when a commit has failed.
        facts: Returns facts of the run that info.json records when it ends.

    Raises:
        DatasetExistsError: If the folder holds something that may not be replaced.
        DatasetLockedError: If another writer has the folder.
        StorageError: From any method, if the disk fails; perhaps not from the first one after it failed.
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
        self._published: DatasetBuild | None = None  # The one whose files are in the folder itself.
        self.has_episodes = False  # Whether any whole episode came, or was there.
        self._on_failure = on_failure
        self._facts = facts
        # The timer and the caller share the state: whoever changes it has the lock.
        self._changing = threading.Lock()
        self._has_new = False  # Whether whole episodes came since the last flush.
        self._failure: BaseException | None = None  # The error of a flush.
        self._is_open = True
        self._is_ending = threading.Event()
        self._timer = threading.Thread(
            target=self._flush_regularly, args=[flush_seconds], name="rollout-flush", daemon=True
        )
        folder.open(resume=committed is not None)
        try:
            self._timer.start()
            self._begin(committed)
        except BaseException as error:
            tidy_up(error, partial(self.abort, commits=False))
            raise

    def _begin(self, committed: Committed | None) -> None:
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
        """Let episodes before a plan's first one take part in schema inference; they are not written."""
        self._inference.observe(chunk)

    def record(self, **facts: Any) -> None:
        """Let info.json record these facts of the run too."""
        with self._changing:
            add_facts(self._info["sources"][0], facts)
            if self._build is not None:
                with self._folder.replacing:
                    add_facts(self._build.info["sources"][0], facts)
                    self._write_info(self._build)

    def write(self, chunk: AnyChunk, *, partition: int = 0, sources: Array | None = None) -> None:
        """Take the next chunk of a partition: episodes in number order.

        `sources`, int64 (N,), says which run each episode is of; else it is the first one.

        Blocks while writing is behind. An error of a write, or of the timer's, is raised by a later call.
        """
        with self._changing:
            self.check()
            # What an error or a signal cuts off in here is never flushed.
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
        """Commit all whole episodes now; before the columns are decided, as a run that ended now would.

        In an object store, which has no open segments, and where no episode came, it does nothing.
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

    def _flush_regularly(self, seconds: float) -> None:
        while not self._is_ending.wait(min(seconds, threading.TIMEOUT_MAX)):
            try:
                self.flush()
            except BaseException:  # noqa: BLE001 - the next call raises it
                self._on_failure()
                return

    def _stop_timer(self) -> None:
        self._is_ending.set()
        self._timer.join()

    def close(self, *, status: Status, **facts: Any) -> DatasetSummary:
        """Commit all that was written and end the dataset; info.json records the `facts` of the run too.

        Where an interrupted run did not get as far as `keep_until`, the old dataset stays, and is summarised.
        """
        self._stop_timer()
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
        if info["status"] == "complete":  # It still is what was asked for then.
            return info
        segments = read_committed(root, info).segments
        metadata.end_info(info, status, {}, segments)
        # Its run may have been killed, and so have written no statistics.
        metadata.write_contents(self._folder.files, root, info, segments, DatasetSchema.from_info(info))
        return info

    def abort(self, *, commits: bool = True) -> None:
        """End the dataset as `interrupted`, if not empty; without `commits` only committed segments stay."""
        if not self._is_open:
            return
        self._stop_timer()
        failure = self._failure or (self._build and self._build.queue.failure)
        self._is_open = False
        with ExitStack() as stack:  # Each step is tried, even where one before it failed.
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
        # Else somebody removed the folder.
        build = self._published
        has_info = info_path(root).is_file()
        if build is None and self._folder.has_old:  # Of a run, a replacement has left one or the other.
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
        # A second signal asks for an end at once.
        at_once = isinstance(error, KeyboardInterrupt | InterruptedRunError | TerminatedRunError)
        tidy_up(error, partial(self.abort, commits=not at_once))
        if isinstance(error, StorageError):
            raise error.with_hint("; ".join(filter(None, [error.marked_hint, self._recoverable_part()])))

    def _recoverable_part(self) -> str:
        return recoverable_part(
            self._folder.path,
            self._info,
            is_derived=bool(self._settings.derived),
            keeps_old=bool(self._folder.keep_until),
            has_committed=self._published is not None and bool(self._published.segments),
        )

    def check(self) -> None:
        """Raise the error of a write, or of the timer's, if there was one."""
        if not self._is_open:
            raise InternalError("the dataset's writer was used after it was closed")
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
        """Write its info.json, unless it has the place of the old dataset's, which is still there."""
        if not self._folder.has_old or has_rename(self._folder.path):
            build.write_info()

    def _write_held(self) -> DatasetBuild:
        self._build = self._new_build(*self._inference.result(self._info["sources"][0]), committed=())
        for chunk, partition in self._inference.release():
            self._build.write(chunk, partition)
        return self._build

    def _commit_partial(self) -> None:
        """Commit the held episodes by themselves, unless the dataset in the folder has more of them."""
        build = self._new_build(*self._inference.result(self._info["sources"][0]), committed=())
        for chunk, partition in self._inference.held():
            build.write(chunk, partition)
        build.finish()
        if self._published is build:
            self._folder.has_old = True
            self._folder.keep_until = build.next_numbers()
        else:
            remove_temporary(self._folder.files, self._folder.path)

    def _commit_all(self) -> DatasetBuild:
        build = self._build or self._write_held()
        build.finish()
        if removed := len(build.segments) - len(build.present_segments()):
            raise StorageError(
                f"files of {removed} segments were removed from {self._folder.path} while it was written",
                code="segments-removed",
                hint="collect again, and let nothing else change the folder",
            )
        return build

    @contextmanager
    def _committing(self, build: DatasetBuild) -> Iterator[None]:
        """Let the build replace the old dataset: in an object store before a commit, else after it."""
        if self._folder.has_old and not has_rename(self._folder.path):
            self._replace_old(build)
        yield
        if self._folder.is_replaced_by(build.next_numbers()):
            self._replace_old(build)

    def _replace_old(self, build: DatasetBuild) -> None:
        self._published = None  # Until this has ended, it is for `recover_replaced` to say which one it is.
        with self._folder.replacing:
            self._folder.replace_old()
            build.settings = replace(build.settings, root=self._folder.path)
            if not has_rename(self._folder.path):
                build.write_info()
        self._published = build
