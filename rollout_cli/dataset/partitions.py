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
    """Writes and commits segments in their order, in one thread; after a failure no other write begins."""

    def __init__(self, write: Callable[[SegmentJob], Written]) -> None:
        self.failure: BaseException | None = None
        self._write = write
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="rollout-writer")
        self._pending: deque[Future[Written]] = deque()

    def submit(self, job: SegmentJob) -> Future[Written]:
        """Add a segment; blocks while too many wait, and raises the failure of an earlier one."""
        self.wait(MOST_WAITING - 1)
        self._pending.append(self._executor.submit(self._run, job))
        return self._pending[-1]

    def wait(self, most: int = 0) -> None:
        """Wait until at most so many writes are left; raise the error of the write that failed, if one did."""
        while len(self._pending) > most:
            wait([self._pending.popleft()])
        self.check()

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

    It begins with `segment` and `first_number` (None: the number of the first episode that comes), or continues behind
    the segments that are `committed`.
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
                self._next_segment()

    def write(self, chunk: Chunk, ids: Array) -> None:
        """Take the next episodes, whole or the next part of one, with their ids, int64 (N,)."""
        if chunk.part is None:
            self._add_whole(chunk, ids)
            return
        self._parts.append((chunk, ids))
        if chunk.part.is_last:
            parts, self._parts = self._parts, []
            nominal = int(nominal_bytes(chunk, self._schema)[0])
            if not self._limits.is_over(chunk.part.episode_length, nominal):
                self._add_whole(concatenate([part for part, _ in parts]), ids)
                return
            if self._rows:
                self._next_segment()
            self._add(parts, nominal)

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
                self._next_segment()
                continue
            stop = at + max(fitting, 1)  # One that does not even fit into an empty segment has it for itself.
            self._add([(chunk.episodes(at, stop), ids[at:stop])], int(sizes[at:stop].sum()))
            at = stop

    def _add(self, episodes: list[NumberedChunk], nominal: int) -> None:
        """Add episodes that fit into the open segment, or to an empty one an episode over the limits."""
        if self._start is None:
            self._start = int(episodes[0][0].numbers[0])
        self._next = int(episodes[-1][0].numbers[-1]) + 1
        self._episodes += episodes
        self._rows += sum(chunk.n_steps for chunk, _ in episodes)
        self._nominal += nominal
        if self._limits.is_over(self._rows, self._nominal):
            self._next_segment()
            self._queue.wait()  # Several at once might not fit into memory.

    def _next_segment(self) -> None:
        """End the open segment, and begin the next one."""
        self.flush()
        self._segment = replace(self._segment, number=self._segment.number + 1)
        self._start = self._next
        self._rows = self._nominal = 0
        self._before = None
