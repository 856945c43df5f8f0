"""Workers that hand over ready-made episodes, to find how fast the parent takes them in.

Everything else is the product's own: processes, leases, pipe, reordering, dataset. They are given to `--worker-class`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rollout_cli.chunk import Chunk
from rollout_cli.episode_batch import EnvSpec, EpisodeBatch
from rollout_cli.infos import InfoTable
from rollout_cli.samplers.worker_process import FLUSH_ROWS
from rollout_cli.workers import NumberedWorker

Array = npt.NDArray[Any]

_IMAGE = spaces.Box(0, 255, (210, 160, 3), np.uint8)
_VECTOR = spaces.Box(-np.inf, np.inf, (4,), np.float32)


class SyntheticWorker(NumberedWorker):
    """Gives its ready-made episodes again and again, under the numbers that it is assigned.

    Attributes:
        observation_space: Of its episodes.
        length: Steps of each.
        group: How many it hands over at a time: about what a worker sends in one message.
    """

    observation_space: ClassVar[spaces.Box]
    length: ClassVar[int]
    group: ClassVar[int]

    def worker_init(self) -> None:
        """Make the episodes."""
        self._ready = _episodes(self.observation_space, self.group, self.length, self.worker_number)
        self._finished: list[int] = []

    def update_agent(self, agent_update: Any) -> None:
        """Nothing is asked of a policy."""

    def update_env(self, env_update: Any) -> None:
        """Nothing is stepped."""

    @property
    def env_spec(self) -> EnvSpec:
        """Return the spaces of its episodes."""
        return EnvSpec(self.observation_space, spaces.Discrete(2), self.length)

    def start_episode(self) -> None:
        """Do nothing: an episode is ready before it begins."""

    def step_episode(self) -> bool:
        """End the episode at once."""
        self._finished.append(self._next_number())
        return True

    def advance(self, deadline: float) -> None:
        """Finish as many numbers as go into one message."""
        del deadline
        while self._waiting and len(self._finished) < self.group:
            self._finished.append(self._next_number())

    def collect_episode(self) -> EpisodeBatch:
        """Return what is finished."""
        chunk = self.take()
        return EpisodeBatch.from_chunks(self.env_spec, [chunk] if chunk else [])

    def take(self) -> Chunk | None:
        """Return the ready-made episodes under the numbers that are finished."""
        count = len(self._finished)
        if count == 0:
            return None
        numbers = np.array(self._finished, np.int64)
        self._finished = []
        return replace(self._ready.episodes(0, count), numbers=numbers, seeds=numbers)

    @property
    def finished_numbers(self) -> list[int]:
        """Return the numbers that wait to be taken."""
        return self._finished

    @property
    def finished_lengths(self) -> list[int]:
        """Return their lengths, in the same order."""
        return [self.length] * len(self._finished)

    @property
    def finished_rows(self) -> int:
        """Return their steps."""
        return len(self._finished) * self.length

    @property
    def running(self) -> bool:
        """Return False: nothing is ever under way."""
        return False


class ShortEpisodes(SyntheticWorker):
    """22 steps of four floats: CartPole with random actions."""

    observation_space, length, group = _VECTOR, 22, -(-FLUSH_ROWS // 22)


class LongEpisodes(SyntheticWorker):
    """500 steps of four floats: CartPole with a policy that balances."""

    observation_space, length, group = _VECTOR, 500, -(-FLUSH_ROWS // 500)


class ImageEpisodes(SyntheticWorker):
    """250 frames of 210 x 160 x 3 bytes, about 25 MB, so each travels in parts."""

    observation_space, length, group = _IMAGE, 250, 1


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


def _observations(space: spaces.Box, rows: int, rng: np.random.Generator) -> Array:
    if space.dtype != np.uint8:
        return rng.standard_normal((rows, *space.shape)).astype(space.dtype)
    # A flat ground and a square that wanders: as a game's frames, unlike noise, it is made to be compressed.
    frames = np.full((rows, *space.shape), 87, np.uint8)
    for frame, (top, left) in zip(frames, rng.integers(0, 120, (rows, 2)), strict=True):
        frame[top : top + 16, left : left + 16] = rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)
    return frames
