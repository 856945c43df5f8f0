"""Values that a dataset holds as they came, and its reader should know of: not finite, or outside of their space.

Nothing is looked at for it but the statistics, which are there anyway; only where these speak of such values are the
files read again, to say where the first one is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rollout_cli.dataset.columns import Array
from rollout_cli.dataset.features import SpaceColumn
from rollout_cli.dataset.limits import check_group, open_parquet
from rollout_cli.dataset.schema import SpaceSchema
from rollout_cli.dataset.stats import TableStats
from rollout_cli.dataset.sums import Sums
from rollout_cli.dataset.tables import reading

REWARD = "reward"


@dataclass(frozen=True, slots=True)
class Strange:
    """A column with such values.

    Attributes:
        column: Its name.
        problem: `not_finite` or `outside`.
        what: What values, in words.
        episode: The id of the first episode that has one.
        step: The first step there.
    """

    column: str
    problem: Literal["not_finite", "outside"]
    what: str
    episode: int | None = None
    step: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON has them."""
        return asdict(self)

    def __str__(self) -> str:
        first = "" if self.episode is None else f", first in episode {self.episode} at step {self.step}"
        return f"{self.column} holds {self.what}{first}; it was stored as it came"


def strange_values(root: Path, stats: TableStats, spaces: SpaceSchema, rows: int) -> list[Strange]:
    """Return the columns of observations, actions and rewards that hold such values.

    Args:
        root: The dataset's folder, all of whose data files are in place.
        stats: The statistics of its rows.
        spaces: Its columns.
        rows: How many rows there are.

    Raises:
        DatasetFormatError: If a file is not what was written (an earlier run's may have been changed meanwhile), or
            would take too much memory.
        StorageError: If one cannot be read.
    """
    columns = {column.name: column for column in (*spaces.observation, *spaces.action) if column.stored}
    found = []
    for name in (*columns, REWARD):
        sums = stats.sums(name)
        if sums is not None and not stats.is_sampled(name):
            found += [_placed(one, root, columns.get(name)) for one in _problems(name, sums, columns.get(name), rows)]
    return found


def _problems(name: str, sums: Sums, column: SpaceColumn | None, rows: int) -> Iterator[Strange]:
    missing = rows * np.size(sums.count) - int(np.sum(sums.count))
    if missing:
        yield Strange(name, "not_finite", f"{missing:,} numbers that are not finite (nan or infinite)")
    bounds = None if column is None else column.leaf.bounds
    if bounds is not None and (np.any(sums.low < bounds[0]) or np.any(sums.high > bounds[1])):
        low, high = float(np.min(sums.low)), float(np.max(sums.high))
        assert column is not None
        yield Strange(name, "outside", f"values from {low:g} to {high:g}, outside of {column.leaf.space}")


def _placed(strange: Strange, root: Path, column: SpaceColumn | None) -> Strange:
    for path in sorted((root / "data").glob("chunk-*/file-*.parquet")):
        with reading(path):
            file = open_parquet(root, path)
        for group in range(file.num_row_groups):
            with reading(path):
                check_group(path, file, group)
                table = file.read_row_group(group, columns=["episode_id", "step", strange.column])
            values = table[REWARD].to_numpy() if column is None else column.decode(table)
            bad = np.flatnonzero(_is_strange(strange, values, column))
            if len(bad):
                at = int(bad[0])
                episode, step = table["episode_id"][at].as_py(), table["step"][at].as_py()
                return Strange(strange.column, strange.problem, strange.what, episode, step)
    return strange


def _is_strange(strange: Strange, values: Array, column: SpaceColumn | None) -> Array:
    """Return which rows have such a value, bool (T,)."""
    if strange.problem == "not_finite":
        bad = ~np.isfinite(values)
    else:
        assert column is not None
        bounds = column.leaf.bounds
        assert bounds is not None
        bad = (values < bounds[0]) | (values > bounds[1])
    return np.asarray(bad.reshape(len(values), -1).any(axis=1))
