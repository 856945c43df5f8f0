"""Encodings of numbers in Parquet's pages, each in a few passes of numpy over all of them.

Widths are powers of two, since these are packed by shifts of whole words; the compression that comes after it takes
back most of what a narrower width would have saved. https://parquet.apache.org/docs/file-format/data-pages/encodings
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rollout_cli.dataset.thrift import signed, unsigned

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]

_WIDTHS = (1, 2, 4, 8, 16)

_BLOCK, _MINIBLOCKS = 128, 4
"""Differences of a block, and its parts, which share a width each."""

_WORD = 4
"""Bytes of numbers that are taken apart faster by shifts than byte by byte."""

_GROUP = 8
"""Numbers are packed so many at a time."""

_PAIRS, _NIBBLES = 2, 4
"""Widths of which several numbers share a byte; of the least one, eight do."""


def byte_stream_split(values: Array, out: Bytes) -> None:
    """Put the bytes of numbers apart (BYTE_STREAM_SPLIT): first all lowest bytes, and last all highest ones.

    Args:
        values: (n,), contiguous.
        out: Where they go, (n * itemsize,).
    """
    streams = out.reshape(values.itemsize, len(values))
    if values.itemsize == _WORD:
        words = values.view(np.uint32)
        for at, stream in enumerate(streams):
            # The lowest byte is what is left of a word in a type that has no room for more.
            np.right_shift(words, 8 * at, out=stream, casting="unsafe")
    else:
        np.copyto(streams, _little(values).view(np.uint8).reshape(-1, values.itemsize).T)


def plain(values: Array) -> Bytes:
    """Return numbers one after another (PLAIN)."""
    return np.ascontiguousarray(_little(values)).view(np.uint8)


def run_of(value: int, count: int, width: int) -> bytes:
    """Return `count` times one value of so many bits as a run (RLE): of levels, or of a dictionary's values."""
    return unsigned(count << 1) + value.to_bytes(-(-width // 8), "little") if count else b""


def dictionary_indices(integers: Array, low: int, high: int) -> Bytes:
    """Return which of all the integers from `low` to `high` each one is (RLE_DICTIONARY): their width, and one run.

    Args:
        integers: (n,), each one of these.
        low: The lowest.
        high: The highest, less than 256 above it.
    """
    count = len(integers)
    width = _width(high - low) or 1
    if low == high:
        return as_bytes(bytes([width]) + run_of(0, count, width))
    groups = -(-count // _GROUP)
    head = as_bytes(bytes([width]) + unsigned(groups << 1 | 1))
    return np.concatenate([head, _packed(integers, low, width, groups * _GROUP)])


def delta_binary_packed(integers: Array) -> Bytes | None:
    """Return integers as their differences (DELTA_BINARY_PACKED), (n,) of signed 32 or 64 bits.

    All blocks have one width and one least difference, so that they are put together at once.

    Returns:
        None where the differences take more than 16 bits: some readers get these wrong, and there is little to save.
    """
    first = int(integers[0]) if len(integers) else 0
    head = as_bytes([*unsigned(_BLOCK), *unsigned(_MINIBLOCKS), *unsigned(len(integers)), *signed(first)])
    if len(integers) <= 1:
        return head
    # Differences wrap around, as the format has it: that of the lowest and the highest number fits too.
    deltas = integers[1:] - integers[:-1]
    least = int(deltas.min())
    spread = int(deltas.max()) - least
    if spread >= 1 << _WIDTHS[-1]:
        return None
    width = _width(spread)
    prefix = as_bytes([*signed(least), *[width] * _MINIBLOCKS])
    blocks = -(-len(deltas) // _BLOCK)
    body = np.empty((blocks, len(prefix) + _BLOCK * width // 8), np.uint8)
    body[:, : len(prefix)] = prefix
    body[:, len(prefix) :] = _packed(deltas, least, width, blocks * _BLOCK).reshape(blocks, -1)
    # The last block has no more of its parts than it needs.
    part = _BLOCK // _MINIBLOCKS
    unused = (blocks * _BLOCK - len(deltas)) // part
    if unused:
        body[-1, len(prefix) - unused : len(prefix)] = 0
    whole = body.reshape(-1)
    return np.concatenate([head, whole[: len(whole) - unused * part * width // 8]])


def _width(most: int) -> int:
    """Return the least width that takes `most`; 0 takes no bit."""
    return next(width for width in (0, *_WIDTHS) if most < 1 << width)


def _packed(integers: Array, low: int, width: int, count: int) -> Bytes:
    """Return how far integers (n,) are above the lowest of them in so many bits each, lowest bits first.

    Args:
        integers: (n,).
        low: The lowest.
        width: One of `_WIDTHS`, or 0.
        count: How many to return: a multiple of 8, of at least n. Zeros stand behind those that are there.
    """
    if width <= 1:
        bits = np.packbits(integers != low, bitorder="little") if width else np.empty(0, np.uint8)
        return _filled(bits, count * width // 8)
    numbers = np.zeros(count, f"<u{max(1, width // 8)}")
    # In one pass, without the differences in the integers' own type. What this has no room for wraps around, rightly.
    np.subtract(integers, integers.dtype.type(low), out=numbers[: len(integers)], casting="unsafe")
    if width == _PAIRS:
        words = numbers.view("<u4")
        words |= words >> 6
        words |= words >> 12
        return words.astype(np.uint8)
    if width == _NIBBLES:
        words = numbers.view("<u2")
        words |= words >> 4
        return words.astype(np.uint8)
    return numbers.view(np.uint8)


def _filled(data: Bytes, count: int) -> Bytes:
    if len(data) == count:
        return data
    out = np.zeros(count, np.uint8)
    out[: len(data)] = data
    return out


def _little(values: Array) -> Array:
    return values.astype(values.dtype.newbyteorder("<"), copy=False)


def as_bytes(data: bytes | Sequence[int]) -> Bytes:
    """Return single bytes as an array."""
    return np.frombuffer(bytes(data), np.uint8)


def length_of(data: Bytes) -> Bytes:
    """Return a length as pages have it before their levels."""
    return np.array([len(data)], "<u4").view(np.uint8)
