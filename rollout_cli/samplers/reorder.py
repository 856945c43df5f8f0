"""ReorderBuffer: takes finished episodes as they come, and gives each partition's in the order of their numbers."""

from __future__ import annotations

import pickle
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import IO

from rollout_cli.episodes.chunk import Chunk
from rollout_cli.errors import StorageError
from rollout_cli.samplers.numbers import contiguous_ranges
from rollout_cli.samplers.plan import PlanState

MEMORY_BYTES = 256 << 20
DISK_BYTES = 16 << 30


# A chunk in memory and its bytes, or None and its place in the file.
_Kept = tuple[Chunk | None, int]


@dataclass(slots=True)
class _Entry:
    """Episodes without a gap that begin at one number, or the parts of one episode."""

    stop: int
    kept: list[_Kept] = field(default_factory=list)
    missing_parts: int = 0


class ReorderBuffer:
    """The buffer of one call: gives no episode twice, and none above the plan's end.

    What has to wait is kept in memory up to a limit, then in one unlinked file; beyond that the buffer is full, and the
    sampler leases no new numbers.

    Args:
        memory_limit: Bytes kept in memory.
        disk_limit: Bytes kept in the file, at least 1; from there on the buffer is full, but takes more.
        folder: Where the file is; by default where `tempfile` puts it (`TMPDIR`).
    """

    def __init__(
        self,
        plan: PlanState,
        *,
        memory_limit: int = MEMORY_BYTES,
        disk_limit: int = DISK_BYTES,
        folder: Path | None = None,
    ) -> None:
        self._plan = plan
        self._next = list(plan.firsts)
        self._entries: dict[int, _Entry] = {}
        self._skipped: set[int] = set()
        self._store = _Store(memory_limit, folder)
        self._disk_limit = disk_limit

    @property
    def is_full(self) -> bool:
        """Return whether memory and disk are used up: what is on disk is there because it had no place in memory."""
        return self._store.on_disk >= self._disk_limit

    def add(self, chunk: Chunk) -> None:
        """Take finished episodes that were not given before, or one part of a long one.

        Raises:
            StorageError: If the file cannot be written.
        """
        if chunk.part is not None:
            number = int(chunk.numbers[0])
            if chunk.part.index == 0:
                self._drop(number)  # The parts that a worker sent before it died.
                self._entries[number] = _Entry(number + 1, missing_parts=chunk.part.count)
            self._entries[number].kept.append(self._store.put(chunk))
            self._entries[number].missing_parts -= 1
            return
        start = 0
        for numbers in contiguous_ranges(chunk.numbers):
            stop = start + len(numbers)
            # A chunk whose turn it is need not go by way of the disk.
            is_next = numbers.start == self._next[self._plan.partition(numbers.start)]
            kept = self._store.put(chunk.episodes(start, stop), in_memory=is_next)
            self._entries[numbers.start] = _Entry(numbers.stop, [kept])
            start = stop

    def skip(self, number: int) -> None:
        """Continue without an episode, which does not come; parts of it may have come."""
        self._skipped.add(number)
        self._drop(number)

    def _drop(self, number: int) -> None:
        entry = self._entries.pop(number, None)
        for kept in entry.kept if entry else ():
            self._store.forget(kept)

    def is_past(self, number: int) -> bool:
        """Return whether an episode lies below the one that comes next."""
        return number < self._next[self._plan.partition(number)]

    def ready(self) -> Iterator[Chunk]:
        """Give every chunk whose turn it is, partition by partition.

        Raises:
            StorageError: If the file cannot be read.
        """
        for partition in range(self._plan.n_partitions):
            while (number := self._next[partition]) < self._stop(partition):
                if number in self._skipped:
                    self._next[partition] += 1
                    continue
                entry = self._entries.get(number)
                if entry is None or entry.missing_parts:
                    break
                del self._entries[number]
                stop = self._next[partition] = min(entry.stop, self._stop(partition))
                for kept in entry.kept:
                    chunk = self._store.take(kept)
                    yield chunk if chunk.part is not None else chunk.episodes(0, stop - number)

    def _stop(self, partition: int) -> int:
        """Return one past the last number that can be needed."""
        last = self._plan.last_needed(partition)
        return sys.maxsize if last is None else last + 1

    @property
    def n_waiting(self) -> int:
        """Return how many episodes that the plan needs wait for one before them."""
        whole = {number: entry for number, entry in self._entries.items() if not entry.missing_parts}
        stops = {number: min(entry.stop, self._stop(self._plan.partition(number))) for number, entry in whole.items()}
        return sum(max(0, stop - number) for number, stop in stops.items())

    def close(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._store.close()


class _Store:
    """Keeps chunks in memory up to a limit, and beyond it in one file, which is emptied when nobody needs it."""

    def __init__(self, memory_limit: int, folder: Path | None) -> None:
        self._memory_limit, self._folder = memory_limit, folder
        self._in_memory = 0
        self._file: IO[bytes] | None = None
        self._needed = 0  # Chunks in the file that were not taken.
        self.on_disk = 0

    def put(self, chunk: Chunk, *, in_memory: bool = False) -> _Kept:
        """Keep a chunk, where there is room or in any case in memory."""
        size = _n_bytes(chunk)
        if in_memory or self._in_memory + size <= self._memory_limit:
            self._in_memory += size
            return chunk, size
        try:
            if self._file is None:
                # Without a name: whatever happens to this process, the disk gets the space back.
                self._file = tempfile.TemporaryFile(prefix="rollout-spill-", dir=self._folder)  # noqa: SIM115
            at = self._file.seek(self.on_disk)
            pickle.dump(chunk, self._file, protocol=5)
            self._file.flush()
            self.on_disk = self._file.tell()
        except OSError as error:
            raise self._failure(error, "hold") from error
        self._needed += 1
        return None, at

    def take(self, kept: _Kept) -> Chunk:
        """Give a chunk back, and forget it."""
        chunk, at = kept
        if chunk is None:
            assert self._file is not None
            try:
                self._file.seek(at)
                chunk = pickle.load(self._file)  # noqa: S301  It was pickled by this package's own process.
            except OSError as error:
                raise self._failure(error, "give back") from error
        self.forget(kept)
        return chunk

    def forget(self, kept: _Kept) -> None:
        """Forget a chunk."""
        chunk, size = kept
        if chunk is not None:
            self._in_memory -= size
            return
        self._needed -= 1
        if not self._needed and self._file is not None:
            self.on_disk = 0
            self._file.truncate(0)

    def close(self) -> None:
        """Forget everything."""
        if self._file is not None:
            with suppress(OSError):  # Of a full disk, which was reported; it is closed nevertheless.
                self._file.close()
            self._file = None

    def _failure(self, error: OSError, what: str) -> StorageError:
        where = self._folder or Path(tempfile.gettempdir())
        return StorageError(
            f"the spill file in {where} cannot {what} episodes that wait for their turn: {error.strerror or error}",
            hint="free space there, or set TMPDIR to a folder with more space",
        )


def _n_bytes(chunk: Chunk) -> int:
    """Return the bytes of a chunk, with those of its infos."""
    tables = (chunk.env_infos, chunk.agent_infos, chunk.episode_infos)
    return chunk.n_bytes + sum(column.values.nbytes for column in chain(*(table.columns for table in tables)))
