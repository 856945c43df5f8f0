"""Partition: the episodes of one partition, in number order, cut into segments and handed to the thread that writes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace

from rollout_cli.dataset.commits import SegmentId, Written
from rollout_cli.dataset.convert import Array
from rollout_cli.dataset.parquet import MEMORY_HINT
from rollout_cli.dataset.schema import DatasetSchema
from rollout_cli.dataset.segments import SegmentJob, SizeLimits, nominal_bytes
from rollout_cli.dataset.tables import NumberedChunk
from rollout_cli.episodes.chunk import Chunk, concatenate
from rollout_cli.errors import StorageError

MOST_WAITING = 2
"""Segments that may wait to be written: who is ahead by more blocks, so that memory stays flat."""


class WriteQueue:
    """Writes segments in their order, in one thread; after a failure no other write begins.

    Args:
        write: Writes and commits one segment.
    """

    def __init__(self, write: Callable[[SegmentJob], Written]) -> None:
        self.failure: BaseException | None = None
        self._write = write
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="rollout-writer")
        self._pending: deque[Future[Written]] = deque()

    def submit(self, job: SegmentJob) -> Future[Written]:
        """Add a segment; blocks while too many wait, and raises the failure of an earlier one."""
        while len(self._pending) >= MOST_WAITING:
            wait([self._pending.popleft()])
        self.check()
        self._pending.append(self._executor.submit(self._run, job))
        return self._pending[-1]

    def check(self) -> None:
        """Raise the error of the write that failed, if one did."""
        if self.failure is not None:
            raise self.failure

    def stop(self, *, finish: bool = False) -> None:
        """Wait for the running write, or with `finish` for all; later ones are refused."""
        self._executor.shutdown(cancel_futures=not finish)

    def _run(self, job: SegmentJob) -> Written:
        self.check()
        try:
            return self._write(job)
        except MemoryError as error:
            self.failure = StorageError(f"there is not enough memory to write a segment: {error}", hint=MEMORY_HINT)
            raise self.failure from error
        except BaseException as error:
            self.failure = error
            raise


class Partition:
    """Cuts the chunks of one partition into segments; keeps the open one in memory.

    Args:
        schema: The dataset's schema.
        limits: Where segments end.
        queue: Writes the segments.
        segment: The first segment.
        first_number: The first episode number; None where that is the number of its first episode.
        committed: Its committed segments, which are continued.
    """

    def __init__(
        self,
        schema: DatasetSchema,
        limits: SizeLimits,
        queue: WriteQueue,
        segment: SegmentId,
        *,
        first_number: int | None,
        committed: Sequence[Written] = (),
    ) -> None:
        self._schema, self._limits, self._queue = schema, limits, queue
        self._segment = segment
        # The numbers that the open segment covers; None before the first episode of a partition without a first one.
        self._start = self._next = first_number
        # The open segment: the rows and bytes of all of it, its last write, and the episodes after that.
        self._rows = self._nominal = 0
        self._before: Written | Future[Written] | None = None
        self._episodes: list[NumberedChunk] = []
        # The parts of an episode that is not whole yet.
        self._parts: list[NumberedChunk] = []
        for last in committed[-1:]:
            self._segment, self._start, self._next = last.segment, last.record.start, last.record.stop
            self._rows, self._nominal, self._before = last.record.steps, last.record.nominal, last
            if last.record.is_long:
                self._begin_segment()

    def write(self, chunk: Chunk, ids: Array) -> None:
        """Take the next episodes, whole or the next part of one, with their ids, int64 (N,)."""
        if chunk.part is None:
            self._add_whole(chunk, ids)
            return
        self._parts.append((chunk, ids))
        if chunk.part.is_last:
            parts, self._parts = self._parts, []
            nominal = int(nominal_bytes(chunk, self._schema)[0])
            if self._limits.is_over(chunk.part.episode_length, nominal):
                self._write_long(parts, nominal)
            else:
                self._add_whole(concatenate([part for part, _ in parts]), ids)

    def flush(self) -> None:
        """Commit all whole episodes, unless they are committed."""
        if self._episodes:
            # The last write ended long ago, unless flushes follow one another closely.
            before = self._before.result() if isinstance(self._before, Future) else self._before
            job = SegmentJob(self._segment, before, self._episodes, self._start or 0, self._nominal)
            self._episodes = []
            self._before = self._queue.submit(job)

    def _add_whole(self, chunk: Chunk, ids: Array) -> None:
        limits, lengths, sizes = self._limits, chunk.lengths, nominal_bytes(chunk, self._schema)
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
                self._write_long([(some, ids[at:stop])], nominal)
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

    def _write_long(self, episode: list[NumberedChunk], nominal: int) -> None:
        """Write an episode over the limits, whole or as its parts, as a segment of its own."""
        self._end_segment()
        self._cover(episode[0][0])
        # It is waited for: several at once might not fit into memory.
        self._queue.submit(SegmentJob(self._segment, None, episode, self._start or 0, nominal)).result()
        self._begin_segment()
