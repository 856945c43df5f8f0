"""Batches that must hold the same values of the same types."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rollout_cli.episodes.batch import EpisodeBatch

_ARRAYS = ("lengths", "terminated", "truncated", "numbers", "seeds", "rewards", "step_types")
_TREES = ("observations", "last_observations", "actions", "next_observations")
_INFOS = ("env_infos", "agent_infos", "episode_infos")


def assert_same_batches(expected: EpisodeBatch, actual: EpisodeBatch) -> None:
    """Check all arrays: their dtypes, shapes and values; NaN equals NaN."""
    assert_same_steps(expected, actual)
    for name in _INFOS:
        left, right = getattr(expected, name), getattr(actual, name)
        assert sorted(left) == sorted(right), name
        for key in left:
            _assert_same(f"{name}[{key!r}]", left[key], right[key])


def assert_same_steps(expected: EpisodeBatch, actual: EpisodeBatch) -> None:
    """Check all arrays but those of infos."""
    for name in _ARRAYS:
        _assert_same(name, getattr(expected, name), getattr(actual, name))
    for name in _TREES:
        _assert_same_trees(name, getattr(expected, name), getattr(actual, name))


def assert_same_info_values(expected: EpisodeBatch, actual: EpisodeBatch) -> None:
    """Check the values of all infos, but not how an array is typed, nor keys without any value.

    A dataset stores 1 in a column of floats as 1.0, and a number that JSON lacks, in the JSON remainder, as a
    text.
    """
    for name in _INFOS:
        left, right = (
            {key: [_canonical(row) for row in _rows(values)] for key, values in getattr(one, name).items()}
            for one in (expected, actual)
        )
        for found in (left, right):
            for key in [
                key for key, values in found.items() if not any(value is not None for value in values)
            ]:
                del found[key]
        assert left == right, name


def select(batch: EpisodeBatch, places: list[int]) -> EpisodeBatch:
    """Return some episodes of a batch, by plain numpy and without the code under test."""
    episodes = batch.split()
    return EpisodeBatch.concatenate(*(episodes[place] for place in places))


def _assert_same_trees(name: str, expected: Any, actual: Any) -> None:
    assert type(expected) is type(actual), name
    if isinstance(expected, dict | tuple):
        keys = list(expected) if isinstance(expected, dict) else list(range(len(expected)))
        assert keys == (list(actual) if isinstance(actual, dict) else list(range(len(actual)))), name
        for key in keys:
            _assert_same_trees(f"{name}.{key}", expected[key], actual[key])
    else:
        _assert_same(name, expected, actual)


def _assert_same(name: str, expected: Any, actual: Any) -> None:
    assert (expected.dtype, expected.shape) == (actual.dtype, actual.shape), name
    if expected.dtype == object or isinstance(expected, np.ma.MaskedArray):
        assert _plain(expected) == _plain(actual), name
    else:
        np.testing.assert_array_equal(expected, actual, err_msg=name, strict=True)


def _plain(values: Any) -> str:
    """Return values as text, in which NaN equals NaN, and None stands for a value that is missing."""
    return repr(_rows(values))


def _rows(values: Any) -> list[Any]:
    rows = [None if np.ma.getmaskarray(row).all() and np.ma.is_masked(row) else row for row in values]
    return [row.tolist() if isinstance(row, np.ndarray | np.generic) else row for row in rows]


def _canonical(value: Any) -> Any:
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
