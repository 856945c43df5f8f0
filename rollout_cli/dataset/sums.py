"""Count, extremes, mean and squared distances of numbers, and how those of two sets join.

Numbers are taken block by block, so that what is computed from a block is still in the processor's cache, and blocks
are joined by the method of Chan, Golub and LeVeque. Numbers that are not finite are not counted.
"""

from __future__ import annotations

import math
import threading
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
    shape = values.shape[1:]
    rows = np.ascontiguousarray(values).reshape(len(values), -1)
    low, high = (_extremes(rows, extreme).astype(np.float64) for extreme in (np.minimum, np.maximum))
    with np.errstate(over="ignore", invalid="ignore"):
        # What is not finite would be one of the extremes.
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            sums = _finite_sums(rows)
        elif (low == high).all():
            sums = Sums(np.full(low.shape, len(rows)), low, high, low, np.zeros(low.shape))
        else:
            sums = Sums(np.full(low.shape, len(rows)), low, high, *_moments(rows))
    return Sums(*(getattr(sums, name).reshape(shape) for name in Sums.__slots__))


def sums_of_flags(count: int, trues: int) -> Sums:
    """Return the sums of `count` bools, at least 1, of which `trues` are true."""
    mean = trues / count
    parts = (float(trues == count), float(trues > 0), mean, mean * (count - trues))
    return Sums(np.asarray(count), *map(np.asarray, parts))


def joined(first: Sums, second: Sums) -> Sums:
    """Return the sums of what both counted."""
    count = first.count + second.count
    share = second.count / np.maximum(count, 1)
    apart = second.mean - first.mean
    with np.errstate(over="ignore", invalid="ignore"):
        return Sums(
            count,
            low=np.minimum(first.low, second.low),
            high=np.maximum(first.high, second.high),
            mean=first.mean + apart * share,
            squares=first.squares + second.squares + apart * apart * first.count * share,
        )


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


def _moments(rows: Array) -> tuple[Array, Array]:
    """Return means and sums of squared distances from them of the columns of (n, k), each (k,)."""
    n_rows, width = rows.shape
    size = max(1, BLOCK // width)
    counts, means, squares = [], [], []
    for start in range(0, n_rows, size):
        block = rows[start : start + size]
        # Columns first: summing along contiguous memory is several times as fast.
        numbers = _scratch(block.size).reshape(width, len(block))
        np.copyto(numbers, block.T)
        mean = numbers.sum(axis=1) / len(block)
        numbers -= mean[:, None]
        counts.append(len(block))
        means.append(mean)
        numbers *= numbers
        squares.append(numbers.sum(axis=1))
    if len(counts) == 1:
        return means[0], squares[0]
    shares, of_blocks = np.array(counts)[:, None] / n_rows, np.array(means)
    mean = of_blocks[0] + ((of_blocks - of_blocks[0]) * shares).sum(axis=0)
    apart = of_blocks - mean
    return mean, np.sum(squares, axis=0) + (apart * apart * shares).sum(axis=0) * n_rows


class _Memory(threading.local):
    """Of one thread: used for every block, since memory that is touched for the first time has to be cleared."""

    def __init__(self) -> None:
        self.numbers = np.empty(BLOCK, np.float64)


_memory = _Memory()


def _scratch(size: int) -> Array:
    return _memory.numbers[:size] if size <= BLOCK else np.empty(size, np.float64)


def _finite_sums(rows: Array) -> Sums:
    size = max(1, BLOCK // rows.shape[1])
    out = None
    for start in range(0, len(rows), size):
        block = _finite_block(np.ascontiguousarray(rows[start : start + size].T, np.float64))
        out = block if out is None else joined(out, block)
    assert out is not None
    return out


def _finite_block(numbers: Array) -> Sums:
    finite = np.isfinite(numbers)
    count = np.asarray(finite.sum(axis=-1))
    mean = np.asarray(np.sum(numbers, axis=-1, where=finite) / np.maximum(count, 1))
    low = np.min(numbers, axis=-1, where=finite, initial=math.inf)
    high = np.max(numbers, axis=-1, where=finite, initial=-math.inf)
    # In place of the others the mean, which has no distance from itself.
    apart = np.where(finite, numbers, mean[..., None]) - mean[..., None]
    return Sums(count, low, high, mean, np.asarray((apart * apart).sum(axis=-1)))
