"""OpenNumbers is a set of numbers, whatever comes in whichever order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_cli.samplers.open_numbers import OpenNumbers

RANGES = st.builds(
    lambda start, count, step: range(start, start + count * step, step),
    st.integers(0, 40),
    st.integers(0, 12),
    st.integers(1, 3),
)
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(RANGES, max_size=3)),
        st.tuples(st.just("remove"), st.lists(st.integers(0, 60), max_size=12)),
        st.tuples(st.just("drop_above"), st.none() | st.integers(-1, 60)),
    ),
    max_size=12,
)


def opened(*lease: range) -> OpenNumbers:
    """Return these numbers."""
    numbers = OpenNumbers()
    numbers.add(lease)
    return numbers


@given(CHANGES)
def test_it_is_what_a_set_would_be(changes: list[tuple[str, Any]]) -> None:
    """After any changes it has the numbers of a set that went through the same, lowest first."""
    numbers, like = OpenNumbers(), set[int]()
    for verb, what in changes:
        if verb == "add":
            numbers.add(what)
            like.update(*what)
        elif verb == "remove":
            numbers.remove(what)
            like.difference_update(what)
        else:
            above = set() if what is None else {number for number in like if number > what}
            assert bool(above) == numbers.drop_above(what)
            like -= above
        assert (len(like), sorted(like)) == (len(numbers), list(numbers))


@pytest.mark.parametrize(
    ("ended", "left"),
    [
        ([3, 4, 5], [6, 7, 20, 21]),
        ([5, 3, 4], [6, 7, 20, 21]),
        ([6, 20], [3, 4, 5, 7, 21]),
        ([20, 21], [3, 4, 5, 6, 7]),
        ([3, 9], [4, 5, 6, 7, 20, 21]),
        ([1, 30], [3, 4, 5, 6, 7, 20, 21]),
    ],
    ids=["the lowest", "in any order", "from the middle", "the highest", "one is not there", "none is there"],
)
def test_what_ended_is_removed(ended: list[int], left: list[int]) -> None:
    """Just these are removed, given as a list or as an array."""
    for given_as in (ended, np.array(ended, np.int64)):
        numbers = opened(range(3, 8), range(20, 22))
        numbers.remove(given_as)
        assert left == list(numbers)


def test_without_a_number_it_is_false() -> None:
    """The worker goes idle when it has none left."""
    numbers = opened(range(2))
    assert numbers
    numbers.clear()
    assert not numbers
