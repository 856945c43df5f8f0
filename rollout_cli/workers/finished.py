"""Finished episodes of a native vector environment: arrays with an entry for each, and nothing in Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

IN_HISTORY = -1
"""The store of an episode whose steps still lie among those of running rows."""

_FIELDS = ("number", "start", "seed", "wall_time", "row", "stop", "flags")
_AT = {name: at for at, name in enumerate(_FIELDS)}
N_BEGUN = 4
"""How many of the facts are known when an episode begins: its number, first step and seed, and when that was, of which
its wall time takes the place."""

_TERMINATED, _TRUNCATED = 1, 2

_SPARSE = 4
_NOWHERE = -1


@dataclass(frozen=True, slots=True, eq=False)
class Finished:
    """Finished episodes, K of them.

    Attributes:
        facts: What is known of them, int64 (7, K), so that some of them are selected in one go; see the properties.
        info: What their resets told: an object array of dictionaries and None (K,). None where none told anything.
        last: Their last observations, one array (K, *shape) a leaf.
        places: Stores that their steps lie in, and from which row on, int64 (2, K). None where all lie in the history.
    """

    facts: Array
    info: Array | None
    last: tuple[Array, ...]
    places: Array | None = None

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
        seconds = facts[_AT["wall_time"]].view(np.float64)
        np.subtract(ended_at, seconds, out=seconds)
        return facts

    def at(self, where: Array) -> Finished:
        """Return those at some places (k,)."""
        info = None if self.info is None else self.info[where]
        places = None if self.places is None else self.places.take(where, axis=1)
        last = tuple(leaf.take(where, axis=0) for leaf in self.last)
        return Finished(self.facts.take(where, axis=1), info, last, places)

    def stored(self, where: Array, store: int, offsets: Array) -> Finished:
        """Return all of them, those at some places (k,) in a store from certain rows on (k,)."""
        places = _in_history(len(self)) if self.places is None else self.places.copy()
        places[0, where], places[1, where] = store, offsets
        return replace(self, places=places)

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
        return np.asarray((_in_history(len(self)) if self.places is None else self.places)[0])

    @property
    def offset(self) -> Array:
        """Return from which row of their store on (K,)."""
        return np.asarray((_in_history(len(self)) if self.places is None else self.places)[1])

    def _fact(self, name: str) -> Array:
        return np.asarray(self.facts[_AT[name]])


def joined(parts: Sequence[Finished]) -> Finished:
    """Return the episodes of `parts` after one another."""
    if len(parts) == 1:
        return parts[0]
    info = None
    if any(part.info is not None for part in parts):
        info = np.concatenate([np.full(len(part), None, object) if part.info is None else part.info for part in parts])
    places = None
    if any(part.places is not None for part in parts):
        of_each = (_in_history(len(part)) if part.places is None else part.places for part in parts)
        places = np.concatenate(list(of_each), axis=1)
    return Finished(
        np.concatenate([part.facts for part in parts], axis=1),
        info,
        tuple(np.concatenate(leaf) for leaf in zip(*(part.last for part in parts), strict=True)),
        places,
    )


def _in_history(count: int) -> Array:
    """Return the places of `count` episodes whose steps still lie among those of running rows."""
    places = np.zeros((2, count), np.int64)
    places[0] = IN_HISTORY
    return places


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
