"""Conversion of values to plain Arrow arrays and back: leaves of spaces, tensors, strings, and info columns.

Other Parquet readers drop or refuse extension types for tensors. Arrays are built from numpy's memory,
because pyarrow's own conversions and masks import pandas and pyarrow.compute, which adds a tenth of a second
or more to a run's start.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rollout_cli.episodes.infos import (
    JSON,
    STRING,
    InfoArrays,
    InfoColumn,
    InfoColumns,
    InfoPath,
    InfoTable,
    concatenate_tables,
    free_name,
    kind_type,
)
from rollout_cli.episodes.plain import Fields, plain_value
from rollout_cli.episodes.spaces import DType, Leaf, Shape
from rollout_cli.errors import StorageError, UnsupportedSpaceError

Array = npt.NDArray[Any]

MOST_OFFSET = (1 << 31) - 1
"""The bytes of strings, or values of lists, that one Arrow array can hold."""


def joined(parts: Sequence[Array]) -> Array:
    """Return the concatenation of arrays (n, *shape); a single array is returned without a copy."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def object_array(values: Sequence[Any]) -> Array:
    """Return an array of objects (n,)."""
    # The None keeps numpy from making a 2-D array of lists, or an array of dtype `str`.
    return np.array([*values, None], dtype=object)[:-1]


def number_array(values: Array, present: Array | None = None) -> pa.Array:
    """Return numbers or bools (T,) as an Arrow array, null if not `present`; shares memory if possible."""
    values = np.ascontiguousarray(values, values.dtype.newbyteorder("="))
    data = _bits(values) if values.dtype == np.bool_ else pa.py_buffer(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [_validity(present), data])


def text_array(texts: Sequence[str | None]) -> pa.Array:
    r"""Return strings as an Arrow array; None is null. A lone surrogate is written as `\udc80`: UTF-8 lacks it."""
    validity = _validity(np.array([text is not None for text in texts], bool))
    encoded = [(text or "").encode(errors="backslashreplace") for text in texts]
    offsets = _offsets(np.fromiter(map(len, encoded), np.int64, len(texts)))
    return pa.StringArray.from_buffers(len(texts), offsets, pa.py_buffer(b"".join(encoded)), validity)


def _offsets(sizes: Array) -> pa.Buffer:
    offsets = np.append(0, np.cumsum(sizes, dtype=np.int64))
    if offsets[-1] > MOST_OFFSET:
        raise StorageError(
            f"a segment column of {len(sizes):,} rows would need {offsets[-1]:,} bytes or values, "
            f"expected at most {MOST_OFFSET:,}",
            code="column-too-large",
            hint="leave out large infos with {drop_info=KEY}, or shorten the strings of observations",
        )
    return pa.py_buffer(offsets.astype(np.int32))


def _validity(present: Array | None) -> pa.Buffer | None:
    return None if present is None or present.all() else _bits(present)


def _bits(flags: Array) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def info_type(kind: str) -> pa.DataType:
    """Return the Arrow type of an info column of `kind`.

    Arrays are lists of variable size: a null in a fixed-size list takes as much memory as a value, and a
    large info in few steps would fill gigabytes with nulls.
    """
    return pa.string() if kind == STRING else _nested_types(*kind_type(kind), fixed=False)[-1]


@lru_cache(maxsize=256)
def _nested_types(dtype: DType, shape: Shape, *, fixed: bool) -> tuple[pa.DataType, ...]:
    """Return the type of the values, followed by the types of the lists around them, innermost first.

    The cache returns the same objects each time, which pyarrow compares by identity first.
    """
    types = [pa.from_numpy_dtype(dtype.newbyteorder("="))]
    for size in reversed(shape):
        # Parquet's own name for the values of a list; Arrow's default does not survive a round trip.
        element = pa.field("element", types[-1], nullable=False)
        types.append(pa.list_(element, size) if fixed else pa.list_(element))
    return tuple(types)


def encode_tensor(values: Array) -> pa.Array:
    """Return a column of scalars or nested fixed-size lists from values of shape (T, *shape)."""
    out = number_array(np.ascontiguousarray(values).reshape(-1))
    kinds = _nested_types(values.dtype, values.shape[1:], fixed=True)[1:]
    for kind, length in zip(kinds, np.cumprod(values.shape)[-2::-1].tolist(), strict=True):
        out = pa.Array.from_buffers(kind, length, [None], children=[out])
    return out


def encode_sparse_tensor(values: Array, rows: Array, n_rows: int) -> pa.Array:
    """Return `n_rows` scalars or variable-size lists: `values` (n, *shape) in `rows` (n,), null elsewhere."""
    present = np.zeros(n_rows, bool)
    present[rows] = True
    if values.ndim == 1:
        dense = np.zeros(n_rows, values.dtype)
        dense[rows] = values
        return number_array(dense, present)
    out = number_array(np.ascontiguousarray(values).reshape(-1))
    *inner, outer = _nested_types(values.dtype, values.shape[1:], fixed=False)[1:]
    for kind, size in zip(inner, values.shape[:1:-1], strict=True):
        sizes = np.full(len(out) // size, size)
        out = pa.Array.from_buffers(kind, len(sizes), [None, _offsets(sizes)], children=[out])
    offsets = _offsets(np.where(present, values.shape[1], 0))
    return pa.Array.from_buffers(outer, n_rows, [_validity(present), offsets], children=[out])


def leaf_type(leaf: Leaf) -> pa.DataType:
    """Return the Arrow type of a leaf's column; raise `UnsupportedSpaceError` if Arrow lacks its dtype."""
    if leaf.kind == "text":
        return pa.string()
    if leaf.kind == "sequence":  # Only sequences are large lists; info arrays are plain lists.
        return pa.large_list(pa.field("element", leaf_type(leaf.element), nullable=False))
    if leaf.kind == "box" and leaf.dtype == np.uint8 and len(leaf.shape) > 1:  # An image, as raw bytes.
        return pa.binary(int(np.prod(leaf.shape)))
    try:
        return _nested_types(leaf.dtype, leaf.shape, fixed=True)[-1]
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise UnsupportedSpaceError(
            f"cannot store a {type(leaf.space).__name__} space of dtype {leaf.dtype} at {leaf.name!r}",
            code="space-dtype",
            hint="wrap the environment so that it uses an integer dtype, float16, float32 or float64",
        ) from error


def encode_leaf(kind: pa.DataType, values: Array) -> pa.Array:
    """Return the column of type `kind` that holds a leaf's values (T, *leaf.shape)."""
    if pa.types.is_string(kind):
        return text_array(values.tolist())
    if pa.types.is_large_list(kind):
        if not len(values):
            return pa.array([], kind)
        offsets = number_array(np.cumsum([0, *map(len, values)], dtype=np.int64))
        elements = encode_leaf(kind.value_type, np.concatenate(values))
        return pa.LargeListArray.from_arrays(offsets, elements, type=kind)
    if pa.types.is_fixed_size_binary(kind):
        return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])
    return encode_tensor(values)


# pyarrow's own `to_pandas_dtype` imports pandas in versions up to 22.
_DTYPES = {pa.from_numpy_dtype(np.dtype(code)): np.dtype(code) for code in "?bBhHiIlLefd"}


def _bools(bits: pa.Buffer, column: pa.Array) -> Array:
    flags = np.unpackbits(np.frombuffer(bits, np.uint8), count=column.offset + len(column), bitorder="little")
    return flags[column.offset :].view(bool)


def _numbers(column: pa.Array) -> Array:
    """Return the values (T,) of an array of numbers or bools, undefined for nulls; numbers share memory."""
    data = column.buffers()[1]
    if data is None:  # An empty array has no memory.
        return np.empty(0, _DTYPES[column.type])
    if pa.types.is_boolean(column.type):
        return _bools(data, column)
    return np.frombuffer(data, _DTYPES[column.type], column.offset + len(column))[column.offset :]


def decode(chunks: pa.ChunkedArray) -> Array:
    """Return a column's non-null rows: strings (n,), images (n, bytes), or numbers (n, *shape)."""
    if pa.types.is_string(chunks.type):  # By chunk: the concatenation may exceed the limit of one array.
        return object_array([text for text in chunks.to_pylist() if text is not None])
    column = chunks.chunk(0) if chunks.num_chunks == 1 else chunks.combine_chunks()
    if pa.types.is_large_list(column.type):
        elements = decode(pa.chunked_array([column.values]))  # `values` ignores the slice and has all rows.
        return object_array(np.split(elements, _numbers(column.offsets))[1:-1])
    if pa.types.is_fixed_size_binary(column.type):
        rows = np.frombuffer(column.buffers()[1], np.uint8).reshape(-1, column.type.byte_width)
        # A slice keeps the whole buffer and an offset.
        return rows[column.offset : column.offset + len(column)]
    values = column
    shape = []
    while pa.types.is_nested(values.type):
        if pa.types.is_fixed_size_list(values.type):
            # By the offset: `flatten` and `take` of pyarrow 26 return wrong rows for slices of nested
            # fixed-size lists.
            size = values.type.list_size
            values = values.values.slice(values.offset * size, len(values) * size)
        else:
            offsets = _numbers(values.offsets)
            first = int(offsets[0])
            count = int(offsets[-1] - offsets[0])
            size = count // max(1, len(values) - values.null_count)
            values = values.values.slice(first, count)
        shape.append(size)
    if pa.types.is_list(column.type):  # In these lists alone, nulls take no space.
        return _numbers(values).reshape(len(column) - column.null_count, *shape)
    rows = _numbers(values).reshape(len(column), *shape)
    return rows[_bools(column.buffers()[0], column)] if column.null_count else rows


# Infos: typed, nullable columns, and a JSON remainder for all other values.


def encode_infos(
    prefix: str, infos: InfoColumns, tables: Sequence[InfoTable]
) -> tuple[list[pa.Array], dict[str, int]]:
    """Return a group's info columns and its JSON remainder, and the number of dropped values by column.

    A value goes into its path's column if it is exactly of that type, and into the remainder otherwise. Only
    values that neither can store are dropped. If two keys of one row have the same dotted name
    (`{"a.b": 1}` and `{"a": {"b": 1}}`), the later one gets the suffix `#2`.
    """
    table = concatenate_tables(tables)
    kinds = {path: kind for name, (path, kind) in infos.items() if name.startswith(f"{prefix}.")}
    fitting: dict[InfoPath, list[tuple[Array, Array]]] = {path: [] for path in kinds}
    remainder: dict[int, Fields] = {}
    # Tables list columns in order of first appearance, which depends on the boundaries of chunks.
    sources = sorted(table.columns, key=lambda source: (source.path, source.kind))
    fitted = [_fit(source, kinds.get(source.path)) for source in sources]
    for source, fit in zip(sources, fitted, strict=True):
        if fit.any():
            fitting[source.path].append((source.row_numbers()[fit], source.values[fit]))
    for source, fit in zip(sources, fitted, strict=True):
        if fit.all():
            continue
        key = ".".join(source.path)
        # If another path has a value in this row under the same column name, add a suffix to this key.
        rival, _ = infos.get(f"{prefix}.{key}", (source.path, ""))
        pairs = () if rival == source.path else fitting[rival]
        rivals = {row for rows, _ in pairs for row in rows.tolist()}
        for row, value in compress(source.items(), ~fit):
            values = remainder.setdefault(row, {})
            values[free_name(key, {*values, key} if row in rivals else values)] = plain_value(value)
    arrays = [_info_array(kinds[path], pairs, table.n_rows) for path, pairs in fitting.items()]
    texts = {row: json.dumps(values, sort_keys=True, allow_nan=False) for row, values in remainder.items()}
    rows = range(table.n_rows)
    arrays.append(text_array(list(map(texts.get, rows))) if texts else pa.nulls(len(rows), pa.string()))
    return arrays, {f"{prefix}.{key}": dropped for key, dropped in table.dropped.items()}


def _fit(source: InfoColumn, kind: str | None) -> Array:
    """Return a mask, bool (n,), of the values of `source` that fit the column of `kind`."""
    if kind in (None, STRING):
        return np.full(len(source.values), kind == source.kind)
    dtype, shape = kind_type(kind)
    return fits(source.values, dtype) & (source.values.shape[1:] == shape)


def _info_array(kind: str, pairs: list[tuple[Array, Array]], n_rows: int) -> pa.Array:
    """Return an info column from pairs of row numbers, ascending in each pair, and values."""
    if kind == STRING:
        texts = {row: text for rows, values in pairs for row, text in zip(rows.tolist(), values, strict=True)}
        return text_array([texts.get(row) for row in range(n_rows)])
    dtype, shape = kind_type(kind)
    pairs = pairs or [(np.zeros(0, np.int64), np.zeros((0, *shape), dtype))]
    rows = joined([rows for rows, _ in pairs])
    values = joined([values.astype(dtype, copy=False) for _, values in pairs])
    order = np.argsort(rows, kind="stable") if len(pairs) > 1 else slice(None)
    return encode_sparse_tensor(values[order], rows[order], n_rows)


def fits(values: Array, dtype: DType) -> Array:
    """Return a mask, bool (n,), of the rows of `values` (n, ...) that convert exactly to `dtype`.

    A conversion stays within a sort (integers, floats) or goes from integer to float, up to the largest
    integer below which all are exact. All numbers of a row must keep their value. A bool is not a number.
    """
    if values.dtype == dtype:
        return np.ones(len(values), bool)
    if values.dtype.kind == dtype.kind == "f":
        with np.errstate(all="ignore"):
            same = (values.astype(dtype).astype(np.float64) == values) | np.isnan(values)
    elif values.dtype.kind in "iu" and dtype.kind in "iuf":
        high = 2 ** (np.finfo(dtype).nmant + 1) if dtype.kind == "f" else int(np.iinfo(dtype).max)
        low = -high if dtype.kind == "f" else int(np.iinfo(dtype).min)
        same = (values >= low) & (values <= high)
    else:
        same = np.zeros(values.shape, bool)
    return np.asarray(same.reshape(len(values), -1).all(axis=1))


def decode_infos(prefix: str, table: pa.Table) -> InfoArrays:
    """Return one array per dotted key that has a value, in the form of `InfoTable.to_arrays`."""
    return dict(sorted(decode_info_table(prefix, table, {}).to_arrays().items()))


def decode_info_table(prefix: str, table: pa.Table, infos: InfoColumns) -> InfoTable:
    """Return the infos of a group; path and kind are from `infos`, or else the dotted key and its dtype."""
    columns = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        if name.startswith(f"{prefix}.") and column.null_count < len(column):
            rows = np.flatnonzero(column.is_valid()) if column.null_count else None
            values = np.array(decode(column))  # A copy: readers cache the table.
            path, kind = infos.get(name, ((name.removeprefix(f"{prefix}."),), values.dtype.name))
            columns.append(InfoColumn(path, kind, rows, values))
    extra: dict[str, dict[int, str]] = {}
    remainder = table[f"{prefix}_extra"]
    for row, text in enumerate(remainder.to_pylist() if remainder.null_count < len(remainder) else ()):
        if text is None:
            continue
        for key, value in json.loads(text).items():
            extra.setdefault(key, {})[row] = json.dumps(value)
    for key, texts in extra.items():
        columns.append(InfoColumn((key,), JSON, np.array(list(texts)), object_array(list(texts.values()))))
    return InfoTable(table.num_rows, tuple(columns))
