"""Both state machines together, under every interleaving: a run always ends, and equals the serial run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollout_cli.chunk import Chunk
from rollout_cli.packing import pack
from rollout_cli.samplers.leasing import FixedLeases, LeaseSizer, ThroughputLeases
from rollout_cli.samplers.plan import Episodes, EpisodesPerWorker, MinTimesteps, Order, Plan
from rollout_cli.samplers.spill import Handle, Payload, SpillStore
from rollout_cli.samplers.supervision import Supervision
from tests.unit.samplers.counting_worker import chunk_of
from tests.unit.samplers.simulation import SimulatedPool, SimulatedSampler, serial_prefix

N_EXAMPLES = 300

plans = st.one_of(
    st.integers(1, 300).map(MinTimesteps),
    st.tuples(st.integers(0, 20), st.integers(1, 60)).map(lambda pair: Episodes(pair[0], sum(pair))),
    st.integers(1, 20).map(EpisodesPerWorker),
)


@st.composite
def samplers(draw: st.DrawFn) -> SimulatedSampler:
    """Return a sampler with 1 to 5 workers of one or several episodes at once, small ways back and small buffers."""
    table = draw(st.lists(st.one_of(st.integers(1, 3), st.integers(1, 60)), min_size=1, max_size=20))
    n_workers = draw(st.integers(1, 5))
    pool = SimulatedPool(
        lengths=lambda number: table[number % len(table)],
        n_workers=n_workers,
        seed=draw(st.integers(0, 2**32)),
        speeds=draw(st.lists(st.integers(1, 50), min_size=n_workers, max_size=n_workers)),
        weights=draw(st.lists(st.floats(0.05, 20), min_size=n_workers + 1, max_size=n_workers + 1)),
        capacity=draw(st.integers(1, 4)),
        at_once=draw(st.sampled_from([1, 1, 3, 8])),
    )
    return SimulatedSampler(
        pool,
        memory_limit=draw(st.sampled_from([0, 2000, 1 << 20])),
        disk_limit=draw(st.sampled_from([1, 4000, 1 << 20])),
    )


@st.composite
def sizers(draw: st.DrawFn, n_workers: int) -> LeaseSizer:
    """Return leases of a fixed size, or by throughput."""
    size = draw(st.sampled_from([1, 4, 64, None]))
    return ThroughputLeases(n_workers=n_workers) if size is None else FixedLeases(size)


def expected_numbers(plan: Plan, sampler: SimulatedSampler, base: int) -> list[int]:
    match plan:
        case MinTimesteps(timesteps):
            return serial_prefix(sampler.pool.lengths, timesteps, base)
        case Episodes(first, stop):
            return list(range(base + first, base + stop))
        case EpisodesPerWorker(episodes):
            return list(range(base, base + episodes * sampler.pool.n_workers))


def check_delivery(plan: Plan, sampler: SimulatedSampler, chunks: Sequence[Chunk], base: int, policy: float) -> None:
    """Check that the plan's episodes came, each once, in the order of each lane, under the policy of the call."""
    numbers = [int(number) for chunk in chunks for number in chunk.numbers]
    lengths = [int(length) for chunk in chunks for length in chunk.lengths]
    assert expected_numbers(plan, sampler, base) == sorted(numbers)
    assert [sampler.pool.lengths(number) for number in numbers] == lengths
    assert {policy} == {reward for chunk in chunks for reward in chunk.rewards.tolist()}
    if isinstance(plan, EpisodesPerWorker):
        lanes = [[n for n in numbers if (n - base) // plan.episodes == lane] for lane in range(sampler.pool.n_workers)]
        assert lanes == [sorted(lane) for lane in lanes]
    else:
        assert sorted(numbers) == numbers


@given(data=st.data(), sampler=samplers(), plan=plans, by_worker=st.booleans(), base=st.integers(0, 100))
@settings(max_examples=N_EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
def test_every_interleaving_ends_with_the_episodes_of_the_serial_run(
    data: st.DataObject, sampler: SimulatedSampler, plan: Plan, by_worker: bool, base: int
) -> None:
    """Whatever the leases, speeds, orders of arrival and full ways back, the episodes are those of the serial run."""
    with pytest.MonkeyPatch.context() as patch:
        sizer = data.draw(sizers(sampler.pool.n_workers))
        chunks = list(sampler.stream(plan, sizer, patch, by_worker=by_worker, base=base, policy=3.0))
    check_delivery(plan, sampler, chunks, base, 3.0)
    check_owners(plan, sampler, by_worker=by_worker, base=base)


def check_owners(plan: Plan, sampler: SimulatedSampler, *, by_worker: bool, base: int) -> None:
    """Check that each worker began only what it owns, and nothing beyond the plan's last number."""
    for worker in sampler.pool.workers.values():
        offsets = [number - base for number in worker.begun]
        if isinstance(plan, EpisodesPerWorker):
            assert {worker.worker_number} >= {offset // plan.episodes for offset in offsets}
        elif by_worker:
            assert {worker.worker_number} >= {offset % sampler.pool.n_workers for offset in offsets}
        if isinstance(plan, Episodes):
            assert all(plan.first <= offset < plan.stop for offset in offsets)


@given(data=st.data(), sampler=samplers(), plans=st.lists(plans, min_size=2, max_size=4), by_worker=st.booleans())
@settings(max_examples=N_EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
def test_a_call_that_is_closed_early_leaves_nothing_to_the_next(
    data: st.DataObject, sampler: SimulatedSampler, plans: list[Plan], by_worker: bool
) -> None:
    """The calls after one that was closed get their own episodes, under their own policy, and none of the old ones."""
    base = 0
    with pytest.MonkeyPatch.context() as patch:
        for call, plan in enumerate(plans):
            sizer = data.draw(sizers(sampler.pool.n_workers))
            stream = sampler.stream(plan, sizer, patch, by_worker=by_worker, base=base, policy=float(call))
            keep = data.draw(st.one_of(st.none(), st.integers(0, 3)), label="chunks taken before closing")
            chunks = taken(stream, keep)
            if keep is None:
                check_delivery(plan, sampler, chunks, base, float(call))
            base = max([base, *(int(number) + 1 for chunk in chunks for number in chunk.numbers)])


def taken(stream: Iterator[Chunk], count: int | None) -> list[Chunk]:
    """Return all chunks of a stream, or its first `count`, and close it."""
    chunks: list[Chunk] = []
    generator: Any = stream
    while count is None or len(chunks) < count:
        try:
            chunks.append(next(generator))
        except StopIteration:
            break
    generator.close()
    return chunks


@pytest.mark.parametrize("lease", [1, 4])
@pytest.mark.parametrize("by_worker", [False, True])
def test_a_full_buffer_keeps_fast_workers_from_running_ahead(lease: int, by_worker: bool) -> None:
    """Once memory and disk are used up, only what is leased already and the lowest missing numbers are run."""
    pool = SimulatedPool(lambda number: 3, 2, 0, speeds=(5, 1), weights=(1.0, 0.01, 5.0), capacity=4)
    sampler = SimulatedSampler(pool, memory_limit=3000, disk_limit=3000)
    payload_bytes = len(b"".join(pack(chunk_of([0], pool.lengths))))
    on_disk: list[int] = []
    put = SpillStore.put

    def measured_put(store: SpillStore, payload: Payload) -> Handle:
        handle = put(store, payload)
        on_disk.append(store.on_disk)
        return handle

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SpillStore, "put", measured_put)
        chunks = list(sampler.stream(Episodes(0, 300), FixedLeases(lease), patch, by_worker=by_worker))
    assert 300 == sum(chunk.n_episodes for chunk in chunks)
    assert 3000 <= max(on_disk) <= 3000 + (2 * lease + pool.capacity + 1) * payload_bytes


TIMESTEPS_AND_SEEDS = ((40, 600), (400, 200), (4000, 30))


def long_share(
    timesteps: int, n_seeds: int, sizer: Callable[[], LeaseSizer], order: Order = "index"
) -> tuple[float, int]:
    """Return the share of long episodes over all seeds, and of how many; in order, each run is the serial one."""
    n_long = n_episodes = 0
    for seed in range(n_seeds):
        coins = np.random.default_rng([seed, timesteps]).random(timesteps + 2000) < 0.5

        def lengths(number: int, coins: Any = coins) -> int:
            return 40 if coins[number] else 1

        pool = SimulatedPool(lengths, 4, seed, speeds=(7, 7, 5, 11), weights=(1.0, 1.0, 0.5, 1.5, 2.0), capacity=2)
        with pytest.MonkeyPatch.context() as patch:
            chunks = list(SimulatedSampler(pool).stream(MinTimesteps(timesteps), sizer(), patch, order=order))
        numbers = [int(number) for chunk in chunks for number in chunk.numbers]
        if order == "index":
            assert serial_prefix(lengths, timesteps) == numbers
        n_long += sum(lengths(number) == 40 for number in numbers)
        n_episodes += len(numbers)
    return n_long / n_episodes, n_episodes


def confidence(n_episodes: int) -> float:
    """Return the half-width that a fair coin's share keeps to with 99 %.

    Whether a run goes on depends on the episodes before alone, so the ends of the runs add no bias.
    """
    return 2.576 * 0.5 / math.sqrt(n_episodes)


@pytest.mark.parametrize("lease", [1, 4, 64, None])
@pytest.mark.parametrize(("timesteps", "n_seeds"), TIMESTEPS_AND_SEEDS)
def test_short_episodes_are_not_favoured(timesteps: int, n_seeds: int, lease: int | None) -> None:
    """Each run equals its serial run, and over many seeds one half of the episodes is long, within 99 % confidence."""
    share, n_episodes = long_share(
        timesteps, n_seeds, lambda: ThroughputLeases(n_workers=4) if lease is None else FixedLeases(lease)
    )
    assert abs(share - 0.5) < confidence(n_episodes)


def test_order_of_arrival_favours_short_episodes() -> None:
    """The same measure finds the bias where episodes count as they end: it is no measure that always passes."""
    share, n_episodes = long_share(40, 300, lambda: FixedLeases(1), order="arrival")
    assert share < 0.5 - 3 * confidence(n_episodes)


@given(sampler=samplers(), plan=plans, data=st.data(), by_worker=st.booleans())
@settings(max_examples=N_EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
def test_deaths_and_failures_change_nothing_but_what_they_cost(
    data: st.DataObject, sampler: SimulatedSampler, plan: Plan, by_worker: bool
) -> None:
    """Workers die at random, some episodes kill theirs and some fail for a while: the rest comes as if nothing were."""
    pool = sampler.pool
    pool.mortality = data.draw(st.sampled_from([0.0, 0.02, 0.1]), label="mortality")
    pool.deadly = data.draw(st.sets(st.integers(0, 40), max_size=3), label="deadly")
    failing = data.draw(st.dictionaries(st.integers(0, 40), st.integers(1, 3), max_size=3), label="failing")
    pool.failing = Counter({number: times for number, times in failing.items() if number not in pool.deadly})
    for number in range(pool.n_workers):
        pool.restart(number)
    sampler.rules = Supervision(max_worker_restarts=10**6, on_worker_death="skip", on_env_error="retry")
    with pytest.MonkeyPatch.context() as patch:
        sizer = data.draw(sizers(pool.n_workers))
        chunks = list(sampler.stream(plan, sizer, patch, by_worker=by_worker, policy=3.0))
    lengths, skipped = pool.lengths, set(sampler.skipped)
    if not pool.mortality:
        assert skipped <= set(pool.deadly)
    pool.lengths = lambda number: 0 if number in skipped else lengths(number)
    expected = [number for number in expected_numbers(plan, sampler, 0) if number not in skipped]
    numbers = [int(number) for chunk in chunks for number in chunk.numbers]
    assert expected == sorted(numbers)
    assert {3.0} >= {reward for chunk in chunks for reward in chunk.rewards.tolist()}
    assert not skipped.intersection(numbers)
