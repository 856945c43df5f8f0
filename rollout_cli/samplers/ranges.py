"""Episode numbers in bulk: as ranges, so that thousands of short episodes cost what one does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def contiguous_ranges(numbers: Array) -> tuple[range, ...]:
    """Return rising numbers, int64 (N,), as ranges without gaps, lowest first; usually that is one."""
    if len(numbers) == 0:
        return ()
    first, stop = int(numbers[0]), int(numbers[-1]) + 1
    if stop - first == len(numbers):
        return (range(first, stop),)
    gaps = np.flatnonzero(np.diff(numbers) != 1)
    firsts = [first, *numbers[gaps + 1].tolist()]
    stops = [*(numbers[gaps] + 1).tolist(), stop]
    return tuple(map(range, firsts, stops))


def with_lengths(numbers: Iterable[range], lengths: Array) -> Iterator[tuple[range, Array]]:
    """Give each range with its own lengths, out of those of all ranges, int64 (N,)."""
    start = 0
    for run in numbers:
        stop = start + len(run)
        yield run, lengths[start:stop]
        start = stop


def shifted(numbers: range, by: int) -> range:
    """Return every number plus `by`."""
    return range(numbers.start + by, numbers.stop + by, numbers.step)


def up_to(numbers: range, ceiling: int | None) -> range:
    """Return the numbers of a rising range that a ceiling leaves."""
    if ceiling is None:
        return numbers
    return range(numbers.start, min(numbers.stop, ceiling + 1), numbers.step)
