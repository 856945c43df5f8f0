"""Partition: the episodes of one partition, in number order, cut into segments and handed to the thread that writes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any, TypeVar

from rollout_cli.dataset.commits import CommittedPartition, SegmentId, Written
from rollout_cli.dataset.convert import Array
from rollout_cli.dataset.parquet import MEMORY_HINT
from rollout_cli.dataset.segments import LongEpisode, SegmentJob, SegmentSettings, nominal_bytes, write_segment
from rollout_cli.dataset.tables import NumberedChunk
from rollout_cli.episodes.chunk import Chunk, concatenate
from rollout_cli.errors import StorageError

R = TypeVar("R")

MOST_WAITING = 2
"""Writes that may wait: who is ahead by more blocks, so that memory stays flat."""


class WriteQueue:
    """Runs writes in their order, in one thread; after a failure no other write begins."""

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="rollout-writer")
        self._pending: deque[Future[Any]] = deque()

    def submit(self, work: Callable[..., R], *args: Any) -> Future[R]:
        """Add a write; blocks while too many wait, and raises the failure of an earlier one."""
        while len(self._pending) >= MOST_WAITING:
            wait([self._pending.popleft()])
        self.check()
        future = self._executor.submit(self._run, work, *args)
        self._pending.append(future)
        return future

    def check(self) -> None:
        """Raise the error of the write that failed, if one did."""
        if self.failure is not None:
            raise self.failure

    def stop(self, *, finish: bool = False) -> None:
        """Wait for the running write, or with `finish` for all; later ones are refused."""
        self._executor.shutdown(cancel_futures=not finish)

    def _run(self, work: Callable[..., R], *args: Any) -> R:
        self.check()
        try:
            return work(*args)
        except MemoryError as error:
            self.failure = StorageError(f"there is not enough memory to write a segment: {error}", hint=MEMORY_HINT)
            raise self.failure from error
        except BaseException as error:
            self.failure = error
            raise


class Partition:
    """Cuts the chunks of one partition into segments; keeps the open one in memory.

    Args:
        settings: The settings of all segments.
        queue: Runs the writes.
        segment: The first segment.
        first_number: The first episode number; None where that is the number of its first episode.
    """

    def __init__(
        self, settings: SegmentSettings, queue: WriteQueue, segment: SegmentId, first_number: int | None
    ) -> None:
        self._settings = settings
        self._queue = queue
        self._segment = segment
        # The numbers that the open segment covers; None before the first episode of a partition without a first one.
        self._start = self._next = first_number
        # The open segment: the rows and bytes of all of it, its last write, and the episodes after that.
        self._rows = self._nominal = 0
        self._before: Written | Future[Written] | None = None
        self._episodes: list[NumberedChunk] = []
        # An episode that comes in parts: kept until it is whole, or streamed if it is over the limits.
        self._parts: list[Chunk] = []
        self._long: LongEpisode | None = None
        self._last_long: LongEpisode | None = None

    def resume(self, committed: CommittedPartition) -> None:
        """Continue behind the committed segments."""
        if committed.segments:
            self._before = last = committed.segments[-1]
            self._segment, record = last.segment, last.record
            self._start, self._next = record.start, record.stop
            self._rows, self._nominal = record.steps, record.nominal
            if record.is_long:
                self._begin_segment()

    def write(self, chunk: Chunk, ids: Array) -> None:
        """Take the next episodes, whole or the next part of one, with their ids, int64 (N,)."""
        if chunk.part is None:
            self._add_whole(chunk, ids)
            return
        if chunk.part.index == 0:
            length, nominal = chunk.part.episode_length, int(nominal_bytes(chunk, self._settings.schema)[0])
            if self._settings.limits.is_over(length, nominal):
                self._begin_long(chunk, ids, length, nominal)
        if self._long is not None:
            self._add_to_long(chunk, is_last=chunk.part.is_last)
            return
        self._parts.append(chunk)
        if chunk.part.is_last:
            parts, self._parts = self._parts, []
            self._add_whole(concatenate(parts), ids)

    def flush(self) -> None:
        """Commit all whole episodes, unless they are committed."""
        if self._episodes:
            # The last write ended long ago, unless flushes follow one another closely.
            before = self._before.result() if isinstance(self._before, Future) else self._before
            job = SegmentJob(self._segment, before, self._episodes, self._start or 0, self._nominal)
            self._episodes = []
            self._before = self._queue.submit(write_segment, self._settings, job)

    def discard(self) -> None:
        """Remove the file of a long episode that was not committed, once the queue has ended."""
        if self._last_long is not None:
            self._last_long.discard()

    def _add_whole(self, chunk: Chunk, ids: Array) -> None:
        limits, lengths, sizes = self._settings.limits, chunk.lengths, nominal_bytes(chunk, self._settings.schema)
        at = 0
        while at < len(lengths):
            fitting = limits.count_fitting(lengths[at:], sizes[at:], rows=self._rows, nominal=self._nominal)
            if not fitting and self._rows:
                self._end_segment()
                continue
            stop = at + max(fitting, 1)
            some, nominal = chunk.episodes(at, stop), int(sizes[at:stop].sum())
            if fitting:
                self._cover(some)
                self._episodes.append((some, ids[at:stop]))
                self._rows += some.n_steps
                self._nominal += nominal
            else:  # It does not even fit into an empty segment.
                self._begin_long(some, ids[at:stop], some.n_steps, nominal)
                self._add_to_long(some, is_last=True)
            at = stop

    def _cover(self, chunk: Chunk) -> None:
        if self._start is None:
            self._start = int(chunk.numbers[0])
        self._next = int(chunk.numbers[-1]) + 1

    def _end_segment(self) -> None:
        """End the open segment, if it has episodes: the next one does not fit."""
        self.flush()
        if self._rows:
            self._begin_segment()

    def _begin_segment(self) -> None:
        self._segment = replace(self._segment, number=self._segment.number + 1)
        self._start = self._next
        self._rows = self._nominal = 0
        self._before = None

    def _begin_long(self, chunk: Chunk, ids: Array, length: int, nominal: int) -> None:
        self._end_segment()
        self._cover(chunk)
        job = SegmentJob(self._segment, None, (), self._start or 0, nominal)
        self._long = self._last_long = LongEpisode(self._settings, job, ids, length)

    def _add_to_long(self, chunk: Chunk, *, is_last: bool) -> None:
        assert self._long is not None
        self._queue.submit(self._long.add, chunk)
        if is_last:
            self._queue.submit(self._long.commit)
            self._long = None
            self._begin_segment()
