"""Count, extremes, mean and squared distances of numbers, and how those of two sets join.

Numbers are taken block by block, so that what is computed from a block is still in the processor's cache, and blocks
are joined by the method of Chan, Golub and LeVeque. Numbers that are not finite are not counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rollout_cli.dataset.columns import Array

BLOCK = 1 << 16
"""Numbers of a block: half a megabyte as float64."""


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
    rows = max(1, BLOCK // max(1, math.prod(values.shape[1:])))
    out = None
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(values), rows):
            block = _block(values[start : start + rows])
            out = block if out is None else joined(out, block)
    assert out is not None
    return out


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


def _block(values: Array) -> Sums:
    # Rows last: summing along contiguous memory is several times as fast.
    numbers = np.ascontiguousarray(np.moveaxis(values, 0, -1), np.float64)
    low, high = np.asarray(numbers.min(axis=-1)), np.asarray(numbers.max(axis=-1))
    # What is not finite would be one of the extremes.
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        return _finite_block(numbers)
    count = np.full(low.shape, len(values))
    if (low == high).all():
        return Sums(count, low, high, low, np.zeros(low.shape))
    mean = np.asarray(numbers.sum(axis=-1) / len(values))
    return Sums(count, low, high, mean, _squares(numbers, mean))


def _finite_block(numbers: Array) -> Sums:
    finite = np.isfinite(numbers)
    count = np.asarray(finite.sum(axis=-1))
    mean = np.asarray(np.sum(numbers, axis=-1, where=finite) / np.maximum(count, 1))
    low = np.min(numbers, axis=-1, where=finite, initial=math.inf)
    high = np.max(numbers, axis=-1, where=finite, initial=-math.inf)
    # In place of the others the mean, which has no distance from itself.
    return Sums(count, low, high, mean, _squares(np.where(finite, numbers, mean[..., None]), mean))


def _squares(numbers: Array, mean: Array) -> Array:
    numbers = numbers - mean[..., None]
    numbers *= numbers
    return np.asarray(numbers.sum(axis=-1))
