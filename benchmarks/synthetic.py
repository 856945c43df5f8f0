"""Workers that return ready-made episodes, to measure how fast the parent receives them (`--worker-class`).

All other parts are real: processes, leases, channels, ordering, dataset.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from rollout_cli import DefaultWorker, EnvSpec
from rollout_cli.episodes.chunk import Chunk
from rollout_cli.episodes.infos import InfoTable

_IMAGE = spaces.Box(0, 255, (210, 160, 3), np.uint8)
_VECTOR = spaces.Box(-np.inf, np.inf, (4,), np.float32)
_GROUP_ROWS = 8192


class SyntheticWorker(DefaultWorker):
    """Returns the same ready-made episodes repeatedly, under its assigned numbers."""

    observation_space: ClassVar[spaces.Box]
    length: ClassVar[int]

    def worker_init(self) -> None:
        """Create as many episodes as a worker sends in one message."""
        self._group = -(-_GROUP_ROWS // self.length) if self.observation_space is _VECTOR else 1
        self._ready_made = _episodes(self.observation_space, self._group, self.length, self.worker_number)
        self._numbers: list[int] = []
        self._numbers_left: deque[int] = deque()

    @property
    def env_spec(self) -> EnvSpec:
        """Return the spaces of the episodes."""
        return EnvSpec(self.observation_space, spaces.Discrete(2), self.length)

    def assign(self, numbers: Iterable[range]) -> None:
        """Add episode numbers to return."""
        self._numbers_left.extend(chain.from_iterable(numbers))

    def retract(self, *, above: int | None) -> None:
        """Drop the numbers above `above`, or all numbers if it is None."""
        self._numbers_left = deque(n for n in self._numbers_left if above is not None and n <= above)

    @property
    def has_work(self) -> bool:
        """Return True if a number waits."""
        return bool(self._numbers_left)

    def advance(self, deadline: float, enough: float = math.inf) -> None:
        """Finish as many numbers as fit into one message."""
        del deadline, enough
        while self._numbers_left and len(self._numbers) < self._group:
            self._numbers.append(self._numbers_left.popleft())

    def take(self, *, everything: bool = False) -> list[Chunk]:
        """Return the ready-made episodes under the finished numbers."""
        del everything
        numbers, self._numbers = np.array(self._numbers, np.int64), []
        return (
            [replace(self._ready_made.episodes(0, len(numbers)), numbers=numbers, seeds=numbers)]
            if len(numbers)
            else []
        )

    @property
    def finished_rows(self) -> int:
        """Return the steps of the finished numbers."""
        return len(self._numbers) * self.length

    @property
    def finished_bytes(self) -> int:
        """Return their bytes."""
        return self._ready_made.n_bytes * len(self._numbers) // self._group


class ShortEpisodes(SyntheticWorker):
    """22 steps of four floats: CartPole with random actions."""

    observation_space, length = _VECTOR, 22


class LongEpisodes(SyntheticWorker):
    """500 steps of four floats: CartPole with a policy that balances."""

    observation_space, length = _VECTOR, 500


class ImageEpisodes(SyntheticWorker):
    """250 frames of 210 x 160 x 3 bytes, about 25 MB, so each travels in parts."""

    observation_space, length = _IMAGE, 250


def _episodes(space: spaces.Box, count: int, length: int, seed: int) -> Chunk:
    rng = np.random.default_rng(seed)
    rows = count * length
    return Chunk(
        numbers=np.arange(count),
        seeds=np.arange(count),
        lengths=np.full(count, length, np.int64),
        terminated=np.ones(count, bool),
        truncated=np.zeros(count, bool),
        workers=np.full(count, seed, np.int32),
        wall_times=np.full(count, 1e-3),
        observations=(_observations(space, rows, rng),),
        actions=(rng.integers(2, size=rows),),
        rewards=np.ones(rows),
        last_observations=(_observations(space, count, rng),),
        env_infos=InfoTable(rows),
        agent_infos=InfoTable(rows),
        episode_infos=InfoTable(count),
    )


def _observations(space: spaces.Box, rows: int, rng: np.random.Generator) -> Any:
    if space.dtype != np.uint8:
        return rng.standard_normal((rows, *space.shape)).astype(space.dtype)
    # A plain background and a moving square: compressible like game frames, unlike noise.
    frames = np.full((rows, *space.shape), 87, np.uint8)
    for frame, (top, left) in zip(frames, rng.integers(0, 120, (rows, 2)), strict=True):
        frame[top : top + 16, left : left + 16] = rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)
    return frames
