"""Buffers between workers and whoever takes the episodes: batches come as they end, chunks go in order.

Within a lane, episodes go in the order of their numbers; an episode that travels in parts goes when all parts are
there, so that a rerun after a crash replaces all of it.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from rollout_cli.buffer_pool import BufferPool
from rollout_cli.chunk import Chunk, concatenate
from rollout_cli.packing import unpack_chunk
from rollout_cli.samplers.messages import Batch
from rollout_cli.samplers.plan import Order, PlanState
from rollout_cli.samplers.ranges import contiguous_ranges, shifted, up_to
from rollout_cli.samplers.spill import Handle, SpillStore

MEMORY_BYTES = 256 << 20
DISK_BYTES = 16 << 30

SMALL_BYTES = 16 << 10
JOINED_BYTES = 1 << 20
"""Chunks of less than `SMALL_BYTES` that follow each other are handed on as one of about `JOINED_BYTES`."""


class EpisodeBuffer(Protocol):
    """Takes batches, gives chunks."""

    def add(self, batch: Batch) -> None:
        """Take a batch of the current call."""

    def skip(self, number: int) -> None:
        """Go on without an episode, which does not come; parts of it may have come."""

    def passed(self, number: int) -> bool:
        """Return whether an episode that is skipped lies below one that was given, or below the plan's end."""

    def ready(self) -> Iterator[Chunk]:
        """Give what can go on now."""

    @property
    def is_full(self) -> bool:
        """Return whether no new numbers should be begun."""

    @property
    def n_waiting(self) -> int:
        """Return how many episodes that the plan needs are here and were not given, since one before them is not."""

    def close(self) -> None:
        """Forget everything."""


def episode_buffer(
    plan: PlanState, base: int, *, order: Order, memory_limit: int = MEMORY_BYTES, disk_limit: int = DISK_BYTES
) -> EpisodeBuffer:
    """Return the buffer for one call, whose offset 0 is episode number `base`."""
    store = SpillStore(memory_limit=memory_limit, disk_limit=disk_limit)
    return ReorderBuffer(plan, base, store) if order == "index" else ArrivalBuffer(store)


@dataclass(slots=True)
class _Entry:
    """Batches that begin at one offset: one of many episodes, or the parts of one."""

    handles: list[Handle]
    missing_parts: int
    numbers: Sequence[range]


@dataclass(slots=True)
class _Rest:
    """A chunk with gaps: its episodes from place `start` on, and their numbers."""

    chunk: Chunk
    start: int
    numbers: deque[range]


class ReorderBuffer:
    """Gives each lane's episodes in the order of their offsets, none twice, none above the plan's end."""

    def __init__(self, plan: PlanState, base: int, store: SpillStore) -> None:
        self._plan, self._base, self._store = plan, base, store
        self._next = [plan.first_of_lane(lane) for lane in range(plan.n_lanes)]
        self._entries: dict[int, _Entry] = {}
        # Chunks with gaps: what is left of them waits here, unpacked, under its own first offset.
        self._rests: dict[int, _Rest] = {}
        self._skipped: set[int] = set()
        self._memory = BufferPool()

    @property
    def is_full(self) -> bool:
        """Return whether memory and disk are used up."""
        return self._store.is_full

    def add(self, batch: Batch) -> None:
        """Take a batch of the current call; its numbers were not given before."""
        first = batch.numbers[0].start - self._base
        handle = self._store.put(batch.payload)
        entry = self._entries.get(first)
        if entry is None or batch.part is None or batch.part.index == 0:
            parts = batch.part.count if batch.part else 1
            if entry is not None:  # The parts that a worker sent before it died.
                for old in entry.handles:
                    self._store.take(old)
            self._entries[first] = _Entry([handle], parts - 1, batch.numbers)
        else:
            entry.handles.append(handle)
            entry.missing_parts -= 1

    def skip(self, number: int) -> None:
        """Go on without an episode, which does not come; parts of it may have come."""
        self._skipped.add(number - self._base)
        entry = self._entries.pop(number - self._base, None)
        for handle in entry.handles if entry else ():
            self._store.take(handle)

    def passed(self, number: int) -> bool:
        """Return whether an episode that is skipped lies below one that was given, or below the plan's end."""
        return number - self._base < self._next[self._plan.lane(number - self._base)]

    def ready(self) -> Iterator[Chunk]:
        """Give every chunk whose turn it is, lane by lane."""
        for lane in range(self._plan.n_lanes):
            yield from _joined(self._ready(lane))

    def _ready(self, lane: int) -> Iterator[Chunk]:
        while not self._ended(lane):
            if self._next[lane] in self._skipped:
                self._next[lane] += 1
                continue
            chunks = self._take(self._next[lane])
            if not chunks:
                return
            if chunks[0].part is None:
                chunks = [self._cut(lane, chunks[0])]
            self._next[lane] = int(chunks[-1].numbers[-1]) - self._base + 1
            yield from chunks

    def _ended(self, lane: int) -> bool:
        last = self._plan.last_of_lane(lane)
        return last is not None and self._next[lane] > last

    def _take(self, offset: int) -> list[Chunk]:
        """Return the chunks that begin at `offset`, if they are complete, up to a gap."""
        if offset in self._rests:
            return [self._up_to_a_gap(self._rests.pop(offset))]
        entry = self._entries.get(offset)
        if entry is None or entry.missing_parts:
            return []
        del self._entries[offset]
        chunks = [unpack_chunk(self._store.take(handle), self._memory.take) for handle in entry.handles]
        if chunks[0].part is not None:
            return chunks
        return [self._up_to_a_gap(_Rest(chunks[0], 0, deque(contiguous_ranges(chunks[0].numbers))))]

    def _up_to_a_gap(self, rest: _Rest) -> Chunk:
        """Return the episodes up to the first gap; keep what comes after it."""
        start, stop = rest.start, rest.start + len(rest.numbers.popleft())
        if rest.numbers:
            rest.start = stop
            self._rests[rest.numbers[0].start - self._base] = rest
        return rest.chunk.episodes(start, stop)

    def _cut(self, lane: int, chunk: Chunk) -> Chunk:
        """Return the chunk's episodes up to the plan's end."""
        last = self._plan.last_of_lane(lane)
        return chunk if last is None else chunk.episodes(0, min(chunk.n_episodes, last + 1 - self._next[lane]))

    @property
    def n_waiting(self) -> int:
        """Return how many episodes that the plan needs are here and were not given, since one before them is not."""
        whole = [entry.numbers for entry in self._entries.values() if not entry.missing_parts]
        held = itertools.chain(*whole, *(rest.numbers for rest in self._rests.values()))
        return sum(len(self._needed(shifted(numbers, -self._base))) for numbers in held)

    def _needed(self, offsets: range) -> range:
        return up_to(offsets, self._plan.last_of_lane(self._plan.lane(offsets[0])))

    def close(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._rests.clear()
        self._store.close()


def _joined(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """Give small chunks as one: whoever takes them would pay more for each than it costs to copy them together."""
    small: list[Chunk] = []
    size = 0
    for chunk in chunks:
        is_small = chunk.part is None and chunk.n_bytes < SMALL_BYTES
        if small and (size >= JOINED_BYTES or not is_small):
            yield concatenate(small)
            small, size = [], 0
        if is_small:
            small.append(chunk)
            size += chunk.n_bytes
        else:
            yield chunk
    if small:
        yield concatenate(small)


class ArrivalBuffer:
    """Gives episodes as they come."""

    def __init__(self, store: SpillStore) -> None:
        self._store = store
        self._parts: dict[int, list[Handle]] = {}
        self._whole: list[Handle] = []
        self._memory = BufferPool()

    @property
    def is_full(self) -> bool:
        """Return whether memory and disk are used up."""
        return self._store.is_full

    def add(self, batch: Batch) -> None:
        """Take a batch of the current call."""
        handle = self._store.put(batch.payload)
        if batch.part is None:
            self._whole.append(handle)
            return
        number = batch.numbers[0].start
        if batch.part.index == 0:
            for old in self._parts.pop(number, []):  # The parts that a worker sent before it died.
                self._store.take(old)
        self._parts.setdefault(number, []).append(handle)
        if batch.part.is_last:
            self._whole.extend(self._parts.pop(number))

    def skip(self, number: int) -> None:
        """Forget the parts of an episode that does not come."""
        for handle in self._parts.pop(number, []):
            self._store.take(handle)

    def passed(self, number: int) -> bool:
        """Return True: no order says what comes after what."""
        del number
        return True

    def ready(self) -> Iterator[Chunk]:
        """Give every whole episode that came."""
        waiting, self._whole = self._whole, []
        for handle in waiting:
            yield unpack_chunk(self._store.take(handle), self._memory.take)

    @property
    def n_waiting(self) -> int:
        """Return 0: no episode waits for another."""
        return 0

    def close(self) -> None:
        """Forget everything."""
        self._parts.clear()
        self._whole.clear()
        self._store.close()
