"""ReorderBuffer: accepts finished episodes in any order, and yields each partition's in number order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rollout_cli.episodes.chunk import AnyChunk, Chunk
from rollout_cli.samplers.plan import PlanState, contiguous_ranges

MOST_BYTES = 1 << 30
"""Capacity of the buffer: when it is full, the sampler leases no new numbers."""


@dataclass(slots=True)
class _Entry:
    """Consecutive episodes from one number up to `stop`; `chunk` is None for rejected or skipped episodes."""

    stop: int
    chunk: AnyChunk | None = None


class ReorderBuffer:
    """The buffer of one call: yields no episode twice, and none above the plan's end.

    It accepts episodes even if it is full, because workers never drop a finished episode.
    """

    def __init__(self, plan: PlanState, most_bytes: int = MOST_BYTES) -> None:
        self._plan = plan
        self._most_bytes = most_bytes
        self._next = list(plan.firsts)
        self._entries: dict[int, _Entry] = {}
        self._n_bytes = 0
        self.stop = 0  # One past the last episode that was yielded or passed over.

    @property
    def is_full(self) -> bool:
        """Whether the waiting episodes use all of the buffer's memory."""
        return self._n_bytes >= self._most_bytes

    @property
    def n_waiting(self) -> int:
        """Number of episodes within the plan that wait for an earlier episode."""
        return sum(
            max(0, min(entry.stop, self._plan.stops[self._plan.partition(number)]) - number)
            for number, entry in self._entries.items()
            if entry.chunk is not None
        )

    def is_past(self, number: int) -> bool:
        """Return whether an episode's number is below the next one to yield."""
        return number < self._next[self._plan.partition(number)]

    def add(self, chunk: AnyChunk) -> None:
        """Add finished episodes; none of them may have been added before."""
        stop = 0
        for numbers in contiguous_ranges(chunk.numbers):
            start = stop
            stop += len(numbers)
            episodes = chunk.episodes(start, stop)
            self._n_bytes += _size(episodes)
            self._entries[numbers.start] = _Entry(numbers.stop, episodes)

    def pass_over(self, numbers: range) -> None:
        """Do not wait for these episodes, which were rejected or skipped."""
        self._entries[numbers.start] = _Entry(numbers.stop)

    def ready(self) -> Iterator[AnyChunk]:
        """Yield every chunk that no longer waits for an earlier episode, partition by partition."""
        for partition, last_stop in enumerate(self._plan.stops):
            while (number := self._next[partition]) < last_stop:
                entry = self._entries.pop(number, None)
                if entry is None:
                    break
                stop = self._next[partition] = min(entry.stop, last_stop)
                self.stop = max(self.stop, stop)
                if entry.chunk is not None:
                    self._n_bytes -= _size(entry.chunk)
                    yield entry.chunk.episodes(0, stop - number)


def _size(chunk: AnyChunk) -> int:
    """Return the size of a chunk in bytes, including its infos if the chunk is in this process."""
    n_bytes = chunk.n_bytes
    if isinstance(chunk, Chunk):
        for table in (chunk.env_infos, chunk.agent_infos, chunk.episode_infos):
            n_bytes += sum(column.values.nbytes for column in table.columns)
    return n_bytes
