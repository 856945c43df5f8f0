"""Making gymnasium's `contains` of discrete actions cheap, which many an environment asks for in each of its steps.

gymnasium goes through dtypes and `can_cast` for every number, which takes a fifth of a CartPole step, and through seven
arrays for a batch of them. For integers of the space's own type, which is what a worker gives an environment, two
comparisons are all that there is to it; for a batch, one.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import index
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete, MultiDiscrete

_plain_contains = Discrete.contains
_plain_contains_all = MultiDiscrete.contains

_UNSIGNED = {np.dtype(f"i{size}"): np.dtype(f"u{size}") for size in (1, 2, 4, 8)}


def _contains(self: Discrete[Any], x: Any) -> bool:
    if type(x) is self.dtype.type:
        return 0 <= index(x) - index(self.start) < index(self.n)
    return _plain_contains(self, x)


def _contains_all(self: MultiDiscrete, x: Any) -> bool:
    start, counts = self.start, self.nvec
    if type(x) is np.ndarray and x.dtype == counts.dtype == start.dtype and x.shape == counts.shape == start.shape:
        unsigned = _UNSIGNED.get(x.dtype)
        if unsigned is not None:
            # What lies below the start wraps around to beyond all that a space of this type can count.
            # To count takes a third of the time of `all`.
            return bool(np.count_nonzero((x - start).view(unsigned) < counts.view(unsigned)) == x.size)
    return _plain_contains_all(self, x)


def install() -> bool:
    """Let environments of this process use them; return whether they do.

    They do not where a trial shows that this gymnasium answers otherwise. What a subclass does for itself stays.
    """
    if Discrete.contains is not _contains and _agree():
        Discrete.contains = _contains  # type: ignore[method-assign]
        MultiDiscrete.contains = _contains_all  # type: ignore[assignment, method-assign]
    return Discrete.contains is _contains


def _agree() -> bool:
    one = all(_contains(*asked) is _plain_contains(*asked) for asked in _trials())
    return one and all(_contains_all(*asked) is _plain_contains_all(*asked) for asked in _trials_of_many())


def _trials() -> Iterator[tuple[Discrete[Any], Any]]:
    for space in (Discrete(1), Discrete(4), Discrete(3, start=2), Discrete(3, start=-2)):
        for number in range(-4, 8):
            yield from ((space, value) for value in (np.int64(number), np.int32(number), number, float(number)))


def _trials_of_many() -> Iterator[tuple[MultiDiscrete, Any]]:
    for space in (MultiDiscrete([4, 1]), MultiDiscrete([3, 2], start=[-2, 1])):
        for first in range(-4, 8):
            yield from ((space, np.array([first, second], kind)) for second in range(3) for kind in ("i8", "i4"))


def uninstall() -> None:
    """Give gymnasium its own methods back."""
    Discrete.contains = _plain_contains  # type: ignore[method-assign]
    MultiDiscrete.contains = _plain_contains_all  # type: ignore[method-assign]
