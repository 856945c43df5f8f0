"""Arrow arrays from numpy's memory and from texts, and numbers back.

pyarrow's own conversions ask whether what they are given is of pandas, and import it for that wherever it is installed:
a tenth of a second and more, in the way of a run's first row group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rollout_cli.errors import UnsupportedSpaceError

Array = npt.NDArray[Any]

_MOST_TEXT_BYTES = (1 << 31) - 1


def joined(pieces: Sequence[Array]) -> Array:
    """Return arrays (n, *shape) after one another; one alone as it is, without a copy."""
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def number_array(values: Array, missing: Array | None = None) -> pa.Array:
    """Return numbers or bools (T,) as an array that shares their memory where it can; null where `missing` (T,)."""
    values = np.ascontiguousarray(values, values.dtype.newbyteorder("="))
    data = _bits(values) if values.dtype == np.bool_ else pa.py_buffer(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [_validity(missing), data])


def list_array(kind: pa.DataType, elements: pa.Array, missing: Array | None = None) -> pa.Array:
    """Return `elements` as fixed-size lists of `kind`; null where `missing`, bool (lists,)."""
    # Not by `from_arrays`, which imports pyarrow.compute for a mask: as slow as pandas.
    return pa.Array.from_buffers(kind, len(elements) // kind.list_size, [_validity(missing)], children=[elements])


def text_array(texts: Sequence[str | None]) -> pa.Array:
    """Return texts as an array; None is null.

    Raises:
        UnsupportedSpaceError: If they come to more bytes than one array of Arrow's takes.
    """
    missing = np.fromiter((text is None for text in texts), bool, len(texts))
    letters = [text or "" for text in texts]
    data = "".join(letters).encode()
    # Where each letter is one byte, there is no need to encode each text by itself.
    sizes = map(len, letters) if len(data) == sum(map(len, letters)) else (len(text.encode()) for text in letters)
    offsets = np.zeros(len(texts) + 1, np.int64)
    offsets[1:] = np.cumsum(np.fromiter(sizes, np.int64, len(texts)))
    if len(data) > _MOST_TEXT_BYTES:
        raise UnsupportedSpaceError(
            f"the texts of {len(texts)} rows come to {len(data)} bytes, and a column takes {_MOST_TEXT_BYTES} of them",
            hint="wrap the environment so that its texts are shorter",
        )
    validity = _validity(missing if missing.any() else None)
    return pa.StringArray.from_buffers(len(texts), pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data), validity)


def numbers_of(column: pa.Array) -> Array:
    """Return the values (T,) of an array of numbers or bools, anything for a null; numbers share its memory."""
    data = column.buffers()[1]
    if data is None:  # Nothing has no memory.
        return np.empty(0, column.type.to_pandas_dtype())
    if pa.types.is_boolean(column.type):
        return _flags(data, column)
    return np.frombuffer(data, column.type.to_pandas_dtype(), column.offset + len(column))[column.offset :]


def present(column: pa.Array) -> Array:
    """Return which rows of an array are not null, bool (T,)."""
    # Not by `is_valid` and the like, which import pyarrow.compute too.
    bits = column.buffers()[0]
    return np.ones(len(column), bool) if bits is None else _flags(bits, column)


def _flags(bits: pa.Buffer, column: pa.Array) -> Array:
    flags = np.unpackbits(np.frombuffer(bits, np.uint8), count=column.offset + len(column), bitorder="little")
    return flags[column.offset :].astype(bool)


def _validity(missing: Array | None) -> pa.Buffer | None:
    return None if missing is None else _bits(~missing)


def _bits(flags: Array) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))
