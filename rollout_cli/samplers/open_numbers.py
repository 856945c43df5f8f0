"""OpenNumbers: the episode numbers that a worker has left, in one sorted array.

A fast worker gets and ends a hundred thousand of them a second: a set of Python's integers took longer to keep than the
numbers' steps took to record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class OpenNumbers:
    """A set of episode numbers."""

    def __init__(self) -> None:
        self._numbers: Array = np.empty(0, np.int64)  # Rising; nobody writes to it.

    def add(self, lease: Iterable[range]) -> None:
        """Add all numbers of these ranges."""
        for numbers in lease:
            if numbers:
                self._add(np.arange(numbers.start, numbers.stop, numbers.step))

    def _add(self, numbers: Array) -> None:
        if not len(self._numbers) or numbers[0] > self._numbers[-1]:  # As nearly always.
            self._numbers = np.concatenate([self._numbers, numbers])
        else:
            self._numbers = np.union1d(self._numbers, numbers)

    def remove(self, numbers: Sequence[int] | Array) -> None:
        """Remove these numbers, in any order; one that is not there is passed over."""
        if len(numbers) and len(self._numbers):
            self._remove(np.sort(np.asarray(numbers, np.int64)))

    def _remove(self, ended: Array) -> None:
        mine = self._numbers
        first, stop = int(mine.searchsorted(ended[0])), int(mine.searchsorted(ended[-1], side="right"))
        between = mine[first:stop]
        rest = between[:0] if np.array_equal(between, ended) else np.setdiff1d(between, ended)
        # The lowest numbers run first, so most often only what lies above is left, and nothing need be copied.
        left = [part for part in (mine[:first], rest, mine[stop:]) if len(part)]
        self._numbers = left[0] if len(left) == 1 else np.concatenate([mine[:0], *left])

    def drop_above(self, ceiling: int | None) -> bool:
        """Remove what lies above a ceiling; return whether there was anything."""
        if ceiling is None:
            return False
        kept = self._numbers[: int(self._numbers.searchsorted(ceiling, side="right"))]
        found = len(kept) < len(self._numbers)
        self._numbers = kept
        return found

    def clear(self) -> None:
        """Remove all."""
        self._numbers = self._numbers[:0]

    def __iter__(self) -> Iterator[int]:
        """Give the numbers, lowest first."""
        return iter(self._numbers.tolist())

    def __len__(self) -> int:
        return len(self._numbers)
