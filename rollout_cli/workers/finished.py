"""Finished episodes of a native vector environment: arrays with an entry for each, and nothing in Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

IN_HISTORY = -1
"""The store of an episode whose steps still lie among those of running rows."""

_FIELDS = ("number", "start", "seed", "began", "row", "stop", "flags", "wall_time", "store", "offset")
_AT = {name: at for at, name in enumerate(_FIELDS)}
N_BEGUN = 4
"""How many of the facts are known when an episode begins: its number, first step and seed, and when that was."""

_TERMINATED, _TRUNCATED = 1, 2

_SPARSE = 4
_NOWHERE = -1


@dataclass(frozen=True, slots=True, eq=False)
class Finished:
    """Finished episodes, K of them.

    Attributes:
        facts: What is known of them, int64 (10, K), so that some of them are selected in one go; see the properties.
        info: What their resets told: an object array of dictionaries and None (K,). None where none told anything.
        last: Their last observations, one array (K, *shape) a leaf.
    """

    facts: Array
    info: Array | None
    last: tuple[Array, ...]

    @classmethod
    def of(
        cls, begun: Array, rows: Array, stop: int | Array, flags: tuple[Array, Array], ended_at: float | Array
    ) -> Array:
        """Return the facts of episodes whose steps lie in the history.

        Args:
            begun: Their numbers, first steps, seeds and (as the bits of seconds of a clock) beginnings, int64 (4, K).
            rows: Which rows ran them (K,).
            stop: One past the last step, of each (K,) or of all; steps are counted over all that were recorded.
            flags: Whether their last steps terminated them (K,), and whether these truncated them (K,).
            ended_at: When they ended, of each (K,) or of all.
        """
        facts = np.empty((len(_FIELDS), len(rows)), np.int64)
        facts[:N_BEGUN] = begun
        facts[_AT["row"]], facts[_AT["stop"]] = rows, stop
        facts[_AT["flags"]] = flags[0] * _TERMINATED + flags[1] * _TRUNCATED
        facts[_AT["wall_time"]].view(np.float64)[:] = ended_at - facts[_AT["began"]].view(np.float64)
        facts[_AT["store"]], facts[_AT["offset"]] = IN_HISTORY, 0
        return facts

    def at(self, where: Array) -> Finished:
        """Return those at some places (k,)."""
        info = None if self.info is None else self.info[where]
        return Finished(self.facts.take(where, axis=1), info, tuple(leaf.take(where, axis=0) for leaf in self.last))

    def stored(self, where: Array, store: int, offsets: Array) -> Finished:
        """Return all of them, those at some places (k,) in a store from certain rows on (k,)."""
        facts = self.facts.copy()
        facts[_AT["store"], where], facts[_AT["offset"], where] = store, offsets
        return Finished(facts, self.info, self.last)

    def __len__(self) -> int:
        return int(self.facts.shape[1])

    @property
    def number(self) -> Array:
        """Return their numbers (K,)."""
        return self._fact("number")

    @property
    def row(self) -> Array:
        """Return which rows ran them (K,)."""
        return self._fact("row")

    @property
    def start(self) -> Array:
        """Return their first steps (K,)."""
        return self._fact("start")

    @property
    def stop(self) -> Array:
        """Return one past their last steps (K,)."""
        return self._fact("stop")

    @property
    def lengths(self) -> Array:
        """Return the steps of each (K,)."""
        return np.asarray(self.stop - self.start)

    @property
    def seed(self) -> Array:
        """Return the seeds of their resets (K,)."""
        return self._fact("seed")

    @property
    def terminated(self) -> Array:
        """Return whether their last steps terminated them, bool (K,)."""
        return np.asarray(self._fact("flags") & _TERMINATED, bool)

    @property
    def truncated(self) -> Array:
        """Return whether their last steps truncated them, bool (K,)."""
        return np.asarray(self._fact("flags") & _TRUNCATED, bool)

    @property
    def wall_time(self) -> Array:
        """Return the seconds from their resets to their ends, float64 (K,)."""
        return self._fact("wall_time").view(np.float64)

    @property
    def store(self) -> Array:
        """Return where their steps lie (K,): a store's number, or IN_HISTORY."""
        return self._fact("store")

    @property
    def offset(self) -> Array:
        """Return from which row of their store on (K,)."""
        return self._fact("offset")

    def _fact(self, name: str) -> Array:
        return np.asarray(self.facts[_AT[name]])


def joined(parts: Sequence[Finished]) -> Finished:
    """Return the episodes of `parts` after one another."""
    if len(parts) == 1:
        return parts[0]
    info = None
    if any(part.info is not None for part in parts):
        info = np.concatenate([np.full(len(part), None, object) if part.info is None else part.info for part in parts])
    return Finished(
        np.concatenate([part.facts for part in parts], axis=1),
        info,
        tuple(np.concatenate(leaf) for leaf in zip(*(part.last for part in parts), strict=True)),
    )


def in_order(numbers: Array) -> Array:
    """Return the places of distinct numbers (K,), K of at least 1, in ascending order."""
    places = numbers - numbers.min()
    span = int(places.max()) + 1
    if span > _SPARSE * len(numbers):
        return np.asarray(numbers.argsort())
    # Nearly every number between is there: a place for each takes a tenth of the time of sorting.
    by_number = np.full(span, _NOWHERE)
    by_number[places] = np.arange(len(numbers))
    return np.asarray(by_number[by_number != _NOWHERE])
