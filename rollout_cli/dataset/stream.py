"""Batches of steps straight from the files, of datasets that are larger than memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rollout_cli.dataset.flat import Batch
from rollout_cli.dataset.rows import Rows
from rollout_cli.dataset.schema import DatasetSchema
from rollout_cli.dataset.transitions import Transitions
from rollout_cli.episodes.spaces import map_tree

BUFFER_BYTES = 64 << 20
"""The nominal bytes of the steps that are in memory, and shuffled among one another, at one time."""


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
