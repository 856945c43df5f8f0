"""ReorderBuffer: takes finished episodes as they come, and yields each partition's in number order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rollout_cli.episodes.chunk import AnyChunk, Chunk
from rollout_cli.samplers.plan import PlanState, contiguous_ranges

MOST_BYTES = 1 << 30
"""From so many on the buffer is full: the sampler leases no new numbers."""


@dataclass(slots=True)
class _Entry:
    """Episodes without a gap that begin at one number; none where they do not come."""

    stop: int
    chunk: AnyChunk | None = None


class ReorderBuffer:
    """The buffer of one call: gives no episode twice, and none above the plan's end.

    It takes what comes, also when it is full: a worker never drops a finished episode.
    """

    def __init__(self, plan: PlanState, most_bytes: int = MOST_BYTES) -> None:
        self._plan = plan
        self._most_bytes = most_bytes
        self._next = list(plan.firsts)
        self._entries: dict[int, _Entry] = {}
        self._n_bytes = 0
        self.stop = 0  # One past the last episode that was given, or left out on the way there.

    @property
    def is_full(self) -> bool:
        """Return whether the waiting episodes use up their memory."""
        return self._n_bytes >= self._most_bytes

    @property
    def n_waiting(self) -> int:
        """Return how many episodes that the plan needs wait for one before them."""
        return sum(
            max(0, min(entry.stop, self._plan.stops[self._plan.partition(number)]) - number)
            for number, entry in self._entries.items()
            if entry.chunk is not None
        )

    def is_past(self, number: int) -> bool:
        """Return whether an episode lies below the one that comes next."""
        return number < self._next[self._plan.partition(number)]

    def add(self, chunk: AnyChunk) -> None:
        """Take finished episodes that were not given before."""
        stop = 0
        for numbers in contiguous_ranges(chunk.numbers):
            start = stop
            stop += len(numbers)
            episodes = chunk.episodes(start, stop)
            self._n_bytes += _size(episodes)
            self._entries[numbers.start] = _Entry(numbers.stop, episodes)

    def pass_over(self, numbers: range) -> None:
        """Continue without episodes that do not come: rejected ones, or one that is skipped."""
        self._entries[numbers.start] = _Entry(numbers.stop)

    def ready(self) -> Iterator[AnyChunk]:
        """Yield every chunk whose turn it is, partition by partition."""
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
    """Return the bytes of a chunk, with those of its infos where it is here."""
    n_bytes = chunk.n_bytes
    if isinstance(chunk, Chunk):
        for table in (chunk.env_infos, chunk.agent_infos, chunk.episode_infos):
            n_bytes += sum(column.values.nbytes for column in table.columns)
    return n_bytes
