"""ReorderBuffer: takes finished episodes as they come, and gives each partition's in the order of their numbers."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import IO

from rollout_cli.episodes.chunk import AnyChunk, Chunk, ChunkRef
from rollout_cli.errors import StorageError
from rollout_cli.samplers.plan import PlanState, contiguous_ranges

MEMORY_BYTES = 256 << 20
"""So much waits in memory, and what is more in one file without a name."""

DISK_BYTES = 16 << 30
"""From so many bytes in the file on the buffer is full: it takes more, but the sampler leases no new numbers."""


@dataclass(slots=True)
class _Entry:
    """Episodes without a gap that begin at one number, or the parts of one episode."""

    stop: int
    kept: list[AnyChunk | int] = field(default_factory=list)  # In memory, or the place in the file.
    missing_parts: int = 0


class ReorderBuffer:
    """The buffer of one call: gives no episode twice, and none above the plan's end.

    Its file is in `folder`, by default where `tempfile` puts it (`TMPDIR`). Where it cannot be written or read, `add`
    and `ready` raise a StorageError.
    """

    def __init__(self, plan: PlanState, folder: Path | None = None) -> None:
        self._plan, self._folder = plan, folder
        self._next = list(plan.firsts)
        self._entries: dict[int, _Entry] = {}
        self._skipped: set[int] = set()
        self._in_memory = self._on_disk = 0  # Bytes.
        self._file: IO[bytes] | None = None
        self._n_in_file = 0

    @property
    def is_full(self) -> bool:
        """Return whether memory and disk are used up: what is on disk is there because it had no place in memory.

        References stay in memory, but what they stand for takes as much, and waits there or on a disk elsewhere.
        """
        return max(self._on_disk, self._in_memory) >= DISK_BYTES

    @property
    def n_waiting(self) -> int:
        """Return how many episodes that the plan needs wait for one before them."""
        whole = {number: entry.stop for number, entry in self._entries.items() if not entry.missing_parts}
        stops = self._plan.stops
        return sum(max(0, min(stop, stops[self._plan.partition(n)]) - n) for n, stop in whole.items())

    def is_past(self, number: int) -> bool:
        """Return whether an episode lies below the one that comes next."""
        return number < self._next[self._plan.partition(number)]

    def add(self, chunk: AnyChunk) -> None:
        """Take finished episodes that were not given before, or one part of a long one."""
        if chunk.part is not None:
            number = int(chunk.numbers[0])
            if chunk.part.index == 0:
                self._drop(number)  # The parts that a worker sent before it died.
                self._entries[number] = _Entry(number + 1, missing_parts=chunk.part.count)
            self._entries[number].kept.append(self._put(chunk))
            self._entries[number].missing_parts -= 1
            return
        stop = 0
        for numbers in contiguous_ranges(chunk.numbers):
            start, stop = stop, stop + len(numbers)
            # A chunk whose turn it is need not go by way of the disk.
            is_next = numbers.start == self._next[self._plan.partition(numbers.start)]
            kept = self._put(chunk.episodes(start, stop), in_memory=is_next)
            self._entries[numbers.start] = _Entry(numbers.stop, [kept])

    def skip(self, number: int) -> None:
        """Continue without an episode, which does not come; parts of it may have come."""
        self._skipped.add(number)
        self._drop(number)

    def _drop(self, number: int) -> None:
        entry = self._entries.pop(number, None)
        for kept in entry.kept if entry else ():
            self._taken(kept)

    def ready(self) -> Iterator[AnyChunk]:
        """Give every chunk whose turn it is, partition by partition."""
        for partition, end in enumerate(self._plan.stops):
            while (number := self._next[partition]) < end:
                if number in self._skipped:
                    self._next[partition] += 1
                    continue
                entry = self._entries.get(number)
                if entry is None or entry.missing_parts:
                    break
                del self._entries[number]
                stop = self._next[partition] = min(entry.stop, end)
                for kept in entry.kept:
                    chunk = self._taken(kept)
                    yield chunk if chunk.part is not None else chunk.episodes(0, stop - number)

    def close(self) -> None:
        """Forget everything."""
        self._entries.clear()
        if self._file is not None:
            with suppress(OSError):  # Of a full disk, which was reported; it is closed nevertheless.
                self._file.close()
            self._file = None

    # -- memory and disk -------------------------------------------------------------------------------------------

    def _put(self, chunk: AnyChunk, *, in_memory: bool = False) -> AnyChunk | int:
        """Keep a chunk: in memory where there is room, or in any case; return it, or its place in the file."""
        size = _n_bytes(chunk)
        if in_memory or isinstance(chunk, ChunkRef) or self._in_memory + size <= MEMORY_BYTES:
            self._in_memory += size
            return chunk
        with self._reporting():
            if self._file is None:
                # Without a name: whatever happens to this process, the disk gets the space back.
                self._file = tempfile.TemporaryFile(prefix="rollout-spill-", dir=self._folder)  # noqa: SIM115
            place = self._file.seek(self._on_disk)
            pickle.dump(chunk, self._file, protocol=5)
            self._file.flush()
            self._on_disk = self._file.tell()
        self._n_in_file += 1
        return place

    def _taken(self, kept: AnyChunk | int) -> AnyChunk:
        """Return a kept chunk, and forget it."""
        if not isinstance(kept, int):
            self._in_memory -= _n_bytes(kept)
            return kept
        assert self._file is not None
        with self._reporting():
            self._file.seek(kept)
            chunk: Chunk = pickle.load(self._file)  # noqa: S301  It was pickled by this package's own process.
            self._n_in_file -= 1
            if not self._n_in_file:
                self._on_disk = self._file.truncate(0)
        return chunk

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            where = self._folder or Path(tempfile.gettempdir())
            reason = error.strerror or error
            raise StorageError(
                f"episodes that wait for their turn cannot be kept in a spill file in {where}: {reason}",
                hint="free space there, or set TMPDIR to a folder with more space",
            ) from error


def _n_bytes(chunk: AnyChunk) -> int:
    """Return the bytes of a chunk, with those of its infos."""
    if isinstance(chunk, ChunkRef):
        return chunk.n_bytes
    tables = (chunk.env_infos, chunk.agent_infos, chunk.episode_infos)
    return chunk.n_bytes + sum(column.values.nbytes for column in chain(*(table.columns for table in tables)))
