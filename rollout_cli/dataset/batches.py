"""Batches of steps, and of windows of steps within episodes, from columns in memory or from the files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from operator import itemgetter
from typing import Any, Literal, TypeVar

import numpy as np
import pyarrow as pa

from rollout_cli.dataset.episode_table import DATA, EPISODES, field_columns, field_leaves, field_tree
from rollout_cli.dataset.rows import Rows
from rollout_cli.dataset.schema import SpaceColumn
from rollout_cli.episodes.batch import at_ends
from rollout_cli.episodes.infos import concatenated
from rollout_cli.episodes.notebook import html_table, shape_of
from rollout_cli.episodes.spaces import Array, Tree, empty_column, map_tree, tree_leaves
from rollout_cli.errors import StorageError

FIELDS = {"observations": "observation", "actions": "action", "rewards": "reward"}
"""What has a value at each step, and what its columns are called."""

Batch = dict[str, Tree]
"""By name, trees of arrays with one row an item."""

COLUMNS = ("observations", "actions", "rewards", "next_observations", "terminated", "truncated")
"""What a batch has, in this order, unless some are chosen."""

Index = int | np.integer[Any] | slice | Sequence[int] | Array
"""One item, or some."""

Names = Sequence[str] | None
"""The columns that are chosen; None for all."""

Padding = Literal["after", "before"] | None

BUFFER_BYTES = 64 << 20
"""Row groups are read together until their nominal bytes come to so many: these are in memory at one time,
and shuffled among one another."""

Item = TypeVar("Item")


def refuse_masked(at: Any) -> None:
    """Raise TypeError where some values of an index are masked: numpy would take what is below."""
    if np.ma.is_masked(at):
        raise TypeError(
            "items are chosen by an array of which some values are masked, as where an info is missing: "
            "say what these are, as mask.filled(False) does"
        )


class FlatDataset(ABC):
    """Items of episodes, in batches by their places: what `torch.utils.data.DataLoader` takes too.

    `len` counts items. `[3]` is one item, `[places]` a batch of them, for integers, a slice or a mask.
    """

    _again: Callable[[], FlatDataset]
    """Reads the same again: what is pickled."""

    _names: Sequence[str]
    """The columns of an item."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self):,} items of {', '.join(self._names)}>"

    def _repr_html_(self) -> str:
        item = self[0] if len(self) else dict.fromkeys(self._names, "")
        columns = {name: shape_of(value) for name, value in item.items()}
        return html_table(f"{type(self).__name__}: {len(self):,} items", columns)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._again, ()

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def _batch(self, places: Array) -> Batch:
        """Return the items at `places`, int64 (n,), which are checked."""

    def __getitem__(self, at: Index) -> Batch:
        """Return one item, or a batch.

        Raises:
            IndexError: If there is no such item, or a mask has another length.
            TypeError: If `at` is not an integer, a slice, integers, or a mask, or is masked itself.
        """
        refuse_masked(at)
        places = np.arange(len(self))[at] if isinstance(at, slice) else np.asarray(at)
        if places.dtype == np.bool_:
            places = np.arange(len(self))[places]
        elif not places.size:
            places = places.astype(np.int64)  # numpy takes an empty list for floats.
        if places.dtype.kind not in "iu" or places.ndim > 1:
            raise TypeError(f"items are chosen by integers, a slice or a mask, not by {at!r}")
        places = places.astype(np.int64, copy=False)  # Others overflow, or become floats.
        if places.ndim:
            return self._batch(places)
        return {name: map_tree(itemgetter(0), tree) for name, tree in self._batch(places[None]).items()}

    def __getitems__(self, places: Sequence[int]) -> Batch:
        """Return a batch; torch's loaders ask so for all items of a batch at once."""
        return self[places]


class Transitions(FlatDataset):
    """The steps of some episodes, in memory. A pickled one reads them again.

    `len` counts steps, in the order of the episodes. A batch is a dict of trees of new arrays, one row a
    step. Next observations take no memory of their own: they are the observations a row later, or an
    episode's last observation.
    """

    def __init__(self, rows: Rows, columns: Names, infos: Sequence[str]) -> None:
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
        self._n_rows = rows.n_steps
        ends = np.cumsum(lengths) - 1
        flat = flat_columns(rows, read, blank_rows=len(rows))
        steps = slice(self._n_rows)
        self._columns = {name: map_tree(itemgetter(steps), tree) for name, tree in flat.items()}
        self._columns |= {name: at_ends(lengths, rows.column(name)) for name in ("terminated", "truncated")}
        self._columns |= {name: rows.step_info(name) for name in infos}
        if "next_observations" in self._names:
            (last_observations,) = _read(rows, EPISODES, ["last_observation"], np.ones_like(lengths), 0)
            leaves = tree_leaves(flat["observations"]), tree_leaves(last_observations)
            for observed, last in zip(*leaves, strict=True):
                observed[self._n_rows :] = last
        # Behind those of all steps stand the last observations: one index finds what followed a step.
        self._columns["next_observations"] = flat.get("observations")
        rows_in_all = self._n_rows + len(rows)
        self._following = np.arange(1, self._n_rows + 1, dtype=np.min_scalar_type(rows_in_all))
        self._following[ends] = np.arange(self._n_rows, rows_in_all)

    def __len__(self) -> int:
        return self._n_rows

    def _batch(self, places: Array) -> Batch:
        following = self._following.take(places)
        return {
            name: taken(self._columns[name], following if name == "next_observations" else places)
            for name in self._names
        }


def stream_batches(
    rows: Rows, size: int, shuffle: int | None, columns: Names, infos: Sequence[str]
) -> Iterator[Batch]:
    """Yield the steps in batches of `size`, the last one of what is left; see `Dataset.iter_batches`."""
    ordered: Callable[[int], Array] = np.arange
    if shuffle is not None:
        ordered = np.random.default_rng(shuffle).permutation
    blocks = list(rows.blocks())
    blocks = [blocks[at] for at in ordered(len(blocks))]
    left = []  # Fewer steps than a batch has.
    n_left = 0
    step_bytes = rows.table.schema.step_bytes
    for buffer in grouped(blocks, lambda block: block.n_steps * step_bytes, BUFFER_BYTES):
        buffered = Rows(rows.table, np.concatenate([block.ids for block in buffer]))
        steps = Transitions(buffered, columns, infos)
        for part in np.split(ordered(len(steps)), range(size - n_left, len(steps), size)):
            left.append(steps[part])
            n_left += len(part)
            if n_left == size:
                yield _joined(left)
                left = []
                n_left = 0
    if left:
        yield _joined(left)


def grouped(items: Iterable[Item], size: Callable[[Item], int], least: int) -> Iterator[list[Item]]:
    """Yield items in lists, each ended by the item with which their sizes come to `least`."""
    group = []
    total = 0
    for item in items:
        group.append(item)
        total += size(item)
        if total >= least:
            yield group
            group = []
            total = 0
    if group:
        yield group


def _joined(parts: Sequence[Batch]) -> Batch:
    return parts[0] if len(parts) == 1 else map_tree(lambda *leaves: concatenated(leaves), *parts)


class Windows(FlatDataset):
    """Windows of `length` steps that stay within an episode, in memory. A pickled one reads them again.

    A batch of B windows is a dict of trees of new arrays (B, length, *shape), and of `mask`, bool (B,
    length), which is true for steps, and `timesteps`, int64 (B, length), which counts from each episode's
    first step. Padding is zeros (empty texts).
    """

    def __init__(
        self,
        rows: Rows,
        length: int,
        *,
        stride: int,
        pad: Padding,
        returns_to_go: bool,
        columns: Names,
    ) -> None:
        """Read the columns.

        Raises:
            ValueError: If `length` or `stride` is less than 1, or there is no such padding or column.
            DatasetFormatError: If the files are damaged, or contradict each other.
            StorageError: If they cannot be read, or do not fit into memory.
        """
        if length < 1 or stride < 1 or pad not in ("after", "before", None):
            raise ValueError(
                f"length {length} and stride {stride} must be 1 or more, and pad {pad!r} be 'after', "
                "'before' or None"
            )
        self._again = partial(
            Windows, rows, length, stride=stride, pad=pad, returns_to_go=returns_to_go, columns=columns
        )
        self._names = chosen_columns(columns, tuple(FIELDS))
        self._pad = pad
        self._stride = stride
        read = [*self._names, *(["rewards"] if returns_to_go and "rewards" not in self._names else [])]
        self._flat = flat_columns(rows, read, blank_rows=1)
        lengths = rows.column("length")
        if returns_to_go:
            self._flat["returns_to_go"] = _returns_to_go(self._flat["rewards"], lengths)
            self._names.append("returns_to_go")
        self._steps = np.arange(length) - (length - 1 if pad == "before" else 0)
        counts = -(-np.maximum(lengths - (0 if pad else length - 1), 0) // stride)
        # Each window's episode, from which all else follows, takes four bytes a window. What is known of an
        # episode lies together: a batch has 256 of them, each in another place of the memory.
        self._episodes = np.repeat(np.arange(len(rows), dtype=np.int32), counts)
        first_windows = np.cumsum(counts) - counts
        first_rows = np.cumsum(lengths) - lengths
        self._facts = np.column_stack([first_windows, lengths, first_rows])

    def __len__(self) -> int:
        return len(self._episodes)

    def _batch(self, places: Array) -> Batch:
        facts = self._facts.take(self._episodes.take(places), 0)
        first_window = facts[:, 0]
        length = facts[:, 1:2]
        first_row = facts[:, 2:]
        steps = ((places % max(1, len(self)) - first_window) * self._stride)[:, None] + self._steps
        padding = steps < 0 if self._pad == "before" else steps >= length
        rows = steps + first_row
        np.putmask(rows, padding, -1)  # The blank row is the last one.
        np.putmask(steps, padding, 0)
        batch = {name: taken(self._flat[name], rows) for name in self._names}
        return batch | {"timesteps": steps, "mask": ~padding}


def _returns_to_go(rewards: Array, lengths: Array) -> Array:
    """Return the sum of rewards from each step to the end of its episode, and the blank row."""
    out = np.zeros_like(rewards)
    for start, stop in pairwise([0, *np.cumsum(lengths).tolist()]):
        out[start:stop] = rewards[start:stop][::-1].cumsum()[::-1]
    return out


# Fields of some episodes as flat arrays, decoded once, from which batches are taken.


def taken(tree: Tree, places: Array) -> Tree:
    """Return rows of a tree of arrays; `take` is several times as fast as an index."""
    if isinstance(tree, np.ndarray):
        return tree.take(places, 0)
    return map_tree(lambda leaf: leaf.take(places, 0), tree)


def chosen_columns(names: Names, every: Sequence[str]) -> list[str]:
    """Return the chosen ones of some columns, all for None; raise `ValueError` for any other."""
    for name in names or ():
        if name not in every:
            raise ValueError(f"there is no column {name!r}; choose among {', '.join(every)}")
    return list(every if names is None else names)


def flat_columns(rows: Rows, names: Sequence[str], *, blank_rows: int) -> Batch:
    """Return some of `FIELDS` of all steps, trees of arrays (T + blank_rows, *shape).

    Behind the steps come rows of zeros, or empty texts.
    """
    trees = _read(rows, DATA, [FIELDS[name] for name in names], rows.column("length"), blank_rows)
    return dict(zip(names, trees, strict=True))


def _read(rows: Rows, folder: str, fields: Sequence[str], sizes: Array, blank_rows: int) -> list[Tree]:
    """Return fields of some episodes, of which each has so many rows in a table.

    A row group is read at a time, whatever the order of the episodes, and is not kept.

    Raises:
        DatasetFormatError: If the files are damaged, or contradict each other.
        StorageError: If they cannot be read, or do not fit into memory.
    """
    n_rows = int(sizes.sum()) + blank_rows
    spaces = rows.spaces
    names = dict.fromkeys(name for field in fields for name in field_columns(spaces, field))
    filled: list[tuple[SpaceColumn, Array]] = []
    trees = []
    try:
        for field in fields:
            columns = field_leaves(spaces, field)
            arrays = [empty_column(column.leaf, n_rows) for column in columns]
            filled += zip(columns, arrays, strict=True)
            trees.append(field_tree(spaces, field, arrays))
        for table, sources, targets in _row_groups(rows, folder, tuple(names), sizes):
            for column, array in filled:
                array[targets] = column.decode(table)[sources]
    except MemoryError as error:
        raise StorageError(
            f"{n_rows:,} rows do not fit into memory: {error}",
            code="out-of-memory",
            hint="choose fewer columns, or read batches from the files: dataset.iter_batches(256)",
        ) from error
    return trees


def _row_groups(
    rows: Rows, folder: str, columns: tuple[str, ...], sizes: Array
) -> Iterator[tuple[pa.Table, Any, Any]]:
    """Yield each row group that has rows of the episodes, which of its rows they are, and where they go."""
    if not columns:
        return
    reader = rows.table.reader
    order = np.argsort(rows.ids, kind="stable")
    places = rows.table.places(folder, rows.ids[order])
    goals = (np.cumsum(sizes) - sizes)[order]
    for path, part in rows.table.files(folder, places):
        begins = places[part, 2]
        ends = places[part, 3]
        for at, first, last in reader.groups(path, int(begins.min()), int(ends.max())):
            lows = np.maximum(begins, first)
            counts = np.minimum(ends, last) - lows
            inside = counts > 0
            if inside.any():
                sources = _ranges((lows - first)[inside], counts[inside])
                targets = _ranges((goals[part] + lows - begins)[inside], counts[inside])
                yield reader.decoded(path, at, columns), sources, targets


def _ranges(starts: Array, sizes: Array) -> slice | Array:
    """Return the places of some ranges after one another: a slice, where they are one range."""
    if (starts[1:] == starts[:-1] + sizes[:-1]).all():
        return slice(int(starts[0]), int(starts[-1] + sizes[-1]))
    return np.asarray(np.repeat(starts - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum()))
