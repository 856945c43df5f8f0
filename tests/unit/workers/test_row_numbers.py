"""SharedNumbers gives the lowest numbers first, however they came."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from rollout_cli.workers.row_numbers import NONE, SharedNumbers


@pytest.mark.parametrize(
    "added",
    [
        (range(5), range(5, 9)),
        (range(4, 9), range(4)),
        (range(0, 9, 2), range(1, 9, 2)),
        ([7, 0, 5, 3], [8, 1, 2, 6, 4]),
        (range(9), range(0)),
        ((), range(9)),
    ],
    ids=["ranges in order", "returned ones", "between each other", "lists", "an empty range", "nothing at first"],
)
def test_numbers_come_in_order(added: tuple[Iterable[int], ...]) -> None:
    """Rows get the numbers 0 to 8 in order, whatever they were added as, and NONE when there are no more."""
    numbers = SharedNumbers()
    for some in added:
        numbers.add(some)
    assert (9, 0) == (len(numbers), numbers.lowest)
    taken = [numbers.take(np.arange(5)).tolist(), numbers.take(np.arange(5)).tolist()]
    assert [[0, 1, 2, 3, 4], [5, 6, 7, 8, NONE]] == taken
    assert (0, None) == (len(numbers), numbers.lowest)
