"""The buffers between workers and whoever takes the episodes: batches in any order, chunks in the order of the plan."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_cli.chunk import Chunk, Part
from rollout_cli.packing import pack
from rollout_cli.samplers import reorder
from rollout_cli.samplers.messages import Batch, lease_numbers
from rollout_cli.samplers.plan import Episodes, EpisodesPerWorker, MinTimesteps, Order
from rollout_cli.samplers.plan_states import begin_plan
from rollout_cli.samplers.ranges import contiguous_ranges
from rollout_cli.samplers.reorder import EpisodeBuffer, episode_buffer
from tests.support.chunks import narrowed
from tests.support.contents import chunk_contents
from tests.unit.samplers.counting_worker import chunk_of

BASE = 100


def length_of(number: int) -> int:
    return 1 + number % 7


def batch(numbers: Sequence[int], policy: float = 0.0) -> Batch:
    chunk = chunk_of(numbers, length_of, policy)
    return Batch(0, 1, contiguous_ranges(chunk.numbers), chunk.lengths, tuple(pack(chunk)))


def batches_in_parts(number: int, count: int, policy: float = 0.0) -> list[Batch]:
    """Return one episode of 2 * `count` steps in `count` parts."""
    whole = chunk_of([number], lambda _: 2 * count, policy)
    parts = [replace(whole.rows(2 * at, 2 * at + 2), part=Part(at, count, 2 * at, 2 * count, 0)) for at in range(count)]
    numbers, lengths = (range(number, number + 1),), np.array([2 * count])
    return [Batch(0, 1, numbers, lengths, tuple(pack(part)), part.part) for part in parts]


def numbers_of(chunks: Sequence[Chunk]) -> list[int]:
    return [int(number) for chunk in chunks for number in chunk.numbers]


@st.composite
def arrivals(draw: st.DrawFn) -> list[Batch]:
    """Return the batches of episodes BASE … in a random order: short ones together, with gaps, and some in parts."""
    count = draw(st.integers(1, 40))
    in_parts = draw(st.sets(st.integers(0, count - 1), max_size=4))
    groups: list[list[Batch]] = [batches_in_parts(BASE + offset, 3) for offset in in_parts]
    rest = [offset for offset in range(count) if offset not in in_parts]
    of_batch = draw(st.lists(st.integers(0, 9), min_size=len(rest), max_size=len(rest)))
    for label in range(10):
        numbers = [BASE + offset for offset, chosen in zip(rest, of_batch, strict=True) if chosen == label]
        groups += [[batch(numbers)]] if numbers else []
    return [one for group in draw(st.permutations(groups)) for one in group]


@pytest.mark.parametrize("order", ["index", "arrival"])
@pytest.mark.parametrize("memory", [0, 1 << 20])
def test_columns_that_come_narrow_are_wide_when_they_are_given(order: Order, memory: int) -> None:
    """Whether they waited in memory or on disk."""
    chunk = chunk_of(range(BASE, BASE + 5), length_of, 0.0)
    plan = begin_plan(Episodes(0, 5), n_workers=1)
    buffer = episode_buffer(plan, BASE, order=order, memory_limit=memory, disk_limit=1 << 20)
    with closing(buffer):
        kept = narrowed(chunk)
        assert kept.rewards.dtype != chunk.rewards.dtype
        buffer.add(Batch.of(kept, 0, 1, None))
        assert [chunk_contents(chunk)] == [chunk_contents(one) for one in buffer.ready()]


@given(batches=arrivals(), memory=st.sampled_from([0, 700, 1 << 20]), data=st.data())
def test_episodes_come_in_order_however_they_arrive(batches: list[Batch], memory: int, data: st.DataObject) -> None:
    """Whatever arrives when, and whether it was spilled: what comes out is the serial run."""
    count = len({number for one in batches for number in lease_numbers(one.numbers)})
    buffer = episode_buffer(
        begin_plan(Episodes(0, count), n_workers=1), BASE, order="index", memory_limit=memory, disk_limit=1 << 20
    )
    chunks: list[Chunk] = []
    known: set[int] = set()
    with closing(buffer):
        for one in batches:
            buffer.add(one)
            known |= set(lease_numbers(one.numbers)) if one.part is None or one.part.is_last else set()
            if data.draw(st.booleans(), label="taken now"):
                chunks += buffer.ready()
                prefix = next(n for n in range(BASE, BASE + count + 1) if n not in known)
                assert prefix == BASE + len(dict.fromkeys(numbers_of(chunks)))
                assert len([number for number in known if number > prefix]) == buffer.n_waiting
        chunks += buffer.ready()
    in_parts = {one.numbers[0].start for one in batches if one.part is not None}
    expected = [n for n in range(BASE, BASE + count) for _ in range(3 if n in in_parts else 1)]
    assert expected == numbers_of(chunks)
    for chunk in chunks:
        assert [2] * chunk.n_episodes == chunk.lengths.tolist() or [
            length_of(int(number)) for number in chunk.numbers
        ] == chunk.lengths.tolist()


def index_buffer(plan: Episodes | MinTimesteps | EpisodesPerWorker, n_workers: int = 1) -> EpisodeBuffer:
    return episode_buffer(begin_plan(plan, n_workers=n_workers), BASE, order="index")


def test_parts_wait_for_the_last_one() -> None:
    """An episode in parts goes on when its last part is there, all parts in their order."""
    buffer = index_buffer(Episodes(0, 2))
    first, second, third = batches_in_parts(BASE, 3)
    buffer.add(first)
    buffer.add(second)
    assert [] == list(buffer.ready())
    buffer.add(third)
    assert [0, 1, 2] == [chunk.part.index for chunk in buffer.ready() if chunk.part]


@pytest.mark.parametrize("order", ["index", "arrival"])
def test_a_rerun_replaces_the_parts_of_a_worker_that_died(order: str) -> None:
    """Parts that came before a worker died are forgotten when the episode's first part comes again."""
    plan = begin_plan(Episodes(0, 1), n_workers=1)
    buffer = episode_buffer(plan, BASE, order="index" if order == "index" else "arrival")
    buffer.add(batches_in_parts(BASE, 3, policy=1.0)[0])
    buffer.add(batches_in_parts(BASE, 3, policy=1.0)[1])
    for one in batches_in_parts(BASE, 3, policy=2.0):
        buffer.add(one)
    chunks = list(buffer.ready())
    assert ([0, 1, 2], {2.0}) == (
        [chunk.part.index for chunk in chunks if chunk.part],
        {float(reward) for chunk in chunks for reward in chunk.rewards},
    )


@pytest.mark.parametrize("order", ["index", "arrival"])
def test_replaced_parts_leave_nothing_in_the_store(order: str) -> None:
    """The space of parts that were replaced is given back: an empty buffer is never full."""
    plan = begin_plan(Episodes(0, 1), n_workers=1)
    buffer = episode_buffer(plan, BASE, order="index" if order == "index" else "arrival", memory_limit=0, disk_limit=1)
    for one in (batches_in_parts(BASE, 3)[0], *batches_in_parts(BASE, 3)):
        buffer.add(one)
    assert 3 == len(list(buffer.ready()))
    full = buffer.is_full
    buffer.close()
    assert not full


def test_lanes_do_not_wait_for_each_other() -> None:
    """Under EpisodesPerWorker, the second worker's episodes go on while the first one's are missing."""
    buffer = index_buffer(EpisodesPerWorker(3), n_workers=2)
    buffer.add(batch([BASE + 3, BASE + 4]))
    buffer.add(batch([BASE + 1]))
    assert [BASE + 3, BASE + 4] == numbers_of(list(buffer.ready()))
    buffer.add(batch([BASE]))
    assert [BASE, BASE + 1] == numbers_of(list(buffer.ready()))


def test_nothing_above_the_ceiling_goes_on() -> None:
    """Episodes that ended before their worker heard of the ceiling are left out, within a chunk and after it."""
    plan = begin_plan(MinTimesteps(6), n_workers=1)
    buffer = episode_buffer(plan, 0, order="index")
    plan.lease(0, 9)
    for numbers in (range(5), range(5, 7)):
        one = batch(numbers)
        plan.settle(numbers, one.lengths)
        buffer.add(one)
    assert [0, 1, 2] == numbers_of(list(buffer.ready()))
    assert [] == list(buffer.ready())


def test_what_the_plan_does_not_need_waits_for_nothing() -> None:
    """An episode above the end is surplus, and is not told as one that was lost for want of another."""
    plan = begin_plan(MinTimesteps(length_of(BASE) + length_of(BASE + 1) + 1), n_workers=1)
    buffer = episode_buffer(plan, BASE, order="index")
    buffer.add(batch([BASE + 1, BASE + 2, BASE + 4]))
    assert 3 == buffer.n_waiting
    plan.settle(range(3), np.array([length_of(BASE + offset) for offset in range(3)]))
    assert 2 == buffer.n_waiting
    buffer.add(batch([BASE]))
    assert [BASE, BASE + 1, BASE + 2] == numbers_of(list(buffer.ready()))
    assert 0 == buffer.n_waiting


def test_what_comes_after_a_gap_is_kept() -> None:
    """A batch with a hole gives what lies before it now, and the rest once the hole is filled."""
    buffer = index_buffer(Episodes(0, 6))
    buffer.add(batch([BASE, BASE + 1, BASE + 3, BASE + 5]))
    assert [BASE, BASE + 1] == numbers_of(list(buffer.ready()))
    buffer.add(batch([BASE + 4]))
    assert [] == list(buffer.ready())
    buffer.add(batch([BASE + 2]))
    assert [BASE + 2, BASE + 3, BASE + 4, BASE + 5] == numbers_of(list(buffer.ready()))


def test_small_pieces_come_as_one_chunk() -> None:
    """What two workers ran by turns, one episode each, is handed on together, every row under its own number."""
    buffer = index_buffer(Episodes(0, 10))
    for numbers in (range(BASE, BASE + 10, 2), range(BASE + 1, BASE + 10, 2)):
        whole = chunk_of(numbers, length_of)
        whole = replace(whole, rewards=np.repeat(whole.numbers, whole.lengths).astype(np.float64))
        buffer.add(Batch(0, 1, contiguous_ranges(whole.numbers), whole.lengths, tuple(pack(whole))))
    (chunk,) = buffer.ready()
    assert list(range(BASE, BASE + 10)) == chunk.numbers.tolist()
    assert np.repeat(chunk.numbers, chunk.lengths).tolist() == chunk.rewards.tolist()


def test_large_chunks_and_parts_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only small chunks are put together, up to a limit; an episode's parts stay apart, and all stays in order."""
    monkeypatch.setattr(reorder, "SMALL_BYTES", 20 * 8)
    monkeypatch.setattr(reorder, "JOINED_BYTES", 30 * 8)
    rows = [10, 19, 5, 3, 20, 7, 7]
    buffer = index_buffer(Episodes(0, len(rows) + 1))
    for offset, length in enumerate(rows):
        whole = chunk_of([BASE + offset], lambda _, length=length: length)  # type: ignore[misc]
        buffer.add(Batch(0, 1, contiguous_ranges(whole.numbers), whole.lengths, tuple(pack(whole))))
    for part in batches_in_parts(BASE + len(rows), 2):
        buffer.add(part)
    came = [((chunk.numbers - BASE).tolist(), chunk.n_steps) for chunk in buffer.ready()]
    assert [([0, 1, 2], 34), ([3], 3), ([4], 20), ([5, 6], 14), ([7], 2), ([7], 2)] == came


def test_rows_stay_with_their_episodes_when_a_chunk_is_cut() -> None:
    """Cutting a chunk at a gap cuts its rows at the same place."""
    buffer = index_buffer(Episodes(0, 4))
    whole = chunk_of([BASE, BASE + 1, BASE + 3], length_of)
    whole = replace(whole, rewards=np.repeat(whole.numbers, whole.lengths).astype(np.float64))
    buffer.add(Batch(0, 1, contiguous_ranges(whole.numbers), whole.lengths, tuple(pack(whole))))
    chunks = list(buffer.ready())
    buffer.add(batch([BASE + 2], policy=BASE + 2))
    chunks += buffer.ready()
    for chunk in chunks:
        assert np.repeat(chunk.numbers, chunk.lengths).tolist() == chunk.rewards.tolist()


def test_in_order_of_arrival_chunks_come_as_they_are() -> None:
    """`arrival` gives what has come, in that order, once."""
    buffer = episode_buffer(begin_plan(MinTimesteps(99), n_workers=1), BASE, order="arrival")
    buffer.add(batch([BASE + 5, BASE + 9]))
    buffer.add(batch([BASE]))
    assert [BASE + 5, BASE + 9, BASE] == numbers_of(list(buffer.ready()))
    assert [] == list(buffer.ready())
    assert not buffer.is_full
    buffer.close()


@pytest.mark.parametrize("order", ["index", "arrival"])
def test_a_buffer_is_full_when_memory_and_disk_are(order: str) -> None:
    """What does not fit is kept all the same, but the buffer says that no new number should be begun."""
    plan = begin_plan(MinTimesteps(999), n_workers=1)
    size = max(sum(map(len, batch([BASE + offset]).payload)) for offset in range(3))
    buffer = episode_buffer(
        plan,
        BASE,
        order="index" if order == "index" else "arrival",
        memory_limit=size,
        disk_limit=size + 1,
    )
    buffer.add(batch([BASE + 1]))
    full = [buffer.is_full]
    for offset in (2, 0):
        buffer.add(batch([BASE + offset]))
        full.append(buffer.is_full)
    assert [False, False, True] == full
    assert [BASE, BASE + 1, BASE + 2] == sorted(numbers_of(list(buffer.ready())))
    assert not buffer.is_full
