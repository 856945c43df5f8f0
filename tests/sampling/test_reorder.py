"""ReorderBuffer: episodes come as they end, and go in the order of their numbers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rollout_cli.episodes.chunk import AnyChunk, Chunk, ChunkRef, concatenate
from rollout_cli.samplers.plan import Episodes, EpisodesPerWorker, MinTimesteps, PlanState
from rollout_cli.samplers.reorder import MOST_BYTES, ReorderBuffer
from tests.helpers.fake_worker import bare_episode


def new_buffer(stop: int = 10, most_bytes: int = MOST_BYTES) -> ReorderBuffer:
    return ReorderBuffer(PlanState(Episodes(0, stop), n_workers=1), most_bytes)


def several(*numbers: int, length: int = 2) -> Chunk:
    return concatenate([bare_episode(number, length, reward=number) for number in numbers])


def given_by(buffer: ReorderBuffer) -> list[int]:
    return [int(number) for chunk in buffer.ready() for number in chunk.numbers]


@given(st.data(), st.integers(1, 25))
def test_any_order_comes_out_in_order(data: st.DataObject, count: int) -> None:
    """Chunks with gaps, in any order: each episode comes once, with its own rows."""
    left = data.draw(st.permutations(range(count)))
    out: list[AnyChunk] = []
    buffer = new_buffer(count)
    while left:
        size = data.draw(st.integers(1, 5))
        buffer.add(several(*sorted(left[:size])))
        left = left[size:]
        out += buffer.ready()
    assert (0, 0) == (buffer.n_waiting, buffer._n_bytes)
    assert list(range(count)) == [int(number) for chunk in out for number in chunk.numbers]
    assert [number for number in range(count) for _ in range(2)] == [
        r for chunk in out for r in chunk.load().rewards.tolist()
    ]


def test_nothing_above_the_end_is_given() -> None:
    """A chunk is cut at the plan's last number, which may become known after the chunk has come."""
    state = PlanState(MinTimesteps(7), n_workers=1)
    buffer = ReorderBuffer(state)
    buffer.add(several(1, 2, 3, 4))
    assert (4, []) == (buffer.n_waiting, given_by(buffer))
    state.complete(range(1, 5), np.array([2, 2, 2, 2]))
    state.complete(range(1), np.array([2]))
    assert 3 == buffer.n_waiting
    buffer.add(several(0))
    assert [0, 1, 2, 3] == given_by(buffer)


def test_partitions_do_not_wait_for_each_other() -> None:
    """Each worker's episodes go in their own order."""
    buffer = ReorderBuffer(PlanState(EpisodesPerWorker(3, first=10, done=(1, 0)), n_workers=2))
    buffer.add(several(12))
    buffer.add(several(13, 14))
    assert [13, 14] == given_by(buffer)
    assert (True, False) == (buffer.is_past(14), buffer.is_past(15))
    buffer.add(several(11))
    assert [11, 12] == given_by(buffer)


def test_a_skipped_episode_is_passed_over() -> None:
    """The order continues without it."""
    buffer = new_buffer()
    buffer.add(several(1, 3))
    buffer.pass_over(range(2, 3))
    buffer.pass_over(range(1))
    assert [1, 3] == given_by(buffer)
    assert (True, False) == (buffer.is_past(2), buffer.is_past(4))
    assert 0 == buffer._n_bytes


def test_it_is_full_at_its_limit() -> None:
    """Episodes behind references count, too; it takes more all the same."""
    buffer = new_buffer(100, most_bytes=1)
    was_full = [buffer.is_full]
    buffer.add(several(*range(1, 40)))
    was_full.append(buffer.is_full)
    buffer.add(several(0))
    assert list(range(40)) == given_by(buffer)
    assert [False, True, False] == [*was_full, buffer.is_full]
    buffer.add(reference(several(42)))
    assert buffer.is_full


def reference(chunk: Chunk) -> ChunkRef:
    return ChunkRef(chunk.numbers, chunk.lengths, chunk.variable_bytes, chunk.n_bytes, lambda: chunk)


def test_a_part_of_a_reference_counts_for_itself() -> None:
    """Many parts of one chunk that wait use up no more memory than it has."""
    whole = reference(several(*range(4)))
    parts = [whole.episodes(at, at + 1) for at in range(whole.n_episodes)]
    assert 0 < sum(part.n_bytes for part in parts) <= whole.n_bytes
