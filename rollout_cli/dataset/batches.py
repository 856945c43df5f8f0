"""Batches of steps, and of windows of steps within episodes, from memory or from the files."""

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
"""The fields that have a value at each step, and the names of their columns."""

Batch = dict[str, Tree]
"""Trees of arrays by name; the first axis of each array runs over the items."""

COLUMNS = ("observations", "actions", "rewards", "next_observations", "terminated", "truncated")
"""The default columns of a batch, in this order."""

Index = int | np.integer[Any] | slice | Sequence[int] | Array
"""One item, or several."""

Names = Sequence[str] | None
"""The names of the chosen columns; None for all."""

Padding = Literal["after", "before"] | None

BUFFER_BYTES = 64 << 20
"""Row groups are buffered until they have this many nominal bytes; a shuffle mixes the rows of one buffer."""

Item = TypeVar("Item")


def refuse_masked(at: Any) -> None:
    """Raise TypeError if an index is a masked array: numpy would use the values under the mask."""
    if np.ma.is_masked(at):
        raise TypeError(
            "the index is a masked array with masked values, e.g. from a missing info: "
            "fill these first, e.g. with mask.filled(False)"
        )


class FlatDataset(ABC):
    """Items of episodes, in batches by index; a map-style dataset for `torch.utils.data.DataLoader`.

    `len` counts items. `[3]` is one item; `[indices]` is a batch, for integers, a slice or a mask.
    """

    _again: Callable[[], FlatDataset]
    """Rebuilds the dataset from its files: the pickled state."""

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
        """Return the items at `places`, int64 (n,), whose range is checked."""

    def __getitem__(self, at: Index) -> Batch:
        """Return one item, or a batch.

        Raises:
            IndexError: If an index is out of range, or a mask has the wrong length.
            TypeError: If `at` is not an integer, a slice, integers or a mask, or has masked values.
        """
        refuse_masked(at)
        places = np.arange(len(self))[at] if isinstance(at, slice) else np.asarray(at)
        if places.dtype == np.bool_:
            places = np.arange(len(self))[places]
        elif not places.size:
            places = places.astype(np.int64)  # numpy makes a float array of an empty list.
        if places.dtype.kind not in "iu" or places.ndim > 1:
            raise TypeError(f"expected integers, a slice or a mask as the index, not {at!r}")
        places = places.astype(np.int64, copy=False)  # Arithmetic in other dtypes overflows or gives floats.
        if places.ndim:
            return self._batch(places)
        return {name: map_tree(itemgetter(0), tree) for name, tree in self._batch(places[None]).items()}

    def __getitems__(self, places: Sequence[int]) -> Batch:
        """Return a batch; torch's loaders call this once for all items of a batch."""
        return self[places]


class Transitions(FlatDataset):
    """The steps of some episodes, in memory. A pickled copy reads the files again.

    `len` counts steps, in the order of the episodes. A batch is a dict of trees of new arrays whose first
    axis runs over the steps. Next observations share the memory of the observations: each is the next row,
    or the last observation of its episode.

    Raises:
        IndexError: If an index is out of range, or a mask has the wrong length.

    Example:
        >>> steps = rollout_cli.load("data").transitions(columns=["observations", "rewards"])
        >>> batch = steps[[0, 40, 66]]
        >>> len(steps), batch["observations"].shape, batch["rewards"].tolist()
        (67, (3, 4), [1.0, 1.0, 1.0])
    """

    def __init__(self, rows: Rows, columns: Names, infos: Sequence[str]) -> None:
        """Read the columns.

        Raises:
            ValueError: If a column or info does not exist.
            DatasetFormatError: If the files are damaged, or contradict each other.
            StorageError: If the files cannot be read, or do not fit into memory.
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
        # The last observations follow those of all steps, which lets one index find each step's successor.
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
    """Yield the steps in batches of `size`, the last one possibly smaller; see `Dataset.iter_batches`."""
    ordered: Callable[[int], Array] = np.arange
    if shuffle is not None:
        ordered = np.random.default_rng(shuffle).permutation
    blocks = list(rows.blocks())
    blocks = [blocks[at] for at in ordered(len(blocks))]
    left = []  # Fewer steps than a full batch.
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
    """Yield the items in lists; each list ends when the sizes of its items sum to `least`."""
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
    """Windows of `length` steps within one episode, in memory. A pickled copy reads the files again.

    A batch of B windows is a dict of trees of new arrays (B, length, *shape). It includes `mask`, bool
    (B, length), true for steps and false for padding, and `timesteps`, int64 (B, length), the step's index
    in its episode. Padding is zeros (empty strings).
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
            ValueError: If `length`, `stride`, `pad` or a column name is invalid.
            DatasetFormatError: If the files are damaged, or contradict each other.
            StorageError: If the files cannot be read, or do not fit into memory.
        """
        if length < 1 or stride < 1 or pad not in ("after", "before", None):
            raise ValueError(
                f"length {length} and stride {stride} must be at least 1, and pad {pad!r} must be 'after', "
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
        # A window stores only its episode's index, in four bytes. The facts of one episode are adjacent in
        # memory, because a batch reads those of 256 random episodes.
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
        np.putmask(rows, padding, -1)  # The last row is the blank one.
        np.putmask(steps, padding, 0)
        batch = {name: taken(self._flat[name], rows) for name in self._names}
        return batch | {"timesteps": steps, "mask": ~padding}


def _returns_to_go(rewards: Array, lengths: Array) -> Array:
    """Return the sum of rewards from each step to the end of its episode, followed by the blank row."""
    out = np.zeros_like(rewards)
    for start, stop in pairwise([0, *np.cumsum(lengths).tolist()]):
        out[start:stop] = rewards[start:stop][::-1].cumsum()[::-1]
    return out


# Fields of some episodes as flat arrays, decoded once; batches index into them.


def taken(tree: Tree, places: Array) -> Tree:
    """Return rows of a tree of arrays; `take` is several times as fast as indexing."""
    if isinstance(tree, np.ndarray):
        return tree.take(places, 0)
    return map_tree(lambda leaf: leaf.take(places, 0), tree)


def chosen_columns(names: Names, every: Sequence[str]) -> list[str]:
    """Return the chosen columns, or all if `names` is None; raise `ValueError` for an unknown name."""
    for name in names or ():
        if name not in every:
            raise ValueError(f"unknown column {name!r}; choose from {', '.join(every)}")
    return list(every if names is None else names)


def flat_columns(rows: Rows, names: Sequence[str], *, blank_rows: int) -> Batch:
    """Return some of `FIELDS` for all steps, trees of arrays (T + blank_rows, *shape).

    The last `blank_rows` rows are zeros, or empty strings.
    """
    trees = _read(rows, DATA, [FIELDS[name] for name in names], rows.column("length"), blank_rows)
    return dict(zip(names, trees, strict=True))


def _read(rows: Rows, folder: str, fields: Sequence[str], sizes: Array, blank_rows: int) -> list[Tree]:
    """Return fields of some episodes; `sizes` has the number of rows of each episode in the table.

    One row group is in memory at a time, in any order of the episodes.

    Raises:
        DatasetFormatError: If the files are damaged, or contradict each other.
        StorageError: If the files cannot be read, or do not fit into memory.
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
    """Yield each row group with rows of the episodes, the indices of these rows, and their targets."""
    if not columns:
        return
    reader = rows.table.reader
    order = np.argsort(rows.ids, kind="stable")
    places = rows.table.places(folder, rows.ids[order])
    goals = (np.cumsum(sizes) - sizes)[order]
    for path, part in rows.table.files(folder, places):
        starts = places[part, 2]
        ends = places[part, 3]
        for at, first, last in reader.groups(path, int(starts.min()), int(ends.max())):
            lows = np.maximum(starts, first)
            counts = np.minimum(ends, last) - lows
            inside = counts > 0
            if inside.any():
                sources = _ranges((lows - first)[inside], counts[inside])
                targets = _ranges((goals[part] + lows - starts)[inside], counts[inside])
                yield reader.decoded(path, at, columns), sources, targets


def _ranges(starts: Array, sizes: Array) -> slice | Array:
    """Return the concatenated indices of some ranges; a slice if the ranges are contiguous."""
    if (starts[1:] == starts[:-1] + sizes[:-1]).all():
        return slice(int(starts[0]), int(starts[-1] + sizes[-1]))
    return np.asarray(np.repeat(starts - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum()))
