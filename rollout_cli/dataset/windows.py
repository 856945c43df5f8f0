"""Windows of steps within episodes, for models of sequences, in batches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Literal

import numpy as np

from rollout_cli.dataset.convert import Array
from rollout_cli.dataset.flat import FIELDS, Batch, FlatDataset, chosen_columns, flat_columns, taken
from rollout_cli.dataset.rows import Rows

Padding = Literal["after", "before"] | None


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
