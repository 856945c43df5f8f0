"""Actions as a pure function of (seed, step): a hash of a counter takes a generator's place.

So a whole batch of rows, each at a step of its own episode, is drawn in one vectorised pass, and gives bit for bit what
one row alone gives.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rollout_cli.seeding import mix_words
from rollout_cli.spaces import Leaf, space_leaves

Array = npt.NDArray[Any]
Words = npt.NDArray[np.uint64]
Draw = Callable[[Words], Array]
"""Makes a column (rows, *shape) of words (rows, count)."""

_ONE = np.uint64(1)
_KEY, _GAMMA = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03)
_SECOND = np.uint64(0xA0761D6478BD642F)
_HALF = np.uint64(32)
_UNUSED_BITS = np.uint64(11)
_UNIT = 2.0**-53
_FEW = 1 << 16
_ALL = 1 << 64
_WORD_BITS = 64


def stream_keys(seeds: Array) -> tuple[Words, Words]:
    """Return where the counters of these seeds (k,) begin, and how far each goes at once: an odd number."""
    keys = mix_words(seeds.astype(np.uint64) + _KEY)
    return keys, (keys * _GAMMA ^ keys >> _HALF) | _ONE


def multiples(gammas: Words, count: int) -> Words:
    """Return how much further `count` steps are than the first of them, in each row (count, k)."""
    return gammas * np.arange(count, dtype=np.uint64)[:, None]


class CountedDraws:
    """Draws samples of one space.

    Args:
        space: Any space that has columns; it is only read.
    """

    __slots__ = ("_draws", "_edges", "_offsets", "leaves", "row_bytes")

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.leaves = space_leaves(space)
        self.row_bytes = sum(leaf.row_bytes for leaf in self.leaves)
        made = [_leaf_draw(leaf) for leaf in self.leaves]
        self._draws = [draw for draw, _ in made]
        self._edges = np.cumsum([0, *(count for _, count in made)]).tolist()
        self._offsets = np.arange(self._edges[-1], dtype=np.uint64)

    def columns(self, keys: Words, gammas: Words, steps: Words) -> list[Array]:
        """Return one array a leaf, (k, *shape); or (n * k, *shape) for n steps of each row.

        Args:
            keys: Where each row's counter begins (k,).
            gammas: How far it goes at once (k,).
            steps: The step of its episode that each row draws for (k,), or several of them (n, k).
        """
        if len(self._offsets) == 1:
            return self._of_words(keys + gammas * steps, steps.size)
        counters = steps[..., None] * np.uint64(len(self._offsets)) + self._offsets
        return self._of_words(keys[:, None] + gammas[:, None] * counters, steps.size)

    def next_columns(self, keys: Words, gammas: Words, steps: Words, further: Words) -> list[Array]:
        """Return what `columns` does for some steps that follow one another.

        Args:
            keys: As for `columns`.
            gammas: As for `columns`.
            steps: The first step of each row (k,).
            further: `multiples` of the gammas, one for each of the steps.
        """
        if len(self._offsets) == 1:
            return self._of_words(further + (keys + gammas * steps), further.size)
        return self.columns(keys, gammas, steps + np.arange(len(further), dtype=np.uint64)[:, None])

    def _of_words(self, counters: Words, n_rows: int) -> list[Array]:
        words = mix_words(counters).reshape(n_rows, len(self._offsets))
        if len(self._draws) == 1:
            return [self._draws[0](words)]
        edges = zip(self._edges[:-1], self._edges[1:], strict=True)
        return [draw(words[:, low:high]) for draw, (low, high) in zip(self._draws, edges, strict=True)]


class _Range(NamedTuple):
    """Numbers between two bounds, both included; a bound is a number, or an array that the shape broadcasts."""

    low: Any
    high: Any
    shape: tuple[int, ...]
    dtype: Any


def _leaf_draw(leaf: Leaf) -> tuple[Draw, int]:
    """Return how a leaf is drawn, and from how many words."""
    space: Any = leaf.space
    if isinstance(space, spaces.Text):
        return partial(_draw_texts, space), 1 + space.max_length
    count = int(np.prod(leaf.shape, dtype=np.int64))
    if isinstance(space, spaces.Box):
        bounded = np.all(space.bounded_below & space.bounded_above)
        box = _Range(_bound(space.low), _bound(space.high), space.shape, space.dtype)
        return (_range_draw(box) if bounded else partial(_draw_unbounded, space)), count
    low: Any
    high: Any
    if isinstance(space, spaces.Discrete):
        low, high = int(space.start), int(space.start + space.n - 1)
    elif isinstance(space, spaces.MultiDiscrete):
        low, high = _bound(space.start), space.start + space.nvec - 1
    else:
        low, high = 0, 1
    return _range_draw(_Range(low, high, leaf.shape, leaf.dtype)), count


def _bound(bound: Array) -> Any:
    """Return a bound that is one everywhere as a number, which is faster."""
    return bound.flat[0].item() if bound.size and np.all(bound == bound.flat[0]) else bound


def _range_draw(bounds: _Range) -> Draw:
    low, high, shape, dtype = bounds
    if np.dtype(dtype).kind == "f":
        return partial(_draw_uniform, bounds)
    # Python's integers, since the span of all 64-bit numbers is one too many for any of numpy's.
    spans = np.asarray(high, object) - np.asarray(low, object) + 1
    most = max(np.ravel(spans).tolist(), default=1)
    # A span of all 64 bits becomes 0, for which the word itself is the number.
    integers = _Range(_modulo(low), _modulo(spans), shape, np.dtype(dtype))
    if most > _FEW:
        return partial(_draw_many, integers)
    if np.ndim(spans) == 0 and 1 < most == most & -most:
        return partial(_draw_bits, integers, np.uint64(_WORD_BITS + 1 - most.bit_length()))
    return partial(_draw_few, integers)


def _modulo(numbers: Any) -> Words:
    return np.asarray(np.asarray(numbers, object) % _ALL, object).astype(np.uint64)


def _draw_few(bounds: _Range, words: Words) -> Array:
    low, span, shape, dtype = bounds
    words = words.reshape(len(words), *shape)
    words >>= _HALF
    words *= span
    words >>= _HALF
    return _integers(words, low, dtype)


def _draw_bits(bounds: _Range, unused: np.uint64, words: Words) -> Array:
    """Draw what `_draw_few` does for a span that is a power of two: the word's highest bits."""
    words = words.reshape(len(words), *bounds.shape)
    words >>= unused
    return _integers(words, bounds.low, bounds.dtype)


def _draw_many(bounds: _Range, words: Words) -> Array:
    low, span, shape, dtype = bounds
    words = words.reshape(len(words), *shape)
    return _integers(np.where(span == 0, words, words % np.where(span == 0, _ONE, span)), low, dtype)


def _integers(words: Words, low: Words, dtype: np.dtype[Any]) -> Array:
    if low.ndim or low:
        words += low  # Modulo 2**64, as negative bounds are kept.
    return words if dtype == np.uint64 else words.view(np.int64).astype(dtype, copy=False)


def _unit(words: Words) -> Array:
    """Return numbers of [0, 1)."""
    return (words >> _UNUSED_BITS) * _UNIT


def _draw_uniform(bounds: _Range, words: Words) -> Array:
    low, high, shape, dtype = bounds
    share = _unit(words).reshape(len(words), *shape)
    # Two products instead of one, for the difference of two bounds may be more than a float holds.
    return np.asarray(np.clip(low * (1.0 - share) + high * share, low, high), dtype)


def _draw_unbounded(space: spaces.Box, words: Words) -> Array:
    """Draw as Box does: normal without bounds, exponential from a single bound, uniform between two."""
    below, above = space.bounded_below.ravel(), space.bounded_above.ravel()
    low, high = space.low.ravel(), space.high.ravel()
    only_low, only_high, both = below & ~above, above & ~below, below & above
    whole = np.dtype(space.dtype).kind != "f"
    exponential = -np.log(1.0 - _unit(words))
    angle = 2.0 * np.pi * _unit(mix_words(words ^ _SECOND))
    draws = np.sqrt(2.0 * exponential) * np.cos(angle)
    draws[:, only_low] = low[only_low] + exponential[:, only_low]
    # An integer is the floor of a draw, so the highest one needs an interval that is one longer.
    draws[:, only_high] = high[only_high].astype(np.float64) + whole - exponential[:, only_high]
    out = (np.clip(np.floor(draws), low, high) if whole else draws).astype(space.dtype)
    if both.any():
        bounds = _Range(low[both], high[both], (int(both.sum()),), space.dtype)
        out[:, both] = _range_draw(bounds)(np.ascontiguousarray(words[:, both]))
    return out.reshape(len(words), *space.shape)


def _draw_texts(space: spaces.Text, words: Words) -> Array:
    letters = "".join(sorted(space.character_set))
    lengths = space.min_length + words[:, 0] % np.uint64(space.max_length - space.min_length + 1)
    chosen = (words[:, 1:] % np.uint64(max(1, len(letters)))).astype(np.int64)
    out = np.empty(len(words), object)
    for row, length in enumerate(lengths.tolist()):
        out[row] = "".join(letters[at] for at in chosen[row, :length].tolist())
    return out
