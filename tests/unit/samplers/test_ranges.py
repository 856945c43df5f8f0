"""Episode numbers in bulk, against what one would write number by number."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_cli.samplers.ranges import contiguous_ranges, shifted, up_to, with_lengths

ranges = st.builds(range, st.integers(0, 20), st.integers(0, 60), st.integers(1, 5))
ceilings = st.none() | st.integers(0, 70)


@given(numbers=st.sets(st.integers(0, 60)))
def test_ranges_hold_the_numbers_and_have_gaps_between_them(numbers: set[int]) -> None:
    """What rises becomes as few ranges as there are runs without a gap, in the same order."""
    found = contiguous_ranges(np.array(sorted(numbers), np.int64))
    assert sorted(numbers) == [number for one in found for number in one]
    assert all(one.step == 1 and len(one) for one in found)
    assert all(above.start > below.stop for below, above in pairwise(found))


def test_numbers_without_a_gap_are_one_range_of_plain_integers() -> None:
    """A range of numpy's integers would be slow to go through, and to send."""
    (found,) = contiguous_ranges(np.arange(7, 12))
    assert (range(7, 12), int, int) == (found, type(found.start), type(found.stop))
    assert {int} == {type(edge) for one in contiguous_ranges(np.array([1, 2, 5, 9])) for edge in (one.start, one.stop)}


def test_each_range_gets_its_own_lengths() -> None:
    """The lengths of all ranges lie one after the other."""
    pairs = with_lengths((range(3, 5), range(9, 10)), np.array([10, 20, 30]))
    assert [(range(3, 5), [10, 20]), (range(9, 10), [30])] == [(one, lengths.tolist()) for one, lengths in pairs]


@given(numbers=ranges, ceiling=ceilings)
def test_a_ceiling_leaves_the_numbers_up_to_it(numbers: range, ceiling: int | None) -> None:
    """Of a range, whatever its step, what is not above the ceiling stays; all of it where there is none."""
    assert [number for number in numbers if ceiling is None or number <= ceiling] == list(up_to(numbers, ceiling))


@pytest.mark.parametrize("by", [-4, 0, 7])
def test_a_shifted_range_keeps_its_step(by: int) -> None:
    """Every number moves by the same."""
    assert [number + by for number in range(4, 30, 3)] == list(shifted(range(4, 30, 3), by))
