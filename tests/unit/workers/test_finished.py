"""Finished episodes of a native vector environment are put in the order of their numbers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rollout_cli.workers.finished import in_order

numbers = st.lists(st.integers(0, 60), min_size=1, unique=True)


@given(numbers, st.sampled_from([0, 7, 1 << 62]), st.sampled_from([1, 3, 10_000]))
def test_in_order(told: list[int], first: int, apart: int) -> None:
    """Whether nearly all numbers between are there or hardly any, and however large they are."""
    found = np.array([first + number * apart for number in told])
    assert np.argsort(found).tolist() == in_order(found).tolist()
