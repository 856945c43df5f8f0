"""What the tools that read the Parquet files themselves are asked: all rows of both tables, against the values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from values import episodes, leaves, same

Columns = Mapping[str, Sequence[Any]]


def check_columns(dataset: Path, read: Callable[[Path], Columns]) -> str:
    """Raise unless `read` gives, of the files below a folder, columns with the values of the dataset, in any order."""
    expected = episodes(dataset)
    steps, ends = read(dataset / "data"), read(dataset / "meta" / "episodes")
    order = np.lexsort((np.asarray(steps["step"]), np.asarray(steps["episode_id"])))
    order_of_ends = np.argsort(np.asarray(ends["episode_id"]))
    stops = np.cumsum([episode.length for episode in expected])
    same("rows", stops[-1], len(order))
    same("episodes", len(expected), len(order_of_ends))
    for number, (episode, stop) in enumerate(zip(expected, stops, strict=True)):
        rows = order[stop - episode.length : stop]
        for name, values in _named("observation", episode.observations).items():
            _equal(name, values[:-1], [steps[name][row] for row in rows])
            last = name.replace("observation", "last_observation", 1)
            _equal(last, values[-1:], [ends[last][order_of_ends[number]]])
        for name, values in _named("action", episode.actions).items():
            _equal(name, values, [steps[name][row] for row in rows])
        _equal("reward", episode.rewards, [steps["reward"][row] for row in rows])
        is_last = np.arange(episode.length) == episode.length - 1
        _equal("terminated", is_last & episode.terminated, [steps["terminated"][row] for row in rows])
        _equal("truncated", is_last & episode.truncated, [steps["truncated"][row] for row in rows])
    return ""


def _named(prefix: str, values: Any) -> dict[str, Any]:
    return {f"{prefix}.{path}".strip("."): leaf for path, leaf in leaves(values).items()}


def _equal(what: str, expected: Any, rows: Sequence[Any]) -> None:
    """Compare the rows of a column, where arrays of more than one axis are nested lists, and images bytes."""
    if isinstance(rows[0], bytes | bytearray):
        rows = [np.frombuffer(row, expected.dtype).reshape(expected.shape[1:]) for row in rows]
    actual = np.array([_unnested(row) for row in rows])
    same(what, expected, actual)
    if actual.dtype.kind not in "OU" and isinstance(rows[0], np.ndarray | np.generic):
        assert actual.dtype == expected.dtype, f"{what}: {actual.dtype}, not {expected.dtype}"


def _unnested(row: Any) -> Any:
    """Return a row of arrays of arrays, as pandas gives them, as one array."""
    is_nested = isinstance(row, np.ndarray) and row.dtype == object
    return np.stack([_unnested(part) for part in row]) if is_nested else row
