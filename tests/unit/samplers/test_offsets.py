"""OffsetPool: every offset is leased, lowest first, to whom it belongs, and to one at a time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rollout_cli.samplers.offsets import OffsetPool


def numbers_of(ranges: list[range]) -> list[int]:
    return [offset for leased in ranges for offset in leased]


@given(
    first=st.integers(0, 9),
    size=st.integers(1, 40),
    owners=st.integers(1, 4),
    turns=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 7), st.booleans()), max_size=60),
)
def test_each_offset_is_leased_to_one_at_a_time(
    first: int, size: int, owners: int, turns: list[tuple[int, int, bool]]
) -> None:
    """Leases never overlap, keep to their owner, and come lowest first; with what came back they cover the range."""
    pool = OffsetPool(first, first + size, owners=owners)
    leased: set[int] = set()
    for worker, count, comes_back in turns:
        owner = worker % owners
        expected_first = pool.next_offset(owner)
        fresh = numbers_of(pool.lease(owner, count))
        assert expected_first == (min(fresh) if fresh else None)
        assert not leased & set(fresh)
        assert all(offset % owners == owner or owners == 1 for offset in fresh)
        leased |= set(fresh)
        if comes_back and fresh:
            pool.give_back(owner, fresh)
            leased -= set(fresh)
        assert size - len(leased) == pool.n_free
    rest = {offset for owner in range(owners) for offset in numbers_of(pool.lease(owner, 1000))}
    assert set(range(first, first + size)) == leased | rest


def test_leases_are_whole_blocks() -> None:
    """With a block of 4, fresh leases end where a block ends, so that offset i stays in row i % 4."""
    pool = OffsetPool(2, 15, block=4)
    assert [range(2, 4), range(4, 12), range(12, 15)] == [pool.lease(0, count)[0] for count in (1, 5, 4)]


def test_what_is_cut_off_does_not_come_back() -> None:
    """After a cut, offsets above it are free no more, whether they were fresh, leased or returned."""
    pool = OffsetPool(0, None)
    pool.lease(0, 8)
    pool.give_back(0, [3, 7])
    pool.cut(5)
    pool.give_back(0, [6])
    assert ([3], []) == (numbers_of(pool.lease(0, 9)), pool.lease(0, 9))
    assert (0, None) == (pool.n_free, pool.next_offset(0))


def test_a_pool_without_end_has_no_count_of_what_is_free() -> None:
    """Where there is no end, nobody can say how much is left."""
    assert OffsetPool(0, None).n_free is None
