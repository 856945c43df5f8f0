"""A dataset with fixed columns, while it is written below one root: its segments, totals and info.json."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from rollout_cli.dataset import metadata
from rollout_cli.dataset.commits import Written
from rollout_cli.dataset.convert import Array
from rollout_cli.dataset.layout import SegmentId, segment_files
from rollout_cli.dataset.metadata import Status
from rollout_cli.dataset.segments import Partition, SegmentJob, SegmentSettings, WriteQueue
from rollout_cli.episodes.chunk import AnyChunk

WriteSegment = Callable[[SegmentSettings, SegmentJob], Written]


class DatasetBuild:
    """The files of a dataset below `settings.root`, which is another one once they are published.

    Args:
        info: Its info.json, which is this object's own.
        write_segment: Writes the files of a segment, under temporary names.
        committing: Makes the context of each commit, in the thread that writes.
        committed: Its segments that are there already.
    """

    def __init__(
        self,
        settings: SegmentSettings,
        info: dict[str, Any],
        write_segment: WriteSegment,
        committing: Callable[[DatasetBuild], AbstractContextManager[None]],
        committed: Sequence[Written] = (),
    ) -> None:
        self.settings, self.info = settings, info
        self.segments = {written.segment: written._replace(tables=None) for written in committed}
        self.queue = WriteQueue(self._commit)
        self._write_segment, self._committing = write_segment, committing
        self._next_id = sum(written.record.episodes for written in committed)
        self._partitions = [
            Partition(
                settings.schema,
                settings.limits,
                self.queue,
                SegmentId(len(info["first_numbers"]), partition, 0),
                first_number=first,
                by_id=settings.order == "episode_id",
                committed=[written for written in committed if written.segment.partition == partition],
            )
            for partition, first in enumerate(info["first_numbers"])
        ]

    def write(self, chunk: AnyChunk, partition: int, sources: Array | None = None) -> None:
        """Take the next chunk of a partition, and each episode's source; block while writing is behind."""
        ids = chunk.numbers
        if len(self._partitions) == 1:
            ids = self._next_id + np.arange(chunk.n_episodes)
            self._next_id += chunk.n_episodes if chunk.completes else 0
        labels = np.column_stack([ids, np.zeros_like(ids) if sources is None else sources])
        self._partitions[partition].write(chunk, labels)

    def flush(self) -> None:
        """Commit all whole episodes, perhaps after this returns."""
        for partition in self._partitions:
            partition.flush()

    def finish(self) -> None:
        """Commit all whole episodes; nothing can be written after that."""
        try:
            self.flush()
        finally:
            self.queue.stop(finish=True)
        self.queue.check()

    def _commit(self, job: SegmentJob) -> Written:
        """Write a segment and give its files their names, in the thread that writes."""
        with self._committing(self):
            files, root = self.settings.files, self.settings.root
            written = self._write_segment(self.settings, job)
            for source, target in zip(job.segment.temporary(root), job.segment.paths(root), strict=True):
                if source != target:
                    files.move(source, target)
            self.segments[job.segment] = written._replace(tables=None)
        return written

    def next_numbers(self) -> list[int]:
        """Return of each partition the number behind its last committed episode."""
        numbers = [first or 0 for first in self.info["first_numbers"]]
        for segment, written in sorted(self.segments.items()):
            numbers[segment.partition] = written.record.stop
        return numbers

    def present_segments(self) -> list[Written]:
        """Return the committed segments whose files still exist, in the order of their episodes."""
        # Each folder is listed once: a request for each object would take long.
        folders = (self.settings.root / "data", self.settings.root / "meta" / "episodes")
        present = set.intersection(*(set(segment_files(folder, len(self._partitions))) for folder in folders))
        return [written for segment, written in sorted(self.segments.items()) if segment in present]

    def write_info(self) -> None:
        """Write info.json and the card."""
        metadata.write_info(self.settings.files, self.settings.root, self.info)

    def end(self, status: Status, **facts: Any) -> None:
        """Record how the dataset ended, its totals and its statistics."""
        settings, written = self.settings, self.present_segments()
        metadata.end_info(self.info, status, facts, written)
        metadata.write_contents(settings.files, settings.root, self.info, written, settings.schema)
