"""Single steps of episodes, each with the observation that followed it, in batches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import itemgetter

import numpy as np

from rollout_cli.dataset.convert import Array
from rollout_cli.dataset.flat import (
    FIELDS,
    Batch,
    FlatDataset,
    chosen_columns,
    flat_columns,
    last_observations,
    taken,
)
from rollout_cli.dataset.rows import Rows
from rollout_cli.episodes.spaces import map_tree

COLUMNS = ("observations", "actions", "rewards", "next_observations", "terminated", "truncated")
"""What a batch has, in this order, unless some are chosen."""


class Transitions(FlatDataset):
    """The steps of some episodes, in memory. A pickled one reads them again.

    `len` counts steps, in the order of the episodes. A batch is a dict of trees of new arrays, one row a
    step. Next observations take no memory of their own: they are the observations a row later, or an
    episode's last observation.
    """

    def __init__(self, rows: Rows, columns: Sequence[str] | None = None, infos: Sequence[str] = ()) -> None:
        """Read the columns.

        Raises:
            ValueError: If there is no such column or info.
            DatasetFormatError: If the files are damaged, or contradict each other.
            StorageError: If they cannot be read, or do not fit into memory.
        """
        self._again = partial(Transitions, rows, columns, infos)
        self._names = [*chosen_columns(columns, COLUMNS), *infos]
        read = [name for name in FIELDS if name in {name.removeprefix("next_") for name in self._names}]
        lengths = rows.column("length")
        self._n_rows, ends = int(lengths.sum()), np.cumsum(lengths) - 1
        flat = flat_columns(rows, read, blank_rows=len(rows))
        steps = slice(self._n_rows)
        self._columns = {name: map_tree(itemgetter(steps), tree) for name, tree in flat.items()}
        for name in ("terminated", "truncated"):
            self._columns[name] = np.zeros(self._n_rows, bool)
            self._columns[name][ends] = rows.column(name)
        self._columns |= {name: rows.step_info(name) for name in infos}
        if "next_observations" in self._names:
            map_tree(partial(_put, self._n_rows), flat["observations"], last_observations(rows))
        # Behind those of all steps stand the last observations: one index finds what followed a step.
        self._observations, rows_in_all = flat.get("observations"), self._n_rows + len(rows)
        self._following = np.arange(1, self._n_rows + 1, dtype=np.min_scalar_type(rows_in_all))
        self._following[ends] = np.arange(self._n_rows, rows_in_all)

    def __len__(self) -> int:
        return self._n_rows

    def _batch(self, places: Array) -> Batch:
        following = self._following.take(places)
        return {
            name: taken(self._observations, following)
            if name == "next_observations"
            else taken(self._columns[name], places)
            for name in self._names
        }


def _put(row: int, leaf: Array, last: Array) -> None:
    leaf[row:] = last
