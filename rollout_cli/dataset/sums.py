"""Count, extremes, mean and squared distances of numbers, and how those of two sets join.

Numbers are taken block by block, so that what is computed from a block is still in the processor's cache, and blocks
are joined by the method of Chan, Golub and LeVeque. Numbers that are not finite are not counted.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rollout_cli.dataset.columns import Array

BLOCK = 1 << 16
"""Numbers of a block: half a megabyte as float64."""

_LINE = 1 << 10
"""Extremes are sought in so many numbers at once: numpy takes longer to go on to the next line than for the line."""


@dataclass(frozen=True, slots=True)
class Sums:
    """Each an array of the shape of one row; `squares` are sums of squared distances from the mean."""

    count: Array
    low: Array
    high: Array
    mean: Array
    squares: Array


def sums_of(values: Array) -> Sums:
    """Return the sums of `values`, (n, *shape) with n of at least 1, of each number of a row apart."""
    rows = np.ascontiguousarray(values).reshape(len(values), -1)
    low, high = (_extremes(rows, extreme).astype(np.float64) for extreme in (np.minimum, np.maximum))
    with np.errstate(over="ignore", invalid="ignore"):
        # What is not finite would be one of the extremes.
        if not np.isfinite([low, high]).all():
            sums = joined([_finite_block(block) for block in _blocks(rows)])
        elif (low == high).all():
            sums = Sums(np.full(low.shape, len(rows)), low, high, low, np.zeros(low.shape))
        else:
            sums = joined([_block(block, low, high) for block in _blocks(rows)])
    return Sums(*(getattr(sums, name).reshape(values.shape[1:]) for name in Sums.__slots__))


def sums_of_flags(count: int, trues: int) -> Sums:
    """Return the sums of `count` bools, at least 1, of which `trues` are true."""
    mean = trues / count
    parts = (float(trues == count), float(trues > 0), mean, mean * (count - trues))
    return Sums(np.asarray(count), *map(np.asarray, parts))


def joined(parts: Sequence[Sums]) -> Sums:
    """Return the sums of what all of `parts` counted, at least one."""
    if len(parts) == 1:
        return parts[0]
    counts, lows, highs, means, squares = (np.array([getattr(part, name) for part in parts]) for name in Sums.__slots__)
    count = counts.sum(axis=0)
    with np.errstate(over="ignore", invalid="ignore"):
        shares = counts / np.maximum(count, 1)
        # As a distance from one of them, for all may be far from zero and near one another.
        mean = means[0] + ((means - means[0]) * shares).sum(axis=0)
        apart = means - mean
        distances = squares.sum(axis=0) + (apart * apart * counts).sum(axis=0)
    return Sums(count, lows.min(axis=0), highs.max(axis=0), mean, distances)


def _extremes(rows: Array, extreme: np.ufunc) -> Array:
    """Return the lowest or highest number of each column of (n, k), shape (k,)."""
    n_rows, width = rows.shape
    together = max(1, _LINE // max(1, width))
    whole = n_rows // together
    if together == 1 or whole <= 1:
        return np.asarray(extreme.reduce(rows, axis=0))
    lines = rows[: whole * together].reshape(whole, together * width)
    found = extreme.reduce(lines, axis=0).reshape(together, width)
    return np.asarray(extreme.reduce(np.concatenate([found, rows[whole * together :]]), axis=0))


def _blocks(rows: Array) -> Iterator[Array]:
    size = max(1, BLOCK // max(1, rows.shape[1]))
    return (rows[start : start + size] for start in range(0, len(rows), size))


def _block(rows: Array, low: Array, high: Array) -> Sums:
    """Return the sums of the columns of (n, k), all finite, whose extremes are known already."""
    # Columns first: summing along contiguous memory is several times as fast.
    numbers = _memory.of(rows.size).reshape(rows.shape[::-1])
    np.copyto(numbers, rows.T)
    mean = numbers.sum(axis=1) / len(rows)
    numbers -= mean[:, None]
    numbers *= numbers
    return Sums(np.full(low.shape, len(rows)), low, high, mean, numbers.sum(axis=1))


def _finite_block(rows: Array) -> Sums:
    numbers = np.ascontiguousarray(rows.T, np.float64)
    finite = np.isfinite(numbers)
    count = finite.sum(axis=1)
    mean = np.sum(numbers, axis=1, where=finite) / np.maximum(count, 1)
    low = np.min(numbers, axis=1, where=finite, initial=math.inf)
    high = np.max(numbers, axis=1, where=finite, initial=-math.inf)
    # In place of the others the mean, which has no distance from itself.
    apart = np.where(finite, numbers, mean[:, None]) - mean[:, None]
    return Sums(count, low, high, mean, (apart * apart).sum(axis=1))


class _Memory(threading.local):
    """Of one thread: used for every block, since memory that is touched for the first time has to be cleared."""

    def __init__(self) -> None:
        self._numbers = np.empty(BLOCK)

    def of(self, size: int) -> Array:
        return self._numbers[:size] if size <= BLOCK else np.empty(size)


_memory = _Memory()
