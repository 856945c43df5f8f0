"""Bit-by-bit comparison of two runs of an episode, or of two datasets."""

from __future__ import annotations

import glob
import json
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rollout_cli.episodes.batch import EpisodeBatch
from rollout_cli.episodes.infos import free_name
from rollout_cli.episodes.spaces import Array

if TYPE_CHECKING:
    from rollout_cli.dataset.reader import Dataset

_LONGEST_TEXT = 80
_INFOS = ("episode_info.", "agent_info.", "env_info.")
_HINT = (
    "find what keeps state across episodes, uses an unseeded generator, or shares a generator between "
    "environments of a worker (drop infos that hold the time: {drop_info=KEY})"
)


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where one field of two runs of an episode differs."""

    field: str  # Such as `observation.camera` or `env_info.episode.t`.
    step: int  # One past the last step for the last observation.
    values: list[Any]  # The values of the first and of the second run, for JSON; None if missing.
    infos: tuple[str, ...] = ()  # The infos that differ, if only infos differ.

    @property
    def place(self) -> str:
        return f"{self.field} at step {self.step}"

    def __str__(self) -> str:
        was, now = self.values
        return f"{self.place} was {was}, is {now}"


def advice(difference: Difference) -> str:
    """Return the hint for an episode with this difference."""
    options = " ".join(f"{{drop_info={json.dumps(glob.escape(name))}}}" for name in difference.infos)
    return f"drop the infos, since nothing else differs: {options}" if options else _HINT


_Column = tuple[int, Array]
"""The step of the first row, and the values of a field, an array (n_rows, …)."""


def first_difference(
    first: EpisodeBatch, again: EpisodeBatch, *, only: Collection[str] = ()
) -> Difference | None:
    """Return the first difference between two runs of an episode; None if they are identical.

    Steps are compared in order, and the fields of a step in the order of cause and effect. All recorded
    fields are compared except the worker and the wall time, or `only` the given fields, such as `observation`
    or `observation.camera`.
    """
    columns, others = (
        {
            name: column
            for name, column in _columns(batch).items()
            if not only or name in only or name.partition(".")[0] in only
        }
        for batch in (first, again)
    )
    differences = []
    for name in dict.fromkeys([*columns, *others]):
        start, values = columns.get(name) or others[name]
        missing = start, np.full(len(values), None, object)
        difference = _difference(name, columns.get(name, missing), others.get(name, missing))
        if difference is not None:
            differences.append(difference)
    names = tuple(difference.field for difference in differences)
    infos = names if all(name.startswith(_INFOS) for name in names) else ()
    earliest = min(differences, key=lambda difference: difference.step, default=None)
    return earliest and replace(earliest, infos=infos)


def _columns(batch: EpisodeBatch) -> dict[str, _Column]:
    """Return the fields of one episode in the order of cause and effect within a step."""
    length = len(batch.rewards)
    fields = (
        ("episode_number", batch.numbers, 0),
        ("seed", batch.seeds, 0),
        ("observation", batch.observations, 0),
        ("last_observation", batch.last_observations, length),
        ("episode_info", batch.episode_infos, 0),
        ("action", batch.actions, 0),
        ("agent_info", batch.agent_infos, 0),
        ("reward", batch.rewards, 0),
        ("terminated", batch.terminated, length - 1),
        ("truncated", batch.truncated, length - 1),
        ("env_info", batch.env_infos, 0),
        ("length", batch.lengths, length - 1),
    )
    columns: dict[str, _Column] = {}
    for field, tree, start in fields:
        for name, column in _leaves(field, tree, start):
            columns[free_name(name, columns)] = column  # Keys with dots can give two leaves the same name.
    return columns


def _leaves(name: str, tree: Any, start: int) -> Iterator[tuple[str, _Column]]:
    """Yield the leaves of a field with their names; its first row belongs to step `start`."""
    if isinstance(tree, Mapping | tuple):
        for key, branch in tree.items() if isinstance(tree, Mapping) else enumerate(tree):
            yield from _leaves(f"{name}.{key}", branch, start)
    else:
        yield name, (start, tree)


def _difference(name: str, first: _Column, again: _Column) -> Difference | None:
    """Return the first difference of two columns in their common rows; `length` shows missing rows."""
    (start, left) = first
    (again_start, right) = again
    if start != again_start and name != "length":
        return None  # The last observations of runs of different lengths are not comparable.
    row = _first_row(left, right)
    if row is None:
        return None
    pair = _value(left, row), _value(right, row)
    # JSON lists may be ragged, so they need object arrays.
    before, now = (
        np.asarray(value, None if isinstance(value, np.ndarray | np.generic) else object) for value in pair
    )
    if before.shape == now.shape != ():
        element = _first_row(before.ravel(), now.ravel()) or 0
        before = before.ravel()[element]
        now = now.ravel()[element]
    return Difference(name, min(start, again_start) + row, [_shown(before), _shown(now)])


def _first_row(left: Array, right: Array) -> int | None:
    """Return the first common row that differs in type or bits; None if none does."""
    n_rows = min(len(left), len(right))
    if not any(np.ma.isMaskedArray(values) or values.dtype == object for values in (left, right)):
        alike = (left.dtype, left.shape[1:]) == (right.dtype, right.shape[1:])
        if alike and left[:n_rows].tobytes() == right[:n_rows].tobytes():
            return None
    return next((row for row in range(n_rows) if _bits(_value(left, row)) != _bits(_value(right, row))), None)


def _value(values: Array, row: int) -> Any:
    """Return the value of a row; None if it is masked."""
    return None if np.ma.getmaskarray(values[row : row + 1]).any() else np.ma.getdata(values)[row]


def _bits(value: Any) -> tuple[Any, ...]:
    """Return a key that is equal for two values of the same type and bits."""
    if not isinstance(value, np.ndarray | np.generic):
        return type(value), repr(value)  # In Python [1] == [True] == [1.0], and 0.0 == -0.0.
    return value.dtype, value.shape, value.tolist() if value.dtype == object else value.tobytes()


def _shown(value: Any) -> Any:
    """Return a value for JSON: finite numbers, bools and None unchanged, others as short strings."""
    value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    text = str(value)
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"


def diff(first: Dataset, second: Dataset) -> tuple[int | None, Difference] | None:
    """Compare two datasets episode by episode, and return the first difference; None if they are identical.

    Spaces, numbers, seeds and all recorded values are compared, with their types. The worker and the wall
    time of an episode, the division into files, and other facts of info.json are not.

    Returns:
        The index of the episode (None if spaces or the number of episodes differ) and the difference.

    Raises:
        DatasetFormatError: If files are damaged.
        StorageError: If files cannot be read.
    """
    texts = [str(dataset.info["spaces"]) for dataset in (first, second)]
    if texts[0] != texts[1]:
        return None, Difference("spaces", 0, texts)
    n_episodes = min(len(first), len(second))
    start = 0
    for block in first.rows.select(slice(n_episodes)).blocks():
        other = second.rows.select(slice(start, start + len(block)))
        if first_difference(block.batch(), other.batch()) is not None:  # Most blocks are the same.
            for place, pair in enumerate(zip(block.batches, other.batches, strict=True), start):
                if (difference := first_difference(*pair)) is not None:
                    return place, difference
        start += len(block)
    if len(first) != len(second):
        return None, Difference("episodes", 0, [len(first), len(second)])
    return None
