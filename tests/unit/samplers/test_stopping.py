"""A run that is asked to end: what holds up episodes that ended runs on for the grace time, and nothing else does."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollout_cli.chunk import Chunk
from rollout_cli.samplers.instructions import SendTo
from rollout_cli.samplers.leasing import FixedLeases
from rollout_cli.samplers.messages import Batch, Continue
from rollout_cli.samplers.plan import EpisodesPerWorker, MinTimesteps
from tests.unit.samplers.begun_machines import BASE, batch, machine_of, open_offsets
from tests.unit.samplers.simulation import SimulatedPool, SimulatedSampler


def numbers_of(chunks: Sequence[Chunk]) -> list[int]:
    return [int(number) for chunk in chunks for number in chunk.numbers]


def test_only_what_lies_below_the_highest_that_ended_runs_on() -> None:
    """Worker 1 ended offsets 2 and 3: worker 0 goes on with 0 and 1, and worker 1 drops the rest of its lease."""
    machine = machine_of(MinTimesteps(1000))
    before = open_offsets(machine, 0) | open_offsets(machine, 1)
    ended = sorted(open_offsets(machine, 1))[:2]
    machine.handle(batch(1, ended), 1.0)
    instructions = machine.stop()
    kept = {offset for offset in before if offset < ended[-1]} - set(ended)
    assert kept == open_offsets(machine, 0) | open_offsets(machine, 1)
    assert {SendTo(worker, Continue((), BASE + ended[-1])) for worker in (0, 1)} >= set(instructions)
    assert not machine.stopped
    finish = machine.handle(batch(0, sorted(open_offsets(machine, 0))), 2.0)
    for offset in sorted(open_offsets(machine, 1)):
        finish += machine.handle(batch(1, [offset]), 2.0)
    assert [] == [one for one in finish if isinstance(one, SendTo)]
    assert machine.stopped


def test_nothing_runs_on_where_nothing_ended() -> None:
    """Without an episode that waits for others there is nothing to wait for."""
    machine = machine_of(MinTimesteps(1000))
    assert 2 == len(machine.stop())
    assert machine.stopped


def test_each_lane_has_a_ceiling_of_its_own() -> None:
    """Under `exact` a worker's episodes wait for its own alone."""
    machine = machine_of(EpisodesPerWorker(10), lease=2)
    machine.handle(batch(0, [1]), 1.0)
    machine.stop()
    assert ({0}, set()) == (open_offsets(machine, 0), open_offsets(machine, 1))


class GraceAfter:
    """Asks a run to end once the sampler has taken so many batches."""

    def __init__(self, batches: int, seconds: float) -> None:
        self.ended: set[int] = set()
        self._left, self._seconds = batches, seconds

    def note(self, event: Batch) -> None:
        if self._left > 0:
            self._left -= 1
            for numbers in event.numbers:
                self.ended.update(numbers)

    def __call__(self) -> float | None:
        return self._seconds if self._left == 0 else None


def stopped_run(pool: SimulatedPool, grace: GraceAfter) -> list[int]:
    """Return the numbers that a run without an end hands on until it is asked to end."""
    wait = pool.wait

    def noting(timeout: float | None = None) -> Iterator[Any]:
        for event in wait(timeout):
            if isinstance(event, Batch):
                grace.note(event)
            yield event

    pool.wait = noting  # type: ignore[method-assign]
    with pytest.MonkeyPatch.context() as patch:
        return numbers_of(list(SimulatedSampler(pool).stream(MinTimesteps(10**9), FixedLeases(4), patch, grace=grace)))


@given(
    seed=st.integers(0, 2**32),
    table=st.lists(st.integers(1, 60), min_size=1, max_size=20),
    at_once=st.sampled_from([1, 3]),
    batches=st.integers(1, 30),
)
@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
def test_with_time_enough_nothing_that_ended_is_lost(seed: int, table: list[int], at_once: int, batches: int) -> None:
    """What the sampler had when it was asked to end comes, with all before it, under every interleaving."""
    pool = SimulatedPool(
        lambda number: table[number % len(table)], 3, seed, (5, 1, 9), (1.0, 0.3, 2.0), capacity=2, at_once=at_once
    )
    grace = GraceAfter(batches, math.inf)
    numbers = stopped_run(pool, grace)
    assert list(range(len(numbers))) == numbers
    assert grace.ended <= set(numbers)


def test_without_time_the_run_ends_with_the_prefix_that_is_there() -> None:
    """Worker 0 never comes to the end of episode 0, which all others wait for."""
    pool = SimulatedPool(lambda number: 10**6 if number == 0 else 1, 2, 0, (1, 1), (1.0, 1.0), capacity=2)
    assert [] == stopped_run(pool, GraceAfter(5, 1.0))
