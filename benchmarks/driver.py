"""The CPU load of a driver whose episodes stay on other machines: `python -m benchmarks.driver`.

Simulated actors reply at once with the metadata of episodes that were never run. The measured CPU time is the
driver's own, without Ray's: unpacking replies, leases, ordering, and cutting segments.
"""

from __future__ import annotations

import argparse
import itertools
import pickle
import time
import zlib
from collections import deque
from typing import Any

import gymnasium
import numpy as np

from rollout_cli import MinTimesteps
from rollout_cli.dataset.layout import SegmentId
from rollout_cli.dataset.schema import DatasetSchema, SpaceSchema
from rollout_cli.dataset.segments import Partition, SizeLimits, WriteQueue
from rollout_cli.envs.describe import env_spec_of
from rollout_cli.episodes.chunk import Chunk, ChunkRef
from rollout_cli.samplers.messages import Batch, Start, Started, Stop, ToWorker
from rollout_cli.samplers.pool import Event
from rollout_cli.samplers.ray.pool import RaySampler

ROWS = 8192  # Of a chunk.


def nowhere() -> Chunk:
    """Refuse to load episodes."""
    raise NotImplementedError("these episodes were never run")


class SyntheticPool:
    """A `Pool` of simulated workers that finish leased episodes at once, each with `length` steps."""

    def __init__(self, length: int) -> None:
        self._length, self._generation = length, 0
        self._leased: dict[int, deque[int]] = {}
        self._started: list[Event] = []
        self._turns = itertools.cycle([0])
        self.seconds = 0.0  # What the actors would have paid for, and not the driver.

    def start(self, worker: int) -> None:
        self._leased[worker] = deque()
        self._turns = itertools.cycle(self._leased)

    def send(self, worker: int, command: ToWorker) -> None:
        if isinstance(command, Start):
            spec = env_spec_of(gymnasium.make("CartPole-v1"), None) if not worker else SPEC
            self._generation = command.generation
            self._started.append(Started(worker, command.generation, spec))
        if isinstance(command, Stop):
            self._leased[worker].clear()
        for numbers in getattr(command, "lease", ()):
            self._leased[worker].extend(numbers)

    def wait(self) -> list[Event]:
        if self._started:
            started, self._started = self._started, []
            return started
        began = time.process_time()
        worker = next(worker for worker in self._turns if self._leased[worker])
        mine = self._leased[worker]
        numbers = np.array([mine.popleft() for _ in range(min(len(mine), max(1, ROWS // self._length)))])
        reply = zlib.compress(pickle.dumps(self._reference(numbers)), 1)
        self.seconds += time.process_time() - began
        light: ChunkRef = pickle.loads(zlib.decompress(reply))  # noqa: S301  Packed three lines above.
        return [Batch(worker, self._generation, light)]

    def _reference(self, numbers: Any) -> ChunkRef:
        count = len(numbers)
        lengths, nothing = np.full(count, self._length), np.zeros(count, np.int64)
        return ChunkRef(numbers, lengths, nothing, 32 * ROWS, nowhere, 0, 1.0)

    def close(self) -> None: ...


SPEC = env_spec_of(gymnasium.make("CartPole-v1"), None)


class SyntheticSampler(RaySampler):
    """A RaySampler with a simulated cluster."""

    length = 0

    def _make_pool(self) -> Any:
        self.pool = SyntheticPool(self.length)
        return self.pool


def measure(n_actors: int, length: int, n_steps: int) -> float:
    """Return the driver's CPU seconds per million steps."""
    sampler = SyntheticSampler("random", "CartPole-v1", n_workers=n_actors, seed=0)
    sampler.length = length
    schema = DatasetSchema.of(SpaceSchema.of(SPEC), {}, {})
    queue = WriteQueue(lambda _: None)  # type: ignore[arg-type,return-value]
    partition = Partition(schema, SizeLimits(), queue, SegmentId(1, 0, 0), first_number=0)
    sampler.wait_until_started()
    began = time.process_time()
    for chunk in sampler.stream_refs(MinTimesteps(n_steps)):
        partition.write(chunk, chunk.numbers)
    spent = time.process_time() - began - sampler.pool.seconds
    queue.stop()
    sampler.shutdown_worker()
    return spent / n_steps * 1e6


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description="Measure the CPU load of a driver by episode length.")
    parser.add_argument("--actors", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=100_000_000)
    asked = parser.parse_args()
    print(
        f"| steps an episode | seconds of the driver for 10^9 steps, {asked.actors:,} actors | steps/s of a full core |"
    )
    print("| --- | --- | --- |")
    for length in (22, 200, 1000):
        seconds = measure(asked.actors, length, asked.steps)
        print(f"| {length:,} | {seconds * 1e3:,.0f} | {1e6 / seconds:,.0f} |")


if __name__ == "__main__":
    main()
