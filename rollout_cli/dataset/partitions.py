"""Partition: the episodes of one partition, in number order, cut into segments and handed to the thread that writes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, ParamSpec, TypeVar

import numpy as np

from rollout_cli.dataset.commits import CommittedPartition, SegmentId, Tail
from rollout_cli.dataset.convert import Array
from rollout_cli.dataset.parquet import MEMORY_HINT
from rollout_cli.dataset.segments import (
    LongEpisode,
    SegmentJob,
    SegmentSettings,
    Written,
    nominal_bytes,
    write_segment,
)
from rollout_cli.episodes.chunk import Chunk, concatenate
from rollout_cli.errors import InternalError, StorageError

P = ParamSpec("P")
R = TypeVar("R")

MOST_WAITING = 2
"""Writes that may wait: who is ahead by more blocks, so that memory stays flat."""


class WriteQueue:
    """Runs writes in their order, in one thread; after one failed none is begun, and each verb but `stop` raises."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="rollout-writer")
        self._pending: deque[Future[Any]] = deque()
        self._failure: BaseException | None = None
        self._was_raised = False

    def submit(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Add a write; blocks while too many wait."""
        while len(self._pending) >= MOST_WAITING:
            wait([self._pending.popleft()])
        self.check()
        future = self._executor.submit(self._run, work, *args, **kwargs)
        self._pending.append(future)
        return future

    def check(self) -> None:
        """Raise the error of the write that failed, if one did."""
        if self._failure is not None:
            self._was_raised = True
            raise self._failure

    @property
    def has_failed(self) -> bool:
        """Return whether a write failed."""
        return self._failure is not None

    def finish(self) -> None:
        """Return when all writes are done."""
        wait(self._pending)
        self._executor.shutdown()
        self.check()

    def stop(self) -> BaseException | None:
        """Begin no other write, wait for the running one, and return an error that was not raised yet."""
        self._executor.shutdown(cancel_futures=True)
        return None if self._was_raised else self._failure

    def _run(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        if self._failure is not None:
            raise InternalError("a write was begun after one that failed")
        try:
            return work(*args, **kwargs)
        except MemoryError as error:
            self._failure = StorageError(f"there is not enough memory to write a segment: {error}", hint=MEMORY_HINT)
            raise self._failure from error
        except BaseException as error:
            self._failure = error
            raise


class _Coverage:
    """The episode numbers that the open segment covers: within a partition they rise, and a gap was skipped.

    Args:
        first: The partition's first number; None where that is the number of its first episode.
    """

    def __init__(self, first: int | None) -> None:
        self._start = self._next = first
        self._skipped: list[int] = []

    def add(self, numbers: Array) -> None:
        """Take the numbers of the next episodes."""
        stop = int(numbers[-1]) + 1
        if self._start is None or self._next is None:
            self._start = self._next = int(numbers[0])
        if stop - self._next != len(numbers):
            self._skipped += np.setdiff1d(np.arange(self._next, stop), numbers).tolist()
        self._next = stop

    def get(self) -> tuple[tuple[int, int], tuple[int, ...]]:
        """Return the numbers as start and stop, and those of them that were skipped."""
        return (self._start or 0, self._next or 0), tuple(self._skipped)

    def begin_segment(self) -> None:
        """Begin the next segment, behind this one."""
        self._start, self._skipped = self._next, []

    def resume(self, start: int, stop: int, skipped: tuple[int, ...]) -> None:
        """Continue the segment that covers these numbers."""
        self._start, self._next, self._skipped = start, stop, list(skipped)


class Partition:
    """Cuts the chunks of one partition into segments; keeps the open one in memory.

    Args:
        settings: The settings of all segments.
        queue: Runs the writes.
        n_partitions: Partitions of the dataset.
        partition: Which one this is.
        first_number: Its first episode number; None where that is the number of its first episode.
    """

    def __init__(
        self,
        settings: SegmentSettings,
        queue: WriteQueue,
        *,
        n_partitions: int = 1,
        partition: int = 0,
        first_number: int | None = None,
    ) -> None:
        self._settings = settings
        self._queue = queue
        self._segment = SegmentId(n_partitions, partition, 0)
        self._coverage = _Coverage(first_number)
        # The open segment: what it has in all, the tables of its last write, and the episodes after them.
        self._rows = self._nominal = 0
        self._tail: Tail | None = None
        self._write: Future[Written] | None = None
        self._chunks: list[Chunk] = []
        self._ids: list[Array] = []
        # An episode that comes in parts: kept until it is whole, or streamed if it is over the limits.
        self._parts: list[Chunk] = []
        self._long: LongEpisode | None = None

    def resume(self, before: CommittedPartition) -> None:
        """Continue behind the committed segments."""
        if not before.segments:
            return
        self._segment, record = before.segments[-1]
        self._coverage.resume(record.start, record.stop, record.skipped)
        self._rows, self._nominal, self._tail = record.steps, record.nominal, before.tail
        if record.is_long:
            self._begin_segment()

    def write(self, chunk: Chunk, ids: Array) -> None:
        """Take the next episodes, whole or the next part of one, with their ids, int64 (N,)."""
        if chunk.part is None:
            self._add_whole(chunk, ids)
        else:
            self._add_part(chunk, ids)

    def flush(self) -> None:
        """Commit all whole episodes, unless they are committed."""
        if self._chunks:
            self._write_open()

    def finish(self) -> None:
        """Commit all whole episodes; nothing may follow."""
        self.flush()

    def discard(self) -> None:
        """Remove the file of an episode whose last part never came, once the queue has ended."""
        if self._long is not None:
            long, self._long = self._long, None
            long.discard()

    def _add_whole(self, chunk: Chunk, ids: Array) -> None:
        lengths, sizes = chunk.lengths, nominal_bytes(chunk, self._settings.schema)
        at = 0
        while at < len(lengths):
            fitting = self._settings.limits.count_fitting(
                lengths[at:], sizes[at:], rows=self._rows, nominal=self._nominal
            )
            stop = at + max(fitting, 1)
            if fitting:
                self._add(chunk.episodes(at, stop), ids[at:stop], int(sizes[at:stop].sum()))
            elif self._rows:
                self._end_segment()
                continue
            else:
                # It does not even fit into an empty segment.
                self._begin_long(chunk.episodes(at, stop), ids[at:stop], int(lengths[at]), int(sizes[at]))
                self._add_to_long(chunk.episodes(at, stop), is_last=True)
            at = stop

    def _add_part(self, chunk: Chunk, ids: Array) -> None:
        part = chunk.part
        assert part is not None
        if part.index == 0:
            length, nominal = part.episode_length, int(nominal_bytes(chunk, self._settings.schema)[0])
            if self._settings.limits.is_over(length, nominal):
                self._end_segment()
                self._begin_long(chunk, ids, length, nominal)
        if self._long is not None:
            self._add_to_long(chunk, is_last=part.is_last)
            return
        self._parts.append(chunk)
        if part.is_last:
            parts, self._parts = self._parts, []
            self._add_whole(concatenate(parts), ids)

    def _add(self, chunk: Chunk, ids: Array, nominal: int) -> None:
        self._chunks.append(chunk)
        self._ids.append(ids)
        self._rows += chunk.n_steps
        self._nominal += nominal
        self._coverage.add(chunk.numbers)

    def _end_segment(self) -> None:
        """End the open segment, if it has episodes: the next one does not fit."""
        self.flush()
        if self._rows:
            self._begin_segment()

    def _begin_segment(self) -> None:
        self._segment = SegmentId(self._segment.n_partitions, self._segment.partition, self._segment.number + 1)
        self._coverage.begin_segment()
        self._rows = self._nominal = 0
        self._tail = self._write = None

    def _write_open(self) -> None:
        if self._write is not None:
            # The rows of the last write, which ended long ago unless flushes follow one another closely.
            self._tail = self._write.result().tail
        covered, skipped = self._coverage.get()
        job = SegmentJob(self._segment, self._tail, self._chunks, self._ids, covered, skipped, self._nominal)
        self._chunks, self._ids, self._tail = [], [], None
        self._write = self._queue.submit(write_segment, self._settings, job)

    def _begin_long(self, chunk: Chunk, ids: Array, length: int, nominal: int) -> None:
        self._coverage.add(chunk.numbers)
        covered, skipped = self._coverage.get()
        job = SegmentJob(self._segment, None, [], [ids], covered, skipped, nominal)
        self._long = LongEpisode(self._settings, job, length)

    def _add_to_long(self, chunk: Chunk, *, is_last: bool) -> None:
        assert self._long is not None
        self._queue.submit(self._long.add, chunk)
        if is_last:
            self._queue.submit(self._long.commit)
            self._long = None
            self._begin_segment()
