"""PrefixSum: where a run ends, from lengths that are learnt in runs, in any order, against its definition."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_cli.samplers.prefix import PrefixSum

all_lengths = st.lists(st.integers(0, 12), min_size=1, max_size=60)


@st.composite
def learnt(draw: st.DrawFn) -> tuple[list[int], list[range]]:
    """Return the lengths of offsets 0, 1, …, and these offsets in ranges without gaps, which come in any order."""
    values = draw(all_lengths)
    edges = draw(st.sets(st.integers(1, len(values)), max_size=len(values)))
    ranges = [range(start, stop) for start, stop in pairwise(sorted({0, len(values), *edges}))]
    return values, draw(st.permutations(ranges))


def lengths_of(values: list[int], offsets: range) -> np.ndarray:
    return np.array([values[offset] for offset in offsets], np.int64)


class Definition:
    """The prefix by its definition, offset by offset, with everything that is known kept for ever."""

    def __init__(self, target: int) -> None:
        self._target = target
        self.known: dict[int, int] = {}

    def add(self, offsets: range, values: list[int]) -> None:
        self.known |= {offset: values[offset] for offset in offsets}

    @property
    def ceiling(self) -> int | None:
        """Return the lowest j with known lengths of offsets up to j that sum to the target."""
        ordered = sorted(self.known)
        sums = accumulate(self.known[offset] for offset in ordered)
        return next((offset for offset, total in zip(ordered, sums, strict=True) if total >= self._target), None)

    @property
    def complete(self) -> bool:
        return self.ceiling is not None and set(range(self.ceiling + 1)) <= self.known.keys()

    @property
    def expected_episodes(self) -> int | None:
        """Return the missing steps over the mean length of what is known, rounded up."""
        steps = sum(self.known.values())
        if steps == 0 or steps >= self._target:
            return 0 if steps else None
        return -(-(self._target - steps) * len(self.known) // steps)


def told(values: list[int], ranges: list[range], target: int) -> Iterator[tuple[PrefixSum, Definition]]:
    """Tell a PrefixSum and the definition the same; give both after each range."""
    prefix, definition = PrefixSum(target), Definition(target)
    for offsets in ranges:
        prefix.add(offsets, lengths_of(values, offsets))
        definition.add(offsets, values)
        yield prefix, definition


@given(case=learnt(), target=st.integers(1, 200))
def test_it_equals_its_definition_at_every_moment(case: tuple[list[int], list[range]], target: int) -> None:
    """After each run, in any order: the ceiling is the lowest offset up to which known lengths reach the target."""
    values, ranges = case
    for prefix, definition in told(values, ranges, target):
        assert definition.ceiling == prefix.ceiling
        assert definition.complete == prefix.complete
        assert definition.expected_episodes == prefix.expected_episodes()


@given(case=learnt(), target=st.integers(1, 200), data=st.data())
def test_what_is_known_is_refused_and_changes_nothing(
    case: tuple[list[int], list[range]], target: int, data: st.DataObject
) -> None:
    """No offset up to the ceiling counts twice, in the prefix, ahead of it or in part; the rest goes on as before."""
    values, ranges = case
    for prefix, definition in told(values, ranges, target):
        first = data.draw(st.integers(0, len(values) - 1))
        offsets = range(first, data.draw(st.integers(first + 1, len(values))))
        wanted = [offset for offset in offsets if prefix.ceiling is None or offset <= prefix.ceiling]
        twice = [offset for offset in wanted if offset in definition.known]
        if twice:
            with pytest.raises(ValueError, match=rf"the length of offset {twice[0]} was already known"):
                prefix.add(offsets, lengths_of(values, offsets))
        assert (definition.ceiling, definition.complete) == (prefix.ceiling, prefix.complete)


def test_what_lies_above_the_ceiling_is_ignored() -> None:
    """Late lengths beyond the end change nothing, whether they were known or not."""
    prefix = PrefixSum(10)
    prefix.add(range(2, 4), np.array([6, 6]))
    assert 3 == prefix.ceiling
    for _ in range(2):
        prefix.add(range(4, 9), np.full(5, 100))
    assert 3 == prefix.ceiling
    prefix.add(range(1), np.array([4]))
    assert 2 == prefix.ceiling
    prefix.add(range(3, 5), np.array([6, 100]))
    assert (2, False) == (prefix.ceiling, prefix.complete)
    prefix.add(range(1, 2), np.array([3]))
    assert (2, True) == (prefix.ceiling, prefix.complete)


def test_runs_in_order_leave_nothing_behind() -> None:
    """What joins the prefix is forgotten: a run of any length needs no memory for its episodes."""
    prefix = PrefixSum(10**9)
    for first in range(0, 900, 90):
        prefix.add(range(first, first + 90), np.full(90, 22))
    assert [] == prefix._ahead
    assert (10**9 - 900 * 22 + 21) // 22 == prefix.expected_episodes()
