"""Info dictionaries of a whole batch of rows: as flat columns, as one row's dictionary, and as an InfoTable.

gymnasium's vector environments give one dictionary of arrays (n, ...) for all rows, with a mask `_key` beside each
`key` that not every row has; policies give masked arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rollout_cli.infos import InfoColumn, InfoPath, InfoTable, classify, column_values
from rollout_cli.workers.recorder import frozen_copy

Array = npt.NDArray[Any]

ODD = "odd"
"""The kind of a column of objects, whose values are classified one by one when they are handed on."""

InfoKey = tuple[InfoPath, str]
"""Path and kind; one path may have several."""

_WIDEST_BYTES = 8


class BatchColumn(NamedTuple):
    """What all rows have at one key: values (n, ...), and which rows have one; None for all."""

    key: InfoKey
    values: Array
    has: Array | None


def batch_columns(infos: Mapping[Any, Any], n_rows: int, path: InfoPath = ()) -> Iterator[BatchColumn]:
    """Yield the columns of a batch's infos."""
    for key, value in infos.items():
        name = str(key)
        if name.startswith("_") and name[1:] in infos:
            continue
        has = infos.get(f"_{name}")
        if isinstance(value, Mapping):
            for column in batch_columns(value, n_rows, (*path, name)):
                # An inner dictionary of gymnasium's has masks of its own; one without is as its outer one says.
                yield column if column.has is not None or has is None else column._replace(has=np.asarray(has, bool))
            continue
        yield _column((*path, name), value, has, n_rows)


def _column(path: InfoPath, value: Any, has: Any, n_rows: int) -> BatchColumn:
    mask = None if has is None else np.asarray(has, bool)
    if isinstance(value, np.ma.MaskedArray):
        lacks = np.ma.getmaskarray(value).reshape(len(value), -1)
        mask, value = np.asarray(~lacks.all(axis=1)), np.ma.getdata(value)
    values = _per_row(value, n_rows)
    kind = _kind(values)
    return BatchColumn((path, kind), values, mask)


def _per_row(value: Any, n_rows: int) -> Array:
    """Return an array (n, ...); what is none with one value a row counts for every row."""
    if isinstance(value, np.ndarray) and value.ndim and len(value) == n_rows:
        return value
    rows = list(value) if isinstance(value, list | tuple) and len(value) == n_rows else [value] * n_rows
    if hasattr(value, "__array__") and np.shape(value)[:1] == (n_rows,):
        return np.asarray(value)
    column = np.empty(n_rows, object)
    column[:] = rows
    return column


def _kind(values: Array) -> str:
    if values.dtype.kind not in "biuf" or values.dtype.itemsize > _WIDEST_BYTES or 0 in values.shape[1:]:
        return ODD
    name = values.dtype.newbyteorder("=").name
    return f"{name}[{','.join(map(str, values.shape[1:]))}]" if values.ndim > 1 else name


def frozen_column(column: BatchColumn) -> BatchColumn:
    """Return the column with objects that nobody changes any more; arrays of numbers are copied when recorded."""
    if column.key[1] != ODD or column.values.dtype != object:
        return column
    values = np.empty(len(column.values), object)
    values[:] = [frozen_copy({"": value})[""] for value in column.values]
    return column._replace(values=values)


def row_info(infos: Mapping[Any, Any], row: int, n_rows: int) -> dict[str, Any]:
    """Return one row's own info dictionary."""
    info: dict[str, Any] = {}
    for (path, _), values, has in batch_columns(infos, n_rows):
        if has is None or has[row]:
            inner = info
            for name in path[:-1]:
                inner = inner.setdefault(name, {})
            value = values[row]
            inner[path[-1]] = value.copy() if isinstance(value, np.ndarray) else value
    return info


def info_table(n_rows: int, columns: Mapping[InfoKey, tuple[Array, Array]]) -> InfoTable:
    """Return columns of (values (T, ...), which rows have one (T,)) as a table."""
    out: list[InfoColumn] = []
    dropped: dict[str, int] = {}
    for (path, kind), (values, has) in columns.items():
        rows = np.flatnonzero(has)
        if not len(rows):
            continue
        if kind == ODD:
            out += _classified(path, rows, values[rows], n_rows, dropped)
        elif len(rows) == n_rows:
            out.append(InfoColumn(path, kind, None, values))
        else:
            out.append(InfoColumn(path, kind, rows, values[rows]))
    return InfoTable(n_rows, tuple(out), dropped)


def _classified(
    path: InfoPath, rows: Array, values: Array, n_rows: int, dropped: dict[str, int]
) -> Iterator[InfoColumn]:
    found: dict[str, tuple[list[int], list[Any]]] = {}
    for row, value in zip(rows.tolist(), values, strict=True):
        kind, stored = classify(value)
        if kind is None:
            name = ".".join(path)
            dropped[name] = dropped.get(name, 0) + 1
            continue
        at, kept = found.setdefault(kind, ([], []))
        at.append(row)
        kept.append(stored)
    for kind, (at, kept) in found.items():
        yield InfoColumn(path, kind, None if len(at) == n_rows else np.array(at, np.int64), column_values(kind, kept))
