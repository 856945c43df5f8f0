"""Writing synthetic datasets: many small segments, a disk that fails, a process that is killed."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rollout_cli.dataset.committed import Committed, read_committed
from rollout_cli.dataset.folder import OutputFolder
from rollout_cli.dataset.layout import read_info
from rollout_cli.dataset.metadata import DatasetSettings, DatasetSummary
from rollout_cli.dataset.segments import SizeLimits
from rollout_cli.dataset.store import FileStore
from rollout_cli.dataset.writer import DatasetWriter
from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.chunk import Chunk
from tests.helpers.chunks import BOX_SPEC, episode, seeded
from tests.helpers.datasets import numbers_of


def third_of(points: Sequence[int]) -> Sequence[int]:
    """Return a third of the points at which something is tried; another one each day, so that all have their turn."""
    return points[datetime.now(UTC).toordinal() % 3 :: 3]


SMALL = SizeLimits(segment_rows=200, segment_bytes=24_000, group_rows=50)
"""Limits under which some episodes make several segments of several row groups."""

CHUNKS = (
    *[episode(n, 60) for n in range(17)],
    episode(17, 410),
    *[episode(n, 25) for n in range(100, 112)],
)
"""Episodes that decide the columns, a long one, skipped ones, and short ones."""

RICH_SPEC = EnvSpec(
    spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (6, 6, 3), np.uint8),
            "frames": spaces.Box(-5, 5, (2, 3), np.float64),
            "mission": spaces.Text(8, min_length=1),
        }
    ),
    spaces.Tuple([spaces.Discrete(4, start=-1), spaces.MultiBinary(3)]),
)
"""Leaves of all sorts of columns: an image, nested lists, a text, an integer, a list."""


def rich_info(number: int, step: int) -> dict[str, Any]:
    """Return infos that are dense, sparse, of varying type, and new behind the first 1,000 steps."""
    info: dict[str, Any] = {"x": step if step % 2 else step / 4, "text": f"step {step} ☃"}
    if step % 5 == 0:
        info["grid"] = np.full((2, 3), number, np.float32)
    if number % 7 == 3:
        info["rare"] = {"deep": [number, None]}
    if number > 90:
        info["late"] = step
    return info


@cache
def rich_episodes(count: int = 120) -> tuple[Chunk, ...]:
    """Return episodes of `RICH_SPEC` of 1 to 23 steps, about 1,400 steps in all; number 61 is missing."""
    return tuple(
        episode(
            n,
            1 + 7 * n % 23,
            spec=RICH_SPEC,
            env_info=rich_info,
            agent_info=rich_info,
            episode_info=rich_info,
        )
        for n in range(count)
        if n != 61
    )


def open_writer(
    path: Path | str,
    *,
    spec: EnvSpec = BOX_SPEC,
    root_seed: int = 0,
    overwrite: bool = False,
    replace_from: Sequence[int] = (),
    files: FileStore | None = None,
    committed: Committed | None = None,
    flush_seconds: float = 30.0,
    header: Mapping[str, Any] | None = None,
    **settings: Any,
) -> DatasetWriter:
    """Open a writer of one run, whose record has the `header`; `settings` are those of `DatasetSettings`."""
    folder = OutputFolder(path, overwrite=overwrite, replace_from=replace_from)
    folder.files = files or folder.files
    sources = [{"root_seed": root_seed, **(header or {})}]
    return DatasetWriter(
        folder, DatasetSettings(spec, sources, **settings), committed=committed, flush_seconds=flush_seconds
    )


def write_dataset(
    path: Path,
    chunks: Iterable[Chunk],
    *,
    spec: EnvSpec = BOX_SPEC,
    partitions: Sequence[int] = (),
    flush: bool = False,
    **options: Any,
) -> DatasetSummary:
    """Write `chunks` in turn, each to its partition, and close the dataset as complete.

    With `flush` the timer's time has come after every seventh one.
    """
    with open_writer(path, spec=spec, **options) as writer:
        for at, chunk in enumerate(chunks):
            own = seeded(chunk, options["root_seed"]) if options.get("root_seed") else chunk
            writer.write(own, partition=partitions[at] if partitions else 0)
            if flush and at % 7 == 0:
                writer.flush()
        return writer.close(status="complete")


def resume_dataset(
    path: Path, chunks: Iterable[Chunk], *, spec: EnvSpec = BOX_SPEC, flush: bool = False, **options: Any
) -> Committed:
    """Resume a dataset of one partition with those of the chunks that are missing; return the committed part."""
    committed = read_committed(path, read_info(path))
    next_number = committed.partitions[0].next_number
    with open_writer(path, spec=spec, committed=committed, **options) as writer:
        for at, chunk in enumerate(chunks):
            first = int(np.searchsorted(chunk.numbers, next_number))
            if first < chunk.n_episodes:
                writer.write(chunk.episodes(first, chunk.n_episodes))
                if flush and at % 7 == 0:
                    writer.flush()
        writer.close(status="complete")
    return committed


def data_files(path: Path) -> dict[str, bytes]:
    """Return the bytes of all files of `data/`, by name."""
    return {
        str(file.relative_to(path)): file.read_bytes() for file in sorted((path / "data").rglob("*.parquet"))
    }


def all_files(path: Path) -> dict[str, bytes]:
    """Return the bytes of all files of a folder, by name."""
    return {
        str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()
    }


def hidden_files(path: Path) -> list[str]:
    """Return the names of hidden entries at the top: temporary files, the lock, folders moved aside."""
    return sorted(file.name for file in path.glob(".*"))


class QuickFiles(FileStore):
    """A disk that is asked to keep what it has, and answers at once: no test takes its power away."""

    def sync(self, path: Path) -> None:
        with self.operation("fsync", path):
            pass


class FailingFiles(QuickFiles):
    """A disk on which operation number `fail_at` fails, or that one and all after it."""

    def __init__(self, fail_at: int | None = None, *, for_good: bool = False) -> None:
        self.operations: list[tuple[str, Path]] = []
        self.fail_at = fail_at
        self._for_good = for_good

    def before(self, operation: str, path: Path) -> None:
        at = len(self.operations)
        self.operations.append((operation, path))
        if self.fail_at is not None and (at == self.fail_at or (self._for_good and at > self.fail_at)):
            raise OSError(errno.ENOSPC, "No space left on device")


class Killed(BaseException):
    """Stands for the end of the process: nothing after it reaches the disk."""


class KilledFiles(QuickFiles):
    """A disk of a process that is killed before operation number `kill_at`."""

    def __init__(self, kill_at: int) -> None:
        self.count = 0
        self._kill_at = kill_at

    def before(self, operation: str, path: Path) -> None:
        self.count += 1
        if self.count > self._kill_at:
            raise Killed


def kill_while_writing(
    path: Path, files: KilledFiles, *, flush: bool = False, limits: SizeLimits = SMALL, **options: Any
) -> None:
    """Write `CHUNKS` until the process is killed. Only the lock is released, as the system would do it."""
    with pytest.raises(Killed):  # noqa: PT012
        writer = open_writer(path, limits=limits, files=files, **options)
        try:
            for at, chunk in enumerate(CHUNKS):
                writer.write(chunk)
                if flush and at % 7 == 0:
                    writer.flush()
            writer.close(status="complete")
        finally:
            vanish(writer)


def committed_numbers(path: Path) -> list[int]:
    """Return the committed numbers while a writer may replace files; none while it does so."""
    try:
        return numbers_of(path)
    except (OSError, ValueError):
        return []


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that another thread makes true."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def vanish(writer: DatasetWriter) -> None:
    """End the writer's threads and release its lock, as the end of the process would do it."""
    writer._is_ending.set()
    writer._timer.join()
    if writer._build is not None:
        writer._build.queue.stop()
    writer._folder.close()


def wait_for_writes(writer: DatasetWriter) -> None:
    """Wait until everything that was handed to the writing thread is on the disk."""
    if writer._build is not None:
        writer._build.queue.wait()
