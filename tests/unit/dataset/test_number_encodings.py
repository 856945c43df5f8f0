"""Differences of integers: byte by byte what the format says, where readers would take more than that."""

from __future__ import annotations

import numpy as np
import pytest

from rollout_cli.dataset.number_encodings import delta_binary_packed
from rollout_cli.dataset.thrift import Reader

VALUES = [
    *(np.arange(count) // 3 for count in (0, 1, 2, 33, 34, 65, 129, 130, 161, 257, 290)),
    np.arange(70) ** 3,
    np.array([2**63 - 1, -(2**63), -(2**63) + 65_535, -(2**63) + 65_536]),
    np.full(40, 9),
]


@pytest.mark.parametrize("values", VALUES, ids=len)
def test_blocks_are_as_the_format_says(values: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
    """The last one has no part that it does not need, and no width of one; nothing lies behind it."""
    packed_all = delta_binary_packed(values)
    assert packed_all is not None
    data = bytes(packed_all)
    reader = Reader(data)
    block, parts, count, number = reader.unsigned(), reader.unsigned(), reader.unsigned(), reader.signed()
    assert (128, 4, len(values)) == (block, parts, count)
    read = [number][:count]
    while len(read) < count:
        least = reader.signed()
        widths = data[reader.at : reader.at + parts]
        reader.at += parts
        for width in widths:
            if len(read) == count:
                assert 0 == width
                continue
            size = block // parts * width // 8
            packed = int.from_bytes(data[reader.at : reader.at + size], "little")
            reader.at += size
            for at in range(block // parts):
                above = packed >> at * width & (1 << width) - 1
                if len(read) == count:
                    assert 0 == above
                else:
                    read.append((read[-1] + least + above + 2**63) % 2**64 - 2**63)
    assert len(data) == reader.at
    assert values.tolist() == read


@pytest.mark.parametrize(("far", "fits"), [(2**16 - 1, True), (2**16, False), (2**63, False)])
def test_wide_differences_are_not_packed(far: int, *, fits: bool) -> None:
    """Some readers get those of more than 24 bits wrong."""
    values = np.cumsum(np.array([0, 0, far], np.uint64)).astype(np.int64)
    assert fits == (delta_binary_packed(values) is not None)
