"""Gathering: rows that lie in many places, put together into flat columns by computed indices.

Nothing is done for a single row in Python, and little for an episode. It goes block by block and column by column, so
that indices and what is asked of a column stay in the processor's cache, and into memory that was in use before: what
is touched for the first time has to be cleared by the system, which costs more than what is copied into it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from rollout_cli.buffer_pool import Lender, lent_array
from rollout_cli.workers.rectangles import copy_rectangle, runs
from rollout_cli.workers.vector_infos import InfoKey

Array = npt.NDArray[Any]
Type = np.dtype[Any]
InfoColumns = dict[InfoKey, tuple[Array, Array]]
"""Values (rows, ...) and which rows have one (rows,)."""

BLOCK_ROWS = 1 << 16
"""Rows whose indices are computed at once, at least an episode's: 512 kB.

Neighbouring rows of a step belong to episodes that are gathered one after another: what one column of a block asks for
is fetched once for all of them, unless other columns come between.
"""


@dataclass(slots=True)
class Columns:
    """Steps as flat columns, T rows.

    Attributes:
        leaves: One array (T, *shape) a leaf: of the observation, then of the action; rewards are the last.
        infos: The infos of the environment, and those of the policy.
        types: The type of each leaf; the array may be of a smaller one that has room for what it holds. Those of the
            arrays where none are given.
    """

    leaves: list[Array]
    infos: tuple[InfoColumns, InfoColumns] = field(default_factory=lambda: ({}, {}))
    types: tuple[Type, ...] = ()

    def __post_init__(self) -> None:
        """Note the types."""
        self.types = self.types or tuple(leaf.dtype for leaf in self.leaves)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Where the rows of some episodes lie: `count[e]` rows of `source`, from `first[e]`, every `stride`-th.

    They go to the rows from `to[e]` on. Rows past the end of the source are those from its beginning on, once more.
    """

    source: Columns
    first: Array
    count: Array
    stride: int
    to: Array

    def episodes(self, start: int, stop: int) -> Stretch:
        """Return the part of the episodes from `start` to `stop - 1`."""
        if (start, stop) == (0, len(self.first)):
            return self
        at = slice(start, stop)
        return Stretch(self.source, self.first[at], self.count[at], self.stride, self.to[at])

    @property
    def follow_each_other(self) -> bool:
        """Return whether the episodes do, where they go."""
        return np.array_equal(self.to - self.to[:1], np.cumsum(self.count) - self.count)


def gather(stretches: Sequence[Stretch], n_rows: int, *lenders: Lender) -> Columns:
    """Return `n_rows` rows, put together from stretches, at least one, that cover each of them once.

    The columns are as narrow as those they come from, and lie in memory of the first of the lenders that has room; the
    last one lends what is needed meanwhile, too.
    """
    like = stretches[0].source
    columns = zip(*(stretch.source.leaves for stretch in stretches), strict=True)
    kept = map(_kept_type, columns, like.types)
    shapes = ((n_rows, *leaf.shape[1:]) for leaf in like.leaves)
    leaves = [lent_array(shape, kind, *lenders) for shape, kind in zip(shapes, kept, strict=True)]
    out = Columns(leaves, types=like.types)
    for stretch in stretches:
        _make_info_columns(out, stretch.source, n_rows)
        pairs = list(_pairs(stretch.source, out))
        if not stretch.follow_each_other:
            _copy_by_indices(stretch, pairs, lenders[-1], in_order=False)
            continue
        for start, stop, is_rectangle in runs(stretch.first, stretch.count, stretch.stride):
            part = stretch.episodes(start, stop)
            if is_rectangle:
                _copy_rectangle(part, pairs)
            else:
                _copy_by_indices(part, pairs, lenders[-1], in_order=True)
    return out


def _kept_type(parts: Sequence[Array], own: Type) -> Type:
    """Return the one type that a leaf's parts are kept in; its own where there are several, for it has room for all."""
    kind = parts[0].dtype
    return kind if all(part.dtype == kind for part in parts) else own


def _make_info_columns(out: Columns, source: Columns, n_rows: int) -> None:
    for targets, columns in zip(out.infos, source.infos, strict=True):
        for key, (values, _) in columns.items():
            if key not in targets:
                targets[key] = empty_info(n_rows, values)


def empty_info(n_rows: int, like: Array) -> tuple[Array, Array]:
    """Return the column of an info that no row has yet, for values like `like`, (any, ...)."""
    return np.zeros((n_rows, *like.shape[1:]), like.dtype), np.zeros(n_rows, bool)


def _pairs(source: Columns, out: Columns) -> Iterator[tuple[Array, Array]]:
    yield from zip(source.leaves, out.leaves, strict=True)
    for columns, targets in zip(source.infos, out.infos, strict=True):
        for key, column in columns.items():
            yield from zip(column, targets[key], strict=True)


def _copy_rectangle(part: Stretch, pairs: Sequence[tuple[Array, Array]]) -> None:
    width, first, to = len(part.first), int(part.first[0]), int(part.to[0])
    for column, target in pairs:
        copy_rectangle(column, first, part.stride, target[to : to + width * int(part.count[0])], width)


def _copy_by_indices(part: Stretch, pairs: Sequence[tuple[Array, Array]], lend: Lender, *, in_order: bool) -> None:
    """Copy the rows of a stretch some whole episodes at a time; `in_order` where these go after one another."""
    ends = np.cumsum(part.count)
    starts = ends - part.count
    start = 0
    while start < len(ends):
        stop = max(start + 1, int(ends.searchsorted(int(starts[start]) + BLOCK_ROWS, side="right")))
        block = part.episodes(start, stop)
        rows, first = spread(block.first, block.count, block.stride), int(block.to[0])
        to = slice(first, first + len(rows)) if in_order else spread(block.to, block.count)
        for column, target in pairs:
            _copy(column, rows, target, to, lend)
        start = stop


def _copy(column: Array, rows: Array, target: Array, to: slice | Array, lend: Lender) -> None:
    goes_there = isinstance(to, slice) and column.dtype == target.dtype
    taken = target[to] if goes_there else lent_array((len(rows), *column.shape[1:]), column.dtype, lend)
    # Which rows are past the end is no error: by `raise`, numpy would copy into memory of its own first.
    column.take(rows, axis=0, mode="wrap", out=taken)
    if not goes_there:
        target[to] = taken


def spread(first: Array, count: Array, stride: int = 1) -> Array:
    """Return first[e], first[e] + stride, … (count[e] of them) for all e, after one another."""
    ends = np.cumsum(count)
    n_rows = int(ends[-1]) if len(ends) else 0
    rows = np.repeat(first - (ends - count) * stride, count)
    rows += _multiples(stride, BLOCK_ROWS)[:n_rows] if n_rows <= BLOCK_ROWS else np.arange(n_rows) * stride
    return rows


@lru_cache(maxsize=4)
def _multiples(stride: int, count: int) -> Array:
    return np.arange(count) * stride
