"""Info dictionaries of all rows of a batch, as typed columns.

gymnasium's vector environments give one dictionary of arrays (n, ...) for all rows, with a mask `_key` beside each
`key` that not every row has; policies give arrays, masked where some rows have no value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rollout_cli.episodes.infos import InfoColumn, InfoPath, InfoTable, key_text, tabulate
from rollout_cli.workers.checks import BadValueError, copied, shown

Array = npt.NDArray[Any]

ODD = "odd"
"""The kind of a column of objects, whose values are classified one by one when they are taken."""

InfoKey = tuple[InfoPath, str]
"""Path and kind; one path may have several."""

_WIDEST_BYTES = 8
_LARGEST_VALUE = 4_096
"""A column of larger values (bytes) keeps objects: it would take this for each row of each step, seen or not."""


class BatchColumn(NamedTuple):
    """The values of all rows at one key, (n, ...), and which rows have one; None for all."""

    key: InfoKey
    values: Array
    has: Array | None


def batch_columns(infos: Any, n_rows: int, path: InfoPath = ()) -> Iterator[BatchColumn]:
    """Yield the columns of a batch's infos.

    Raises:
        BadValueError: If `infos` is no mapping.
    """
    if not isinstance(infos, Mapping):
        raise BadValueError(f"the infos are no dictionary: {shown(infos)}", "give {} where there is nothing to say")
    for key, value in infos.items():
        if isinstance(key, str) and key.startswith("_") and key[1:] in infos:
            continue
        has = infos.get(f"_{key}")
        here = (*path, key_text(key))
        if isinstance(value, Mapping):
            for column in batch_columns(value, n_rows, here):
                # An inner dictionary of gymnasium's has masks of its own; one without is as its outer one says.
                yield column if column.has is not None or has is None else column._replace(has=np.asarray(has, bool))
            continue
        yield _column(here, value, has, n_rows)


def _column(path: InfoPath, value: Any, has: Any, n_rows: int) -> BatchColumn:
    mask = None if has is None else np.asarray(has, bool)
    if isinstance(value, np.ma.MaskedArray):
        lacks = np.ma.getmaskarray(value).reshape(len(value), -1)
        mask, value = np.asarray(~lacks.all(axis=1)), np.ma.getdata(value)
    if mask is not None and mask.shape != (n_rows,):
        name = ".".join(path)
        raise BadValueError(
            f"the mask of info {name!r} is {mask.dtype}{mask.shape}, expected one bool a row ({n_rows})"
        )
    values = _per_row(value, n_rows)
    kind = _kind(values)
    if kind == ODD:
        kept = np.empty(n_rows, object)
        kept[:] = [copied(one) if mask is None or mask[row] else None for row, one in enumerate(values)]
        values = kept
    return BatchColumn((path, kind), values, mask)


def _per_row(value: Any, n_rows: int) -> Array:
    """Return an array (n, ...); a value without one entry a row counts for every row."""
    if isinstance(value, np.ndarray) and value.ndim and len(value) == n_rows:
        return value
    if hasattr(value, "__array__") and np.shape(value)[:1] == (n_rows,):
        return np.asarray(value)
    column = np.empty(n_rows, object)
    column[:] = list(value) if isinstance(value, list | tuple) and len(value) == n_rows else [value] * n_rows
    return column


def _kind(values: Array) -> str:
    row_bytes = values.dtype.itemsize * int(np.prod(values.shape[1:]))
    if values.dtype.kind not in "biuf" or values.dtype.itemsize > _WIDEST_BYTES or not 0 < row_bytes <= _LARGEST_VALUE:
        return ODD
    name = values.dtype.newbyteorder("=").name
    return f"{name}[{','.join(map(str, values.shape[1:]))}]" if values.ndim > 1 else name


def row_info(infos: Mapping[Any, Any], row: int, n_rows: int) -> dict[str, Any]:
    """Return one row's own info dictionary."""
    info: dict[str, Any] = {}
    for (path, _), values, has in batch_columns(infos, n_rows):
        if has is None or has[row]:
            _put(info, path, values[row].copy() if isinstance(values[row], np.ndarray) else values[row])
    return info


def info_table(n_rows: int, columns: Mapping[InfoKey, tuple[Array, Array]]) -> InfoTable:
    """Return columns of (values (T, ...), which rows have one (T,)) as a table."""
    typed: list[InfoColumn] = []
    odd: list[dict[str, Any]] | None = None
    for (path, kind), (values, has) in columns.items():
        rows = np.flatnonzero(has)
        if kind == ODD:
            odd = odd or [{} for _ in range(n_rows)]
            for row in rows.tolist():
                _put(odd[row], path, values[row])
        elif len(rows) == n_rows:
            typed.append(InfoColumn(path, kind, None, values))
        elif len(rows):
            typed.append(InfoColumn(path, kind, rows, values[rows]))
    others = tabulate(odd) if odd else InfoTable(n_rows)
    return InfoTable(n_rows, (*typed, *others.columns), others.dropped_rows)


def _put(info: dict[str, Any], path: InfoPath, value: Any) -> None:
    for name in path[:-1]:
        info = info.setdefault(name, {})
    info[path[-1]] = value
