"""Making `Discrete.contains` cheap, which many an environment asks of the action in each of its steps.

gymnasium goes through dtypes and `can_cast` for every number, which takes a fifth of a CartPole step. For an integer of
the space's own type, which is what a worker gives an environment, two comparisons are all that there is to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import index
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete

_plain_contains = Discrete.contains


def _contains(self: Discrete[Any], x: Any) -> bool:
    if type(x) is self.dtype.type:
        return 0 <= index(x) - index(self.start) < index(self.n)
    return _plain_contains(self, x)


def install() -> bool:
    """Let environments of this process use it; return whether they do.

    They do not where a trial shows that this gymnasium answers otherwise. What a subclass does for itself stays.
    """
    if Discrete.contains is not _contains and all(_contains(*asked) is _plain_contains(*asked) for asked in _trials()):
        Discrete.contains = _contains  # type: ignore[method-assign]
    return Discrete.contains is _contains


def _trials() -> Iterator[tuple[Discrete[Any], Any]]:
    for space in (Discrete(1), Discrete(4), Discrete(3, start=2), Discrete(3, start=-2)):
        for number in range(-4, 8):
            yield from ((space, value) for value in (np.int64(number), np.int32(number), number, float(number)))


def uninstall() -> None:
    """Give gymnasium its own method back."""
    Discrete.contains = _plain_contains  # type: ignore[method-assign]
