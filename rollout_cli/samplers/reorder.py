"""ReorderBuffer: takes finished episodes as they come, and yields each partition's in number order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from rollout_cli.episodes.chunk import AnyChunk, ChunkRef
from rollout_cli.samplers.plan import PlanState, contiguous_ranges


class BufferLimits(NamedTuple):
    """From how many bytes on the buffer is full: the sampler leases no new numbers."""

    here: int = 1 << 30  # In this process.
    elsewhere: int = 16 << 30  # Behind references.


@dataclass(slots=True)
class _Entry:
    """Episodes without a gap that begin at one number, or the parts of one episode."""

    stop: int
    chunks: list[AnyChunk] = field(default_factory=list)
    missing_parts: int = 0


class ReorderBuffer:
    """The buffer of one call: gives no episode twice, and none above the plan's end.

    It takes what comes, also when it is full: a worker never drops a finished episode.
    """

    def __init__(self, plan: PlanState, limits: BufferLimits | None = None) -> None:
        self._plan, self._limits = plan, limits or BufferLimits()
        self._next = list(plan.firsts)
        self._entries: dict[int, _Entry] = {}
        self._bytes_here = self._bytes_elsewhere = 0
        self.stop = 0  # One past the last episode that was given, or left out on the way there.

    @property
    def is_full(self) -> bool:
        """Return whether the waiting episodes use up their memory."""
        return self._bytes_here >= self._limits.here or self._bytes_elsewhere >= self._limits.elsewhere

    @property
    def n_waiting(self) -> int:
        """Return how many episodes that the plan needs wait for one before them."""
        entries = self._entries.items()
        whole = {number: entry.stop for number, entry in entries if entry.chunks and not entry.missing_parts}
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
            self._count(chunk)
            self._entries[number].chunks.append(chunk)
            self._entries[number].missing_parts -= 1
            return
        stop = 0
        for numbers in contiguous_ranges(chunk.numbers):
            start, stop = stop, stop + len(numbers)
            episodes = chunk.episodes(start, stop)
            self._count(episodes)
            self._entries[numbers.start] = _Entry(numbers.stop, [episodes])

    def pass_over(self, numbers: range) -> None:
        """Continue without episodes that do not come: rejected ones, or one that is skipped."""
        self._drop(numbers.start)  # The parts of one that is skipped may have come.
        self._entries[numbers.start] = _Entry(numbers.stop)

    def _drop(self, number: int) -> None:
        entry = self._entries.pop(number, None)
        if entry is not None:
            for chunk in entry.chunks:
                self._count(chunk, sign=-1)

    def ready(self) -> Iterator[AnyChunk]:
        """Yield every chunk whose turn it is, partition by partition."""
        for partition, end in enumerate(self._plan.stops):
            while (number := self._next[partition]) < end:
                entry = self._entries.get(number)
                if entry is None or entry.missing_parts:
                    break
                del self._entries[number]
                stop = self._next[partition] = min(entry.stop, end)
                self.stop = max(self.stop, stop)
                for chunk in entry.chunks:
                    self._count(chunk, sign=-1)
                    yield chunk if chunk.part is not None else chunk.episodes(0, stop - number)

    def _count(self, chunk: AnyChunk, *, sign: int = 1) -> None:
        if isinstance(chunk, ChunkRef):
            self._bytes_elsewhere += sign * chunk.n_bytes
            return
        # With those of its infos.
        tables = (chunk.env_infos, chunk.agent_infos, chunk.episode_infos)
        infos = sum(column.values.nbytes for column in chain(*(table.columns for table in tables)))
        self._bytes_here += sign * (chunk.n_bytes + infos)
