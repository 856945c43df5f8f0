"""Values as plain Arrow arrays and back: leaves of spaces, tensors, texts, and the columns of infos.

Other readers of Parquet lose or refuse extension types for tensors. Arrays are built from numpy's memory, because
pyarrow's own conversions and masks import pandas and pyarrow.compute, a tenth of a second and more at a run's start.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rollout_cli.episodes.infos import JSON, STRING, InfoColumn, InfoTable, kind_type
from rollout_cli.episodes.spaces import Leaf
from rollout_cli.errors import StorageError, UnsupportedSpaceError

Array = npt.NDArray[Any]

MOST_OFFSET = (1 << 31) - 1
"""Bytes of text, or numbers of lists, that one Arrow array can hold."""


def joined(parts: Sequence[Array]) -> Array:
    """Return arrays (n, *shape) after one another; a single one as it is, without a copy."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def number_array(values: Array, missing: Array | None = None) -> pa.Array:
    """Return numbers or bools (T,) as an array that shares their memory where possible; null where `missing` (T,)."""
    values = np.ascontiguousarray(values, values.dtype.newbyteorder("="))
    data = _bits(values) if values.dtype == np.bool_ else pa.py_buffer(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [_validity(missing), data])


def text_array(texts: Sequence[str | None]) -> pa.Array:
    r"""Return texts as an array; None is null. A lone surrogate, which has no UTF-8, is written as `\udc80`.

    Raises:
        StorageError: If they come to more bytes than one Arrow array takes.
    """
    missing = np.array([text is None for text in texts], bool)
    encoded = [(text or "").encode(errors="backslashreplace") for text in texts]
    offsets = _offsets(np.fromiter(map(len, encoded), np.int64, len(texts)))
    validity = _validity(missing if missing.any() else None)
    return pa.StringArray.from_buffers(len(texts), offsets, pa.py_buffer(b"".join(encoded)), validity)


def _offsets(sizes: Array) -> pa.Buffer:
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    if offsets[-1] > MOST_OFFSET:
        raise StorageError(
            f"one column of {len(sizes):,} rows would hold {offsets[-1]:,} bytes or numbers, over {MOST_OFFSET:,}",
            hint="leave out large infos with --drop-info KEY, or shorten the texts of observations",
        )
    return pa.py_buffer(offsets.astype(np.int32))


def _validity(missing: Array | None) -> pa.Buffer | None:
    return None if missing is None else _bits(~missing)


def _bits(flags: Array) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def contiguous(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array; a single chunk as it is, without a copy."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def present_rows(column: pa.Array) -> Array:
    """Return which rows of an array are not null, bool (T,)."""
    bits = column.buffers()[0]
    return np.ones(len(column), bool) if bits is None else _flags(bits, column)


def numbers_of(column: pa.Array) -> Array:
    """Return the values (T,) of an array of numbers or bools, anything for a null; numbers share its memory."""
    data = column.buffers()[1]
    if data is None:  # An empty array has no memory.
        return np.empty(0, column.type.to_pandas_dtype())
    if pa.types.is_boolean(column.type):
        return _flags(data, column)
    return np.frombuffer(data, column.type.to_pandas_dtype(), column.offset + len(column))[column.offset :]


def _flags(bits: pa.Buffer, column: pa.Array) -> Array:
    flags = np.unpackbits(np.frombuffer(bits, np.uint8), count=column.offset + len(column), bitorder="little")
    return flags[column.offset :].astype(bool)


# Tensors: fixed-size lists where every row has a value, variable-size lists where rows may be null.


def tensor_type(dtype: np.dtype[Any], shape: tuple[int, ...]) -> pa.DataType:
    """Return nested fixed-size lists of `shape` over the type of `dtype`."""
    return _nested_types(dtype.newbyteorder("="), shape, fixed=True)[-1]


def info_type(kind: str) -> pa.DataType:
    """Return the Arrow type of an info column of `kind`.

    Arrays are lists of variable size: a null fixed-size list takes as much memory as any other, so a large info in few
    steps would fill gigabytes with nothing.
    """
    return pa.string() if kind == STRING else _nested_types(*kind_type(kind), fixed=False)[-1]


@lru_cache(maxsize=256)
def _nested_types(dtype: np.dtype[Any], shape: tuple[int, ...], *, fixed: bool) -> tuple[pa.DataType, ...]:
    """Return the type of numbers, and those of the lists around them, innermost first.

    The cache gives the same objects each time, and pyarrow finds identical types equal without comparing their parts.
    """
    types = [pa.from_numpy_dtype(dtype)]
    for size in reversed(shape):
        # Parquet's own name for the values of a list; Arrow's default differs and would not survive a round trip.
        element = pa.field("element", types[-1], nullable=False)
        types.append(pa.list_(element, size) if fixed else pa.list_(element))
    return tuple(types)


def encode_tensor(values: Array) -> pa.Array:
    """Return a column of scalars or nested fixed-size lists from values of shape (T, *shape)."""
    out = number_array(np.ascontiguousarray(values).reshape(-1))
    for kind in _nested_types(values.dtype.newbyteorder("="), values.shape[1:], fixed=True)[1:]:
        out = pa.Array.from_buffers(kind, len(out) // kind.list_size, [None], children=[out])
    return out


def encode_sparse_tensor(values: Array, rows: Array, n_rows: int) -> pa.Array:
    """Return `n_rows` scalars or variable-size lists: `values` (n, *shape) in `rows` (n,), null elsewhere."""
    missing = np.ones(n_rows, bool)
    missing[rows] = False
    nulls = missing if len(rows) < n_rows else None
    if values.ndim == 1:
        dense = np.zeros(n_rows, values.dtype)
        dense[rows] = values
        return number_array(dense, nulls)
    out = number_array(np.ascontiguousarray(values).reshape(-1))
    *inner, outer = _nested_types(values.dtype.newbyteorder("="), values.shape[1:], fixed=False)[1:]
    for kind, size in zip(inner, values.shape[:1:-1], strict=True):
        sizes = np.full(len(out) // size, size, np.int64)
        out = pa.Array.from_buffers(kind, len(sizes), [None, _offsets(sizes)], children=[out])
    offsets = _offsets(np.where(missing, 0, values.shape[1]))
    return pa.Array.from_buffers(outer, n_rows, [_validity(nulls), offsets], children=[out])


def decode_tensor(column: pa.Array) -> Array:
    """Return the rows of a column that are not null, shape (rows, *shape)."""
    present = present_rows(column) if column.null_count else None
    shape: list[int] = []
    values = column
    while pa.types.is_nested(values.type):
        values, size = _elements(values, len(values) - values.null_count)
        shape.append(size)
    if shape and present is not None and pa.types.is_fixed_size_list(column.type):
        return numbers_of(values).reshape(len(column), *shape)[present]
    # Where no row has a value, sizes are 0, and numpy could not infer the number of rows.
    numbers = numbers_of(values).reshape(len(column) - column.null_count, *shape) if shape else numbers_of(values)
    return numbers if shape or present is None else numbers[present]


def _elements(lists: pa.Array, n_present: int) -> tuple[pa.Array, int]:
    """Return the values of lists of one size, and that size. Null lists of a variable size have no values."""
    kind = lists.type
    if pa.types.is_fixed_size_list(kind):
        # By the offset: `flatten` and `take` of pyarrow 26 give wrong rows for slices of nested fixed-size lists.
        return lists.values.slice(lists.offset * kind.list_size, len(lists) * kind.list_size), kind.list_size
    offsets = np.frombuffer(lists.buffers()[1], np.int32, lists.offset + len(lists) + 1)
    first, last = int(offsets[lists.offset]), int(offsets[-1])
    return lists.values.slice(first, last - first), (last - first) // max(1, n_present)


# Leaves of spaces.


def is_image(leaf: Leaf) -> bool:
    """Return whether a leaf is stored as raw bytes: a uint8 Box of two or more dimensions."""
    return leaf.kind == "box" and leaf.dtype == np.uint8 and len(leaf.shape) > 1


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
        return _object_array(column.to_pylist())
    if is_image(leaf):
        # A slice keeps the whole buffer and an offset.
        data = np.frombuffer(column.buffers()[1], np.uint8).reshape(-1, column.type.byte_width)
        return data[column.offset : column.offset + len(column)].reshape(-1, *leaf.shape)
    return decode_tensor(column).reshape(-1, *leaf.shape).astype(leaf.dtype, copy=False)


def _object_array(values: list[Any]) -> Array:
    # The None keeps numpy from making a 2-D array of lists, or an array of texts.
    return np.array([*values, None], dtype=object)[:-1]


# Infos: typed, nullable columns, and a JSON remainder for values that have no column.


def encode_infos(
    prefix: str, kinds: Mapping[tuple[str, ...], str], table: InfoTable
) -> tuple[list[pa.Array], dict[str, int]]:
    """Return the columns of `kinds`, by path, then the JSON remainder; and by column how many values are in neither.

    A value goes into its path's column if it is exactly of that type. A value is lost only if nothing could store it,
    or if two keys of one row are equal once dotted (`{"a.b": 1}` and `{"a": {"b": 1}}`) and neither has a column.
    """
    found: dict[tuple[str, ...], list[tuple[Array, Array]]] = {path: [] for path in kinds}
    remainder: dict[int, dict[str, Any]] = {}
    lost = Counter(table.dropped)
    # Tables list columns in the order in which they were first met, which depends on where chunks were cut.
    for source in sorted(table.columns, key=lambda source: (source.path, source.kind)):
        key, rows, fit = ".".join(source.path), source.row_numbers(), _fit(source, kinds.get(source.path))
        if fit.any():
            found[source.path].append((rows[fit], source.values[fit]))
        if fit.all():
            continue
        for row, value in zip(rows[~fit].tolist(), source.values[~fit], strict=True):
            values = remainder.setdefault(row, {})
            if key in values:
                lost[key] += 1
            else:
                values[key] = json.loads(value) if source.kind == JSON else _plain(value)
    arrays = [_info_array(kinds[path], pairs, table.n_rows) for path, pairs in found.items()]
    texts = {row: json.dumps(values, sort_keys=True, allow_nan=False) for row, values in remainder.items()}
    extra = text_array([texts.get(row) for row in range(table.n_rows)]) if texts else None
    arrays.append(pa.nulls(table.n_rows, pa.string()) if extra is None else extra)
    return arrays, {f"{prefix}.{key}": count for key, count in lost.items()}


def _fit(source: InfoColumn, kind: str | None) -> Array:
    """Return which values of `source` the column of `kind` takes, bool (n,)."""
    if kind is None or JSON in (kind, source.kind) or STRING in (kind, source.kind):
        return np.full(len(source.values), kind == source.kind == STRING)
    dtype, shape = kind_type(kind)
    return fits(source.values, dtype) if source.values.shape[1:] == shape else np.zeros(len(source.values), bool)


def _info_array(kind: str, found: list[tuple[Array, Array]], n_rows: int) -> pa.Array:
    """Return a column from pairs of row numbers, ascending in each pair, and values."""
    if kind == STRING:
        texts = {row: text for rows, values in found for row, text in zip(rows.tolist(), values, strict=True)}
        return text_array([texts.get(row) for row in range(n_rows)])
    dtype, shape = kind_type(kind)
    if not found:
        return encode_sparse_tensor(np.zeros((0, *shape), dtype), np.zeros(0, np.int64), n_rows)
    rows, values = joined([rows for rows, _ in found]), joined([values.astype(dtype) for _, values in found])
    if len(found) > 1:
        order = np.argsort(rows, kind="stable")
        rows, values = rows[order], values[order]
    return encode_sparse_tensor(values, rows, n_rows)


def _plain(value: Any) -> Any:
    """Return numbers as JSON has them."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    # The texts NaN, Infinity and -Infinity, as `episodes.infos` writes them: JSON has no such numbers.
    return json.dumps(value) if isinstance(value, float) and not math.isfinite(value) else value


def fits(values: Array, dtype: np.dtype[Any]) -> Array:
    """Return which rows of `values` (n, ...) are exactly promoted to `dtype`, bool (n,).

    A promotion keeps the sort (an integer stays an integer) or goes from integer to float, up to the integers that all
    are exact; all numbers of a row must stay the same. A bool is not a number.
    """
    if values.dtype == dtype:
        return np.ones(len(values), bool)
    if values.dtype.kind == dtype.kind == "f":
        with np.errstate(over="ignore", invalid="ignore"):
            same = (values.astype(dtype).astype(np.float64) == values) | np.isnan(values)
    elif values.dtype.kind in "iu" and dtype.kind in "iuf":
        high = 2 ** (np.finfo(dtype).nmant + 1) if dtype.kind == "f" else int(np.iinfo(dtype).max)
        low = -high if dtype.kind == "f" else int(np.iinfo(dtype).min)
        own = np.iinfo(values.dtype)  # numpy does not compare with integers that the values' own type lacks.
        same = (values >= max(low, int(own.min))) & (values <= min(high, int(own.max)))
    else:
        same = np.zeros(values.shape, bool)
    return np.asarray(same.reshape(len(values), -1).all(axis=1))


def decode_infos(prefix: str, table: pa.Table) -> dict[str, Array]:
    """Return one array a dotted key that has any value, as `InfoTable.to_arrays` gives them."""
    names = [name for name in table.column_names if name.startswith(f"{prefix}.")]
    columns = [_info_column(name.removeprefix(f"{prefix}."), contiguous(table[name])) for name in names]
    extra: dict[str, dict[int, str]] = {}
    for row, text in enumerate(table[f"{prefix}_extra"].to_pylist()):
        for key, value in json.loads(text).items() if text else ():
            extra.setdefault(key, {})[row] = json.dumps(value)
    columns += [
        InfoColumn((key,), JSON, np.array(list(found)), _object_array(list(found.values())))
        for key, found in extra.items()
    ]
    arrays = InfoTable(table.num_rows, tuple(column for column in columns if len(column.values))).to_arrays()
    return dict(sorted(arrays.items()))


def _info_column(key: str, column: pa.Array) -> InfoColumn:
    rows = np.flatnonzero(present_rows(column)) if column.null_count else None
    if pa.types.is_string(column.type):
        texts = [text for text in column.to_pylist() if text is not None]
        return InfoColumn((key,), STRING, rows, _object_array(texts))
    values = np.empty(0) if column.null_count == len(column) else decode_tensor(column)
    return InfoColumn((key,), values.dtype.name, rows, values)
