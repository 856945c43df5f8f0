"""EarlyEpisodes: the first run of a few short episodes, kept to be compared with another one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from rollout_cli.chunk import Chunk
from rollout_cli.packing import pack, unpack

CHUNKS_LOOKED_AT = 8
KEPT_A_WORKER = 2
KEPT_EPISODES = 8
KEPT_BYTES = 16 << 20
"""How far into the run, and how much of it, episodes are kept."""

_RUNS_AGAIN = 0
"""The worker that a plan of one episode goes to, where it lives: the first one."""


class EarlyEpisodes:
    """Copies of a few short episodes of a run's first chunks."""

    def __init__(self) -> None:
        self._left = CHUNKS_LOOKED_AT
        self._room = KEPT_BYTES
        self._by_worker: dict[int, int] = {}
        self.kept: list[Chunk] = []

    def keep(self, chunk: Chunk) -> None:
        """Take copies of the chunk's first episodes of workers that not enough is known of."""
        if self._left == 0 or len(self.kept) == KEPT_EPISODES:
            return
        self._left -= 1
        if chunk.part is not None:
            return  # An episode that comes in parts is too big.
        for worker in sorted(set(chunk.workers.tolist())):
            wanted = KEPT_A_WORKER - self._by_worker.get(worker, 0)
            for at in np.flatnonzero(chunk.workers == worker)[: max(0, wanted)].tolist():
                self._copy(chunk.episodes(at, at + 1), worker)

    def _copy(self, episode: Chunk, worker: int) -> None:
        # What came in a message is a view of it, and would keep all of it.
        packed = b"".join(pack(episode))
        if len(packed) > self._room or len(self.kept) == KEPT_EPISODES:
            return
        self._room -= len(packed)
        self._by_worker[worker] = self._by_worker.get(worker, 0) + 1
        self.kept.append(unpack(packed))

    def chosen(self, most_steps: float) -> list[Chunk]:
        """Return two episodes of at most so many steps together, or none; last the one with the lowest number.

        They are run again in falling order, so that neither follows the episode that it followed before. Those are
        preferred that another worker ran than the one which runs them again.
        """
        preferred = sorted(self.kept, key=_preference)
        pairs: list[Sequence[Chunk]] = list(combinations(preferred, 2))
        if len(preferred) == 1:
            pairs = [preferred]
        for pair in pairs:
            if sum(episode.n_steps for episode in pair) <= most_steps:
                return sorted(pair, key=number_of, reverse=True)
        return []


def number_of(episode: Chunk) -> int:
    """Return the number of a chunk's only episode."""
    return int(episode.numbers[0])


def _preference(episode: Chunk) -> tuple[bool, int]:
    return int(episode.workers[0]) == _RUNS_AGAIN, number_of(episode)
