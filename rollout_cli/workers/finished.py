"""Finished episodes of a native vector environment as arrays, and the log that they are written to as they end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rollout_cli.spaces import Leaf

Array = npt.NDArray[Any]

IN_BLOCKS = -1
"""The store of an episode that still lies in the blocks of running rows."""


@dataclass(frozen=True, slots=True, eq=False)
class Finished:
    """Finished episodes, K of them.

    Attributes:
        facts: Arrays (K,) by the names of `FACTS`.
        info: What their resets told: an object array of dictionaries (K,).
        last: Their last observations, one array (K, *shape) a leaf.
        store: Where their steps lie, int64 (K,): a store's number, or IN_BLOCKS.
        offset: From which row of their store on, int64 (K,).
    """

    facts: dict[str, Array]
    info: Array
    last: tuple[Array, ...]
    store: Array
    offset: Array

    def at(self, where: Any) -> Finished:
        """Return those that an index or mask selects."""
        facts = {name: values[where] for name, values in self.facts.items()}
        return Finished(
            facts, self.info[where], tuple(leaf[where] for leaf in self.last), self.store[where], self.offset[where]
        )

    @property
    def number(self) -> Array:
        """Return their numbers (K,)."""
        return self.facts["number"]

    @property
    def lengths(self) -> Array:
        """Return the steps of each (K,)."""
        return np.asarray(self.facts["stop"] - self.facts["start"])


FACTS: dict[str, type] = {
    "number": np.int64,
    "row": np.int64,
    "seed": np.int64,
    "start": np.int64,
    "stop": np.int64,
    "terminated": np.bool_,
    "truncated": np.bool_,
    "wall_time": np.float64,
}
"""What is kept of a finished episode; `start` and `stop` are steps, counted over all that the recorder has seen."""


def joined(parts: Sequence[Finished]) -> Finished:
    """Return the episodes of `parts` after one another."""
    if len(parts) == 1:
        return parts[0]
    return Finished(
        {name: np.concatenate([part.facts[name] for part in parts]) for name in FACTS},
        np.concatenate([part.info for part in parts]),
        tuple(np.concatenate(leaf) for leaf in zip(*(part.last for part in parts), strict=True)),
        np.concatenate([part.store for part in parts]),
        np.concatenate([part.offset for part in parts]),
    )


class FinishedLog:
    """The episodes that finished lately, written one step after another into arrays with room for more.

    Args:
        leaves: Of the observation.
    """

    def __init__(self, leaves: Sequence[Leaf]) -> None:
        self._leaves = leaves
        self._facts: dict[str, Array] = {}
        self._make(1024)
        self.count = 0

    def _make(self, size: int) -> None:
        self._size = size
        self._facts = {name: np.empty(size, dtype) for name, dtype in FACTS.items()}
        self._info = np.empty(size, object)
        self._last = [np.empty((size, *leaf.shape), leaf.dtype) for leaf in self._leaves]

    def add(self, count: int, info: Any, last: Sequence[Array], **facts: Any) -> None:
        """Write `count` episodes; a fact may be one value for all of them."""
        if self.count + count > self._size:
            self._grow(count)
        here = slice(self.count, self.count + count)
        for name, values in facts.items():
            self._facts[name][here] = values
        self._info[here] = info
        for column, leaf in zip(self._last, last, strict=True):
            column[here] = leaf
        self.count += count

    def _grow(self, count: int) -> None:
        before, kept = self.take(), self.count
        self._make(2 * (kept + count))
        self.count = 0
        if kept:
            self.add(kept, before.info, before.last, **before.facts)

    def take(self) -> Finished:
        """Return a copy of what was written; the log keeps it until `count` is set to zero."""
        here = slice(0, self.count)
        return Finished(
            {name: values[here].copy() for name, values in self._facts.items()},
            self._info[here].copy(),
            tuple(leaf[here].copy() for leaf in self._last),
            np.full(self.count, IN_BLOCKS),
            np.zeros(self.count, np.int64),
        )
