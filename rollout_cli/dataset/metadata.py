"""A dataset under construction: its segments below one root, and info.json, the record of its origin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rollout_cli.dataset.card import render_card
from rollout_cli.dataset.commits import Written
from rollout_cli.dataset.convert import Array
from rollout_cli.dataset.layout import (
    FORMAT,
    FORMAT_VERSION,
    SegmentId,
    episodes_folder,
    info_path,
    segment_files,
    stats_path,
)
from rollout_cli.dataset.record import DatasetInfo, Totals, add_facts
from rollout_cli.dataset.schema import DatasetSchema, SpaceSchema
from rollout_cli.dataset.segments import Partition, SegmentJob, SegmentSettings, SizeLimits, WriteQueue
from rollout_cli.dataset.stats import Anomaly, Place, anomalies, merge_stats, stats_document
from rollout_cli.dataset.store import FileStore
from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.chunk import AnyChunk
from rollout_cli.episodes.infos import InfoColumns
from rollout_cli.episodes.plain import Document, Fields, plain_json

Status = Literal["complete", "interrupted"]
WriteSegment = Callable[[SegmentSettings, SegmentJob], Written]


@dataclass(frozen=True, slots=True)
class DatasetSummary:
    """The contents of a closed dataset, from info.json; `segments` counts data files."""

    path: Path
    status: str
    episodes: int
    steps: int
    bytes: int
    segments: int
    dropped_infos: Mapping[str, int]
    anomalies: tuple[Anomaly, ...]


@dataclass(frozen=True, slots=True)
class DatasetSettings:
    """The settings of a new dataset, known before its first episode.

    Attributes:
        first_numbers: The first episode number of each partition; each of several partitions has a chunk
            folder. None stands for the first number that arrives; gaps before it are then not recorded as
            skipped.
        next_observation: True to store each step's next observation, in separate columns.
        sources: The `root_seed` and the other info.json fields of each run whose episodes are written; the
            `env` of a run also goes into every file's footer.
        columns: The info columns, if known beforehand; each source then has the fingerprint of its `run`.
        info_columns: `partial` if a longer run might have more columns, which makes a resume restart;
            else `decided`.
        derived: The operations that made the dataset from others; empty for a collected dataset. Episode
            numbers of a derived dataset may have any order, and its segments cover ranges of ids.
        before: The info.json of a dataset that is collected again: its times and license stay.
    """

    env_spec: EnvSpec
    sources: Sequence[Document]
    first_numbers: Sequence[int | None] = (None,)
    next_observation: bool = False
    limits: SizeLimits = field(default_factory=SizeLimits)
    columns: InfoColumns | None = None
    info_columns: str = "decided"
    derived: Sequence[Document] = ()
    before: DatasetInfo | None = None


def new_info(spaces: SpaceSchema, settings: DatasetSettings, before: DatasetInfo | None) -> DatasetInfo:
    """Return the info.json of a new dataset, or of a resumed one if there is an info.json from `before`."""
    now = utc_now()
    sources: Fields = {"sources": [{"run": None, **plain_json(source)} for source in settings.sources]}
    ours: DatasetInfo = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "status": "collecting",
        "episodes": 0,
        "steps": 0,
        "bytes": 0,
        "segments": 0,
        "partitions": len(settings.first_numbers),
        "first_numbers": list(settings.first_numbers),
        "next_observation": settings.next_observation,
        "limits": {
            "segment_rows": settings.limits.segment_rows,
            "segment_bytes": settings.limits.segment_bytes,
            "group_rows": settings.limits.group_rows,
        },
        "max_episode_length": spaces.env_spec.max_episode_length,
        "spaces": spaces.describe(),
        "features": DatasetSchema.of(spaces, {}, {}).describe(),  # No info columns are known yet.
        "info_columns": "inferring",
        "sources": sources["sources"],
        "derived": plain_json(settings.derived),
        "dropped_infos": {},
        "anomalies": [],
        "times": {"started": now, "updated": now, "ended": None},
    }
    if before := before or settings.before:
        times = before["times"]
        resumed = [*times.get("resumed", []), now]
        ours["times"] = {**times, "updated": now, "ended": None, "resumed": resumed}
        card = before.get("card", {}).copy()
        card.pop("plot", None)  # The picture lacks the new episodes.
        if card:
            ours["card"] = card
    return ours


def totals_of_segments(written: Sequence[Written]) -> Totals:
    """Return the totals and the anomalies of the segments."""
    places: dict[str, Place] = {}
    dropped: Counter[str] = Counter()
    for segment in written:
        places = {**segment.record.anomalies, **places}
        dropped.update(segment.record.dropped_infos)
    odd: Fields = {"anomalies": [anomaly._asdict() for anomaly in anomalies(places)]}
    return {
        "episodes": sum(segment.record.episodes for segment in written),
        "steps": sum(segment.record.steps for segment in written),
        "dropped_infos": dict(dropped),
        "bytes": sum(segment.data_bytes + segment.episodes_bytes for segment in written),
        "segments": len(written),
        "anomalies": odd["anomalies"],
    }


def end_info(info: DatasetInfo, status: Status, facts: Document, written: Sequence[Written]) -> None:
    """Record the final status of the dataset, the totals of its segments, and more facts of its run."""
    add_facts(info, totals_of_segments(written))
    add_facts(info["sources"][0], facts)
    info["status"] = status
    info["times"]["ended"] = utc_now()


def write_contents(
    files: FileStore, root: Path, info: DatasetInfo, written: Sequence[Written], schema: DatasetSchema
) -> None:
    """Write stats.json, the card and info.json of a dataset that ended with these segments."""
    stats = merge_stats([segment.record.stats for segment in written])
    files.write_json(stats_path(root), stats_document(stats, schema))
    info["times"]["updated"] = utc_now()
    # info.json comes last: once it is `complete`, no process would write the other files again.
    _write_card(files, root, info)
    files.write_json(info_path(root), info)


def write_info(files: FileStore, root: Path, info: DatasetInfo) -> None:
    """Write info.json and the card."""
    info["times"]["updated"] = utc_now()
    files.write_json(info_path(root), info)  # First: a folder with only a card is not a dataset.
    _write_card(files, root, info)


def _write_card(files: FileStore, root: Path, info: DatasetInfo) -> None:
    files.replace(root / "README.md", render_card(info).encode(errors="backslashreplace"))


def summary_of(root: Path, info: DatasetInfo) -> DatasetSummary:
    """Return the summary of the dataset that `info` describes."""
    return DatasetSummary(
        root,
        status=info["status"],
        episodes=info["episodes"],
        steps=info["steps"],
        bytes=info["bytes"],
        segments=info["segments"],
        dropped_infos=info["dropped_infos"],
        anomalies=tuple(Anomaly(**place) for place in info["anomalies"]),
    )


def utc_now() -> str:
    """Return the current time in the format of info.json."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class DatasetBuild:
    """The files of a dataset below `settings.root`, which changes once they are published.

    Args:
        info: The info.json of the dataset, owned by this object.
        write_segment: Writes the files of a segment, under temporary names.
        committing: Returns the context of each commit, in the writing thread.
        committed: The segments that are committed already.
    """

    def __init__(
        self,
        settings: SegmentSettings,
        info: DatasetInfo,
        write_segment: WriteSegment,
        committing: Callable[[DatasetBuild], AbstractContextManager[None]],
        committed: Sequence[Written],
    ) -> None:
        self.settings = settings
        self.info = info
        self.segments = {written.segment: written for written in committed}
        self.queue = WriteQueue(self._commit)
        self._write_segment = write_segment
        self._committing = committing
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
        """Add the next chunk of a partition, and each episode's source; blocks while writing is behind."""
        ids = chunk.numbers
        if len(self._partitions) == 1:
            ids = self._next_id + np.arange(chunk.n_episodes)
            self._next_id += chunk.n_episodes
        labels = np.column_stack([ids, np.zeros_like(ids) if sources is None else sources])
        self._partitions[partition].write(chunk, labels)

    def flush(self) -> None:
        """Commit all complete episodes; this may return before the commit."""
        for partition in self._partitions:
            partition.flush()

    def finish(self) -> None:
        """Commit all complete episodes; no writes are possible afterwards."""
        try:
            self.flush()
        finally:
            self.queue.stop(finish=True)
        self.queue.check()

    def _commit(self, job: SegmentJob) -> Written:
        """Write a segment and rename its files, in the writing thread."""
        with self._committing(self):
            files = self.settings.files
            root = self.settings.root
            written = self._write_segment(self.settings, job)
            (data, meta) = job.segment.temporary(root)
            (data_path, meta_path) = job.segment.paths(root)
            if data != data_path:
                files.rename(data, data_path)
                if before := self.segments.get(job.segment):
                    # If a later operation fails, the old commit stays valid, with the new data file.
                    self.segments[job.segment] = before._replace(data_bytes=written.data_bytes)
                files.sync(data_path.parent)
                files.rename(meta, meta_path)
            # The rename is the commit, even if the disk cannot confirm that the name is durable.
            self.segments[job.segment] = written
            files.sync(meta_path.parent)
        return written

    def next_numbers(self) -> list[int]:
        """Return one past the last committed episode number of each partition."""
        numbers = [first or 0 for first in self.info["first_numbers"]]
        for segment, written in sorted(self.segments.items()):
            numbers[segment.partition] = written.record.stop
        return numbers

    def present_segments(self) -> list[Written]:
        """Return the committed segments whose files still exist, in the order of their episodes."""
        # List each folder once: a request for each object would take long.
        folders = (self.settings.root / "data", episodes_folder(self.settings.root))
        present = set.intersection(*(set(segment_files(folder, len(self._partitions))) for folder in folders))
        return [written for segment, written in sorted(self.segments.items()) if segment in present]

    def write_info(self) -> None:
        """Write info.json and the card."""
        write_info(self.settings.files, self.settings.root, self.info)

    def end(self, status: Status, **facts: Any) -> None:
        """Record the final status of the dataset, its totals and its statistics."""
        settings = self.settings
        written = self.present_segments()
        end_info(self.info, status, facts, written)
        write_contents(settings.files, settings.root, self.info, written, settings.schema)
