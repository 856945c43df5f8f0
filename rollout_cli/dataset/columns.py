"""Leaves of a space, and typed info values, as plain Arrow arrays and back.

Everything is a plain Arrow type: extension types for tensors are lost or refused by other readers of Parquet.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rollout_cli.dataset.arrays import list_array, number_array, numbers_of, present, text_array
from rollout_cli.errors import UnsupportedSpaceError
from rollout_cli.infos import STRING, kind_type
from rollout_cli.spaces import Leaf

Array = npt.NDArray[Any]


def is_image(leaf: Leaf) -> bool:
    """Return whether a leaf is stored as raw bytes: a uint8 Box of two or more dimensions."""
    return leaf.kind == "box" and leaf.dtype == np.uint8 and len(leaf.shape) > 1


BIG_ROW_BYTES = 32 << 10
"""From so many bytes a row on, the time of a column goes into moving its bytes, and none into looking at each row."""


def is_big(leaf: Leaf) -> bool:
    """Return whether a leaf's column is written piece by piece: its pages are cut row by row (see `batch_rows`)."""
    return is_image(leaf) and leaf.row_bytes >= BIG_ROW_BYTES


def batch_rows(widest_row: int) -> int:
    """Return after how many rows Parquet's writer looks whether a page (of about 1 MB) is full.

    By its default of 1,024 rows, a page of images would have a hundred megabytes, and would end where a piece does; row
    by row, pages are a function of the rows alone, however these came in pieces.
    """
    return 1 if widest_row >= BIG_ROW_BYTES else max(1, min(1024, PAGE_BYTES // max(1, widest_row)))


PAGE_BYTES = 1 << 20


def is_stored(leaf: Leaf) -> bool:
    """Return whether a leaf has a column: one without elements has none."""
    return 0 not in leaf.shape


def leaf_type(leaf: Leaf) -> pa.DataType:
    """Return the Arrow type of a leaf's column.

    Raises:
        UnsupportedSpaceError: For a dtype that Arrow does not have.
    """
    if leaf.kind == "text":
        return pa.string()
    if is_image(leaf):
        return pa.binary(int(np.prod(leaf.shape)))
    try:
        return tensor_type(leaf.dtype, leaf.shape)
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise UnsupportedSpaceError(
            f"a {type(leaf.space).__name__} space of dtype {leaf.dtype} at {leaf.name!r} cannot be stored",
            hint="wrap the environment so that it uses an integer dtype, float16, float32 or float64",
        ) from error


def kind_arrow_type(kind: str) -> pa.DataType:
    """Return the Arrow type of an info column of `kind`."""
    return pa.string() if kind == STRING else tensor_type(*kind_type(kind))


def tensor_type(dtype: np.dtype[Any], shape: tuple[int, ...]) -> pa.DataType:
    """Return nested fixed-size lists of `shape` over the type of `dtype`."""
    return _nested_types(dtype.newbyteorder("="), shape)[-1]


@lru_cache(maxsize=256)
def _nested_types(dtype: np.dtype[Any], shape: tuple[int, ...]) -> tuple[pa.DataType, ...]:
    """Return the type of numbers, and those of the lists around them, from within.

    The same objects each time: types of one origin are found to be equal without a look at what is in them.
    """
    types = [pa.from_numpy_dtype(dtype)]
    for size in reversed(shape):
        # Parquet's own name for the values of a list; Arrow's default differs and would not survive a round trip.
        types.append(pa.list_(pa.field("element", types[-1], nullable=False), size))
    return tuple(types)


def encode_leaf(leaf: Leaf, values: Array) -> pa.Array:
    """Return the column of a stored leaf, from values of shape (T, *leaf.shape)."""
    if leaf.kind == "text":
        return text_array(values.tolist())
    if is_image(leaf):
        data = pa.py_buffer(np.ascontiguousarray(values))
        return pa.FixedSizeBinaryArray.from_buffers(leaf_type(leaf), len(values), [None, data])
    return encode_tensor(values)


def decode_leaf(leaf: Leaf, column: pa.Array) -> Array:
    """Return the values of a stored leaf's column, shape (T, *leaf.shape), in the leaf's dtype."""
    if leaf.kind == "text":
        return np.array([*column.to_pylist(), None], dtype=object)[:-1]
    if is_image(leaf):
        # A slice keeps the whole buffer and an offset.
        data = np.frombuffer(column.buffers()[1], np.uint8).reshape(-1, column.type.byte_width)
        return data[column.offset : column.offset + len(column)].reshape(-1, *leaf.shape)
    return decode_tensor(column).reshape(-1, *leaf.shape).astype(leaf.dtype, copy=False)


def encode_tensor(values: Array, missing: Array | None = None) -> pa.Array:
    """Return a column of scalars or nested fixed-size lists from values of shape (T, *shape).

    Args:
        values: Numbers or bools.
        missing: Which rows are null, bool (T,).
    """
    out = number_array(np.ascontiguousarray(values).reshape(-1), missing if values.ndim == 1 else None)
    kinds = _nested_types(values.dtype.newbyteorder("="), values.shape[1:])[1:]
    for kind in kinds:
        out = list_array(kind, out, missing if kind is kinds[-1] else None)
    return out


def decode_tensor(column: pa.Array) -> Array:
    """Return the rows of a column that are not null, shape (rows, *shape)."""
    shape = []
    values = column
    while pa.types.is_fixed_size_list(values.type):
        size = values.type.list_size
        shape.append(size)
        values = values.values.slice(values.offset * size, len(values) * size)
    rows = numbers_of(values).reshape(-1, *shape)
    return rows[present(column)] if column.null_count else rows
