"""Comparing two runs of one episode bit by bit: where they first differ, and in what."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rollout_cli.episode_batch import EpisodeBatch
from rollout_cli.spaces import flatten, space_leaves

Array = npt.NDArray[Any]

MOST_SHOWN = 8
"""Of a row with more elements than this, only the first one that differs is shown."""

_LONGEST_TEXT = 80
_INFOS = {"episode_info": "episode_infos", "agent_info": "agent_infos", "env_info": "env_infos"}
_ORDER = (
    *("seed", "observation", "last_observation", "episode_info", "action", "agent_info", "reward"),
    *("terminated", "truncated", "env_info", "length"),
)
"""What comes first within one step: what is told of a difference is then what the others follow from."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place in which one field of two runs differs.

    Attributes:
        field: Such as `observation.camera` or `env_info.episode.t`.
        step: The step of its row; one past the last step for the last observation.
        index: Where in the row, for rows with more than `MOST_SHOWN` elements; else empty.
        values: The first run's value and the other one's, shortened, as JSON has them; None where there is none.
    """

    field: str
    step: int
    index: tuple[int, ...]
    values: tuple[Any, Any]

    @property
    def group(self) -> str:
        """Return the field's group: what stands before its first dot."""
        return self.field.partition(".")[0]

    @property
    def place(self) -> str:
        """Return the field and the step, for a sentence."""
        index = f"[{', '.join(map(str, self.index))}]" if self.index else ""
        return f"{self.field}{index} at step {self.step}"


def differences(first: EpisodeBatch, again: EpisodeBatch) -> list[Difference]:
    """Return the first difference of each field of two runs of one episode; the earliest one comes first.

    Everything that is recorded is compared but who ran it and how long that took. Fields that only follow from others
    (step types, returns) are left out.

    Args:
        first: One episode.
        again: The same one, run again.

    Raises:
        ValueError: If one of them is not one episode, or their spaces differ.
    """
    if (len(first.lengths), len(again.lengths)) != (1, 1):
        raise ValueError(f"one episode each is compared, not {len(first.lengths)} and {len(again.lengths)}")
    pairs = zip(_columns(first), _columns(again), strict=True)
    found = [_difference(one, other) for one, other in pairs]
    found += [_difference(one, other) for prefix in _INFOS for one, other in _info_pairs(prefix, first, again)]
    return sorted(filter(None, found), key=_when)


def _when(difference: Difference) -> tuple[int, int, str]:
    return difference.step, _ORDER.index(difference.group), difference.field


class _Column(NamedTuple):
    """The values of one field: rows (n, …), the first of them at a step."""

    name: str
    values: Array
    first_step: int = 0


def _columns(batch: EpisodeBatch) -> Iterator[_Column]:
    length = len(batch.rewards)
    yield _Column("seed", batch.seeds)
    yield from _leaves("observation", batch.env_spec.observation_space, batch.observations)
    yield from _leaves("action", batch.env_spec.action_space, batch.actions)
    yield _Column("reward", batch.rewards)
    for name in ("terminated", "truncated"):
        flags = np.zeros(length, bool)
        flags[-1] = getattr(batch, name)[0]
        yield _Column(name, flags)
    yield _Column("length", batch.lengths, length - 1)
    yield from _leaves("last_observation", batch.env_spec.observation_space, batch.last_observations, length)


def _leaves(name: str, space: Any, tree: Any, first_step: int = 0) -> Iterator[_Column]:
    for leaf, values in zip(space_leaves(space), flatten(space, tree), strict=True):
        yield _Column(".".join(filter(None, (name, leaf.name))), values, first_step)


def _info_pairs(prefix: str, first: EpisodeBatch, again: EpisodeBatch) -> Iterator[tuple[_Column, _Column]]:
    tables: list[Mapping[str, Array]] = [getattr(batch, _INFOS[prefix]) for batch in (first, again)]
    for key in dict.fromkeys(key for table in tables for key in table):
        n_rows = [1 if prefix == "episode_info" else len(batch.rewards) for batch in (first, again)]
        one, other = (
            _Column(f"{prefix}.{key}", table[key] if key in table else np.full(n, None, object))
            for table, n in zip(tables, n_rows, strict=True)
        )
        yield one, other


def _difference(one: _Column, other: _Column) -> Difference | None:
    """Return where two columns first differ in the rows that both have; a missing row shows in the lengths."""
    step = min(one.first_step, other.first_step)
    if one.first_step != other.first_step and one.name != "length":
        return None  # Last observations of runs of other lengths are no pair.
    n_rows = min(len(one.values), len(other.values))
    left, right = one.values[:n_rows], other.values[:n_rows]
    row = _first_row(left, right)
    if row is None:
        return None
    index, values = _shown_pair(_value(left, row), _value(right, row))
    return Difference(one.name, step + row, index, values)


def _first_row(left: Array, right: Array) -> int | None:
    """Return the first row whose bits differ; None where none does."""
    if left.dtype == object or (left.dtype, left.shape) != (right.dtype, right.shape):
        return next((row for row in range(len(left)) if not _same(_value(left, row), _value(right, row))), None)
    lacks, others_lacks = _lacks(left), _lacks(right)
    differs = (_bits(left) != _bits(right)).any(axis=1) & ~lacks
    found = np.flatnonzero(differs | (lacks != others_lacks))
    return int(found[0]) if len(found) else None


def _lacks(values: Array) -> Array:
    """Return which rows have no value, bool (n,)."""
    if not isinstance(values, np.ma.MaskedArray):
        return np.zeros(len(values), bool)
    return np.asarray(np.ma.getmaskarray(values).reshape(len(values), -1).any(axis=1))


def _bits(values: Array) -> Array:
    """Return the bytes of each row, uint8 (n, bytes)."""
    data = np.ascontiguousarray(np.ma.getdata(values))
    return data.view(np.uint8).reshape(len(data), -1) if data.size else np.zeros((len(data), 0), np.uint8)


def _value(values: Array, row: int) -> Any:
    """Return the value of a row; None where the row has none."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.getmaskarray(values)[row].any():
        return None
    return np.ma.getdata(values)[row]


def _same(one: Any, other: Any) -> bool:
    """Return whether two values are the same, type and bits."""
    if isinstance(one, np.ndarray | np.generic) and isinstance(other, np.ndarray | np.generic):
        left, right = np.asarray(one), np.asarray(other)
        return (left.dtype, left.shape) == (right.dtype, right.shape) and left.tobytes() == right.tobytes()
    return type(one) is type(other) and bool(one == other)


def _shown_pair(one: Any, other: Any) -> tuple[tuple[int, ...], tuple[Any, Any]]:
    """Return two values as they are shown, and where in them; of big arrays only what differs first."""
    arrays = [isinstance(value, np.ndarray) and value.dtype != object for value in (one, other)]
    if all(arrays) and one.shape == other.shape and one.dtype == other.dtype and one.size > MOST_SHOWN:
        flat = [np.ascontiguousarray(value).reshape(-1, 1) for value in (one, other)]
        at = _first_row(*flat)
        assert at is not None
        index = tuple(map(int, np.unravel_index(at, one.shape)))
        return index, (shown(one[index]), shown(other[index]))
    return (), (shown(one), shown(other))


def shown(value: Any) -> Any:
    """Return a value as JSON has it, shortened: numbers, short lists of them, or a text."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist() if np.size(value) <= MOST_SHOWN else str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, bool | int | float) or value is None:
        return value
    if isinstance(value, list) and len(value) <= MOST_SHOWN:
        return [shown(item) for item in value]
    text = str(value)
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"
