"""Columns of some episodes as flat arrays, decoded once, from which batches are taken."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from rollout_cli.dataset.convert import Array, decode
from rollout_cli.dataset.episode_table import DATA, EPISODES, field_columns, field_leaves, runs
from rollout_cli.dataset.layout import file_name
from rollout_cli.dataset.rows import Rows
from rollout_cli.episodes.spaces import Tree, empty_column, map_tree, unflatten
from rollout_cli.errors import StorageError

FIELDS = {"observations": "observation", "actions": "action", "rewards": "reward"}
"""What has a value at each step, and what its columns are called."""

Batch = dict[str, Tree]
"""By name, trees of arrays with one row an item."""


class FlatDataset(ABC):
    """Items of episodes, in batches by their places: what `torch.utils.data.DataLoader` takes too.

    `len` counts items. `[3]` is one item, `[places]` a batch of them, for integers, a slice or a mask.
    """

    _again: Callable[[], FlatDataset]
    """Reads the same again: what is pickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return self._again, ()

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def _batch(self, places: Array) -> Batch:
        """Return the items at `places`, int64 (n,), which are checked."""

    def __getitem__(self, at: int | np.integer[Any] | slice | Sequence[int] | Array) -> Batch:
        """Return one item, or a batch.

        Raises:
            IndexError: If there is no such item, or a mask has another length.
            TypeError: If `at` is not an integer, a slice, integers, or a mask.
        """
        places = np.arange(len(self))[at] if isinstance(at, slice) else np.asarray(at)
        if places.dtype == np.bool_:
            places = np.arange(len(self))[places]
        elif not places.size:
            places = places.astype(np.int64)  # numpy takes an empty list for floats.
        if places.dtype.kind not in "iu" or places.ndim > 1:
            raise TypeError(f"items are chosen by integers, a slice or a mask, not by {at!r}")
        if places.ndim:
            return self._batch(places)
        return {name: map_tree(itemgetter(0), tree) for name, tree in self._batch(places[None]).items()}

    def __getitems__(self, places: Sequence[int]) -> Batch:
        """Return a batch; torch's loaders ask so for all items of a batch at once."""
        return self[places]


def taken(tree: Tree, places: Array) -> Tree:
    """Return rows of a tree of arrays; `take` is several times as fast as an index."""
    if isinstance(tree, np.ndarray):
        return tree.take(places, 0)
    return map_tree(lambda leaf: leaf.take(places, 0), tree)


def chosen_columns(names: Sequence[str] | None, every: Sequence[str]) -> list[str]:
    """Return the chosen ones of some columns, all for None; raise `ValueError` for any other."""
    if wrong := [name for name in names or () if name not in every]:
        raise ValueError(f"there is no column {wrong[0]!r}; choose among {', '.join(every)}")
    return list(every if names is None else names)


def flat_columns(rows: Rows, names: Sequence[str], *, blank_rows: int) -> Batch:
    """Return some of `FIELDS` of all steps, trees of arrays (T + blank_rows, *shape).

    Behind the steps come rows of zeros, or empty texts.
    """
    trees = _read(rows, DATA, [FIELDS[name] for name in names], rows.column("length"), blank_rows)
    return dict(zip(names, trees, strict=True))


def last_observations(rows: Rows) -> Tree:
    """Return the episodes' last observations, tree of arrays (N, *shape)."""
    (tree,) = _read(rows, EPISODES, ["last_observation"], np.ones(len(rows), np.int64), 0)
    return tree


def _read(rows: Rows, folder: str, fields: Sequence[str], sizes: Array, blank_rows: int) -> list[Tree]:
    """Return fields of some episodes, of which each has so many rows in a table.

    A row group is read at a time, whatever the order of the episodes, and is not kept.

    Raises:
        DatasetFormatError: If the files are damaged, or contradict each other.
        StorageError: If they cannot be read, or do not fit into memory.
    """
    n_rows, spec, trees = int(sizes.sum()) + blank_rows, rows.spaces.env_spec, []
    filled: list[tuple[Callable[[pa.Table], Array], Array]] = []
    try:
        for field in fields:
            if field == "reward":
                trees.append(np.zeros(n_rows))
                filled.append((lambda table: decode(table["reward"]), trees[-1]))
                continue
            columns = field_leaves(rows.spaces, field)
            arrays = [empty_column(column.leaf, n_rows) for column in columns]
            filled += zip([column.decode for column in columns], arrays, strict=True)
            trees.append(
                unflatten(spec.action_space if field == "action" else spec.observation_space, arrays)
            )
        names = (name for field in fields for name in field_columns(rows.spaces, field))
        for table, sources, targets in _row_groups(rows, folder, tuple(dict.fromkeys(names)), sizes):
            for decoded, array in filled:
                array[targets] = decoded(table)[sources]
    except MemoryError as error:
        raise StorageError(
            f"{n_rows:,} rows do not fit into memory: {error}",
            hint="choose fewer columns, or read batches from the files: dataset.iter_batches(256)",
        ) from error
    return trees


def _row_groups(
    rows: Rows, folder: str, columns: tuple[str, ...], sizes: Array
) -> Iterator[tuple[pa.Table, Any, Any]]:
    """Yield each row group that has rows of the episodes, which of its rows they are, and where they go."""
    if not (len(rows) and columns):
        return
    reader, order = rows.table.reader, np.argsort(rows.ids, kind="stable")
    places, goals = rows.table.places(folder, rows.ids[order]), (np.cumsum(sizes) - sizes)[order]
    for start, stop in runs(np.any(np.diff(places[:, :2], axis=0), axis=1)):
        chunk, file, *_ = places[start].tolist()
        path = rows.root / folder / file_name((chunk, file))
        begins, ends = places[start:stop, 2], places[start:stop, 3]
        for at, first, last in reader.groups(path, int(begins.min()), int(ends.max())):
            lows = np.maximum(begins, first)
            counts = np.minimum(ends, last) - lows
            inside = counts > 0
            if inside.any():
                sources = _ranges((lows - first)[inside], counts[inside])
                targets = _ranges((goals[start:stop] + lows - begins)[inside], counts[inside])
                yield reader.decoded(path, at, columns), sources, targets


def _ranges(starts: Array, sizes: Array) -> slice | Array:
    """Return the places of some ranges after one another: a slice, where they are one range."""
    if (starts[1:] == starts[:-1] + sizes[:-1]).all():
        return slice(int(starts[0]), int(starts[-1] + sizes[-1]))
    return np.asarray(np.repeat(starts - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum()))
