"""Batches of steps, from memory or straight from the files, and of windows of steps within episodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from operator import itemgetter
from typing import Any, Literal

import numpy as np

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
from rollout_cli.dataset.schema import DatasetSchema
from rollout_cli.episodes.spaces import Array, map_tree

COLUMNS = ("observations", "actions", "rewards", "next_observations", "terminated", "truncated")
"""What a batch has, in this order, unless some are chosen."""

Padding = Literal["after", "before"] | None

BUFFER_BYTES = 64 << 20
"""The nominal bytes of the steps that are in memory, and shuffled among one another, at one time."""


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


def stream_batches(
    rows: Rows, size: int, shuffle: int | None, columns: Sequence[str] | None, infos: Sequence[str]
) -> Iterator[Batch]:
    """Yield the steps in batches of `size`, the last one of what is left; see `Dataset.iter_batches`."""
    rng = None if shuffle is None else np.random.default_rng(shuffle)
    blocks = list(rows.blocks())
    if rng is not None:
        blocks = [blocks[at] for at in rng.permutation(len(blocks))]
    left: list[Batch] = []  # Fewer steps than a batch has.
    n_left = 0
    for buffer in _buffers(rows, blocks):
        steps = Transitions(buffer, columns, infos)
        order = np.arange(len(steps)) if rng is None else rng.permutation(len(steps))
        start = 0
        while start < len(order):
            part = order[start : start + size - n_left]
            left.append(steps[part])
            start, n_left = start + len(part), n_left + len(part)
            if n_left == size:
                yield _joined(left)
                left, n_left = [], 0
    if left:
        yield _joined(left)


def _buffers(rows: Rows, blocks: Sequence[Rows]) -> Iterator[Rows]:
    """Yield blocks together that have about as many bytes as a buffer; one that has more stays whole."""
    step_bytes = DatasetSchema.from_info(rows.info).step_bytes
    taken: list[Rows] = []
    n_bytes = 0
    for block in blocks:
        size = int(block.column("length").sum()) * step_bytes
        if taken and n_bytes + size > BUFFER_BYTES:
            yield _together(rows, taken)
            taken, n_bytes = [], 0
        taken.append(block)
        n_bytes += size
    if taken:
        yield _together(rows, taken)


def _together(rows: Rows, blocks: Sequence[Rows]) -> Rows:
    return Rows(rows.table, np.concatenate([block.ids for block in blocks]))


def _joined(parts: Sequence[Batch]) -> Batch:
    return parts[0] if len(parts) == 1 else map_tree(_concatenated, *parts)


def _concatenated(*leaves: Any) -> Any:
    is_masked = any(isinstance(leaf, np.ma.MaskedArray) for leaf in leaves)
    concatenate: Any = np.ma.concatenate if is_masked else np.concatenate
    return concatenate(leaves)


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
        stride: int = 1,
        pad: Padding = "after",
        returns_to_go: bool = False,
        columns: Sequence[str] | None = None,
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
        self._names, self._pad, self._stride = chosen_columns(columns, tuple(FIELDS)), pad, stride
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
        first_windows, first_rows = np.cumsum(counts) - counts, np.cumsum(lengths) - lengths
        self._facts = np.column_stack([first_windows, lengths, first_rows])

    def __len__(self) -> int:
        return len(self._episodes)

    def _batch(self, places: Array) -> Batch:
        facts = self._facts.take(self._episodes.take(places), 0)
        first_window, length, first_row = facts[:, 0], facts[:, 1:2], facts[:, 2:]
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
