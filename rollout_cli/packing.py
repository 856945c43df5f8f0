"""Packing: chunks, and messages around them, as byte pieces and back; their columns are not copied."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from rollout_cli.buffer_pool import Lender
from rollout_cli.chunk import Chunk

Piece = bytes | bytearray | memoryview

_HEAD = struct.Struct("<I")
_SIZE = struct.Struct("<Q")


def pack(value: Any) -> list[Piece]:
    """Return `value` (a chunk, or a message around one) as byte pieces: a head, a pickle, and its raw columns.

    The columns stay where they are: nothing is copied until the pieces are written.
    """
    buffers: list[pickle.PickleBuffer] = []
    body = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    columns = [buffer.raw() for buffer in buffers]
    sizes = [len(body), *(column.nbytes for column in columns)]
    head = _HEAD.pack(len(sizes)) + b"".join(_SIZE.pack(size) for size in sizes)
    return [head, body, *columns]


def unpack(data: Piece | Sequence[Piece]) -> Any:
    """Return what `pack` took; its columns are views into `data`: the pieces that it gave, or one, of all joined."""
    if not isinstance(data, Piece):
        if len(data) > 1:
            return pickle.loads(data[1], buffers=data[2:])
        (data,) = data
    body, *columns = _cut(memoryview(data))
    return pickle.loads(body, buffers=columns)


def unpack_chunk(data: Piece | Sequence[Piece], *lenders: Lender) -> Chunk:
    """Return a chunk that `pack` took, with all columns in their own types.

    Args:
        data: As for `unpack`.
        lenders: Lend memory for columns that came in smaller types.
    """
    chunk: Chunk = unpack(data)
    return chunk.widened(*lenders)


def packed_size(data: Piece) -> int:
    """Return how many bytes of `data` are what `pack` took; others may lie behind them."""
    (count,) = _HEAD.unpack_from(data)
    at = _HEAD.size + count * _SIZE.size
    return int(at + sum(struct.unpack_from(f"<{count}Q", data, _HEAD.size)))


def _cut(view: memoryview) -> Iterator[memoryview]:
    (count,) = _HEAD.unpack_from(view)
    sizes = struct.unpack_from(f"<{count}Q", view, _HEAD.size)
    at = _HEAD.size + count * _SIZE.size
    for size in sizes:
        yield view[at : at + size]
        at += size
