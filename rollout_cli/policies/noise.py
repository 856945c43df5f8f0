"""Random numbers for a batch: each row has its own stream, which depends only on the row's seed.

A stream is a counter that a hash function maps to words (SplitMix64, by G. Steele, D. Lea and C. Flood). All
rows are computed at once, and each row gets bit for bit the same numbers as in a batch of one row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rollout_cli.episodes.spaces import Array
from rollout_cli.policies.policy import AdaptedPolicy
from rollout_cli.seeding.seeds import draw_root_seed

Words = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float64]

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
_UNUSED_BITS = np.uint64(11)
_UNIT = 2.0**-53

_STEPS_AHEAD = 16
_NUMBERS_AHEAD = 1 << 17


def mix_words(words: Words) -> Words:
    """Mix 64-bit words in place and return them."""
    high = np.empty_like(words)
    words ^= np.right_shift(words, _SHIFTS[0], out=high)
    words *= _MIX_A
    words ^= np.right_shift(words, _SHIFTS[1], out=high)
    words *= _MIX_B
    words ^= np.right_shift(words, _SHIFTS[2], out=high)
    return words


class RowStreams:
    """One stream of random words per row. Unseeded rows are seeded by the operating system."""

    def __init__(self, n_rows: int) -> None:
        self._offsets = np.zeros(0, np.uint64)
        self._counters = mix_words(np.arange(n_rows, dtype=np.uint64) + np.uint64(draw_root_seed()))

    def __len__(self) -> int:
        return len(self._counters)

    def seed(self, rows: Any, seeds: Any) -> None:
        """Restart the streams of rows, a slice or an index (k,), from seeds: uint64 (k,), or one for all rows."""
        # The seeds are used unchanged: SplitMix64 mixes the counter, and similar seeds give unrelated words.
        self._counters[rows] = seeds

    def words(self, count: int, rows: Any = slice(None)) -> Words:
        """Return the next `count` words of k rows, uint64 (k, count); one call for 6 equals two calls for 3."""
        if len(self._offsets) != count:
            self._offsets = np.arange(1, count + 1, dtype=np.uint64) * _STEP
        words = mix_words(self._counters[rows, None] + self._offsets)
        if count:
            self._counters[rows] += self._offsets[-1]
        return words


class RowNoise(RowStreams):
    """`width` random numbers per step and row, computed for several steps at once.

    `make` is `gumbel` or `normal`.
    """

    def __init__(self, n_rows: int, width: int, make: Callable[[Words], Floats]) -> None:
        super().__init__(n_rows)
        self.width = width
        self._make = make
        self._n_words = 2 * width if make is normal else width
        self._steps = max(1, min(_STEPS_AHEAD, _NUMBERS_AHEAD // max(1, n_rows * width)))
        self._ahead = np.empty((n_rows, self._steps, width))
        self._step = self._steps

    def seed(self, rows: Any, seeds: Any) -> None:
        super().seed(rows, seeds)
        self._fill(rows)

    def next(self) -> Floats:
        """Return the next numbers of each row, (n, width)."""
        if self._step == self._steps:
            self._step = 0
            self._fill(slice(None))
        self._step += 1
        return self._ahead[:, self._step - 1]

    def _fill(self, rows: Any) -> None:
        remaining = self._steps - self._step
        if remaining:
            numbers = self._make(self.words(remaining * self._n_words, rows))
            self._ahead[rows, self._step :] = numbers.reshape(-1, remaining, self.width)


def row_noise(space: Any, n_rows: int) -> RowNoise:
    """Return the noise that n rows sample actions with: Gumbel noise for a Discrete space, else normal."""
    if isinstance(space, spaces.Discrete):
        return RowNoise(n_rows, int(space.n), gumbel)
    return RowNoise(n_rows, math.prod(space.shape), normal)


class PolicyStreams:
    """The streams of a policy, created by `new_stream(n)`: n rows for `get_actions`, one for `get_action`.

    Attributes:
        single: The stream of `get_action`.
    """

    def __init__(self, new_stream: Callable[[int], Any]) -> None:
        self._new_stream = new_stream
        self.single = new_stream(1)
        self._batch = new_stream(0)

    def seed(self, seed: int) -> None:
        self.single.seed(slice(None), seed)

    def seed_rows(self, mask: Array, seeds: Array) -> None:
        self.sized(len(mask)).seed(np.flatnonzero(mask), np.asarray(seeds, np.uint64)[mask])

    def sized(self, n_rows: int) -> Any:
        """Return the stream of n rows; a new stream if the number of rows has changed."""
        if len(self._batch) != n_rows:
            self._batch = self._new_stream(n_rows)
        return self._batch


class SeededPolicy(AdaptedPolicy):
    """A policy whose randomness comes only from a PolicyStreams."""

    def __init__(self, wrapped: Any, new_stream: Callable[[int], Any]) -> None:
        super().__init__(wrapped)
        self.streams = PolicyStreams(new_stream)

    def seed(self, seed: int) -> None:
        self.streams.seed(seed)

    def seed_rows(self, mask: Array, seeds: Array) -> None:
        self.streams.seed_rows(mask, seeds)


def uniform(words: Words) -> Floats:
    """Return a number in [0, 1) for each word."""
    return np.asarray((words >> _UNUSED_BITS) * _UNIT, np.float64)


def gumbel(words: Words) -> Floats:
    """Return a standard Gumbel number for each word."""
    # Shifted to the middle of its interval: the logarithms of 0 and 1 are not usable.
    numbers = uniform(words) + _UNIT / 2
    return np.asarray(-np.log(-np.log(np.minimum(numbers, 1.0 - _UNIT))))


def normal(words: Words) -> Floats:
    """Return a standard normal number per pair of words, (n, width / 2), by the Box-Muller method."""
    radius = np.sqrt(-2.0 * np.log1p(-uniform(words[:, ::2])))
    return np.asarray(radius * np.cos(2.0 * np.pi * uniform(words[:, 1::2])))
