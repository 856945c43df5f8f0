"""An InfoTable as the info columns of a dataset: typed, nullable, with a JSON remainder for all that has no column."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from rollout_cli.dataset.arrays import present as present_rows
from rollout_cli.dataset.arrays import text_array
from rollout_cli.dataset.columns import Array, decode_tensor, encode_tensor
from rollout_cli.dataset.info_types import fits
from rollout_cli.dataset.window import InfoField
from rollout_cli.infos import JSON, STRING, InfoColumn, InfoPath, InfoTable, concatenate_tables, kind_type


def info_names(prefix: str, fields: Sequence[InfoField]) -> list[str]:
    """Return the column names of `fields`, and of their remainder, which comes last."""
    return [*(f"{prefix}.{field.key}" for field in fields), f"{prefix}_extra"]


def info_fields(prefix: str, fields: Sequence[InfoField]) -> list[pa.Field]:
    """Return the Arrow fields of the typed columns and of their remainder."""
    types = [*(field.arrow_type for field in fields), pa.string()]
    return [pa.field(name, kind) for name, kind in zip(info_names(prefix, fields), types, strict=True)]


def encode_infos(
    prefix: str, fields: Sequence[InfoField], tables: Sequence[InfoTable]
) -> tuple[list[pa.Array], dict[str, int]]:
    """Return the typed columns of the rows of `tables`, the remainder, and by column how many values are in neither.

    A value goes into its path's column if it is exactly of that type, value by value. A value finds no place only where
    two keys of one row read alike once dotted (`{"a.b": 1}` and `{"a": {"b": 1}}`) and neither has a column, or where
    nothing could store it to begin with.
    """
    table = concatenate_tables(tables)
    if not (fields or table.columns or table.dropped):
        return [pa.nulls(table.n_rows, pa.string())], {}
    columns = {field.path: _Column(field, table.n_rows) for field in fields}
    remainder = _Remainder(table.n_rows)
    for source in sorted(table.columns, key=_order):
        column = columns.get(source.path)
        remainder.add(source, None if column is None else column.add(source))
    lost = Counter(remainder.lost) + Counter(table.dropped)
    arrays = [*(column.encode() for column in columns.values()), remainder.encode()]
    return arrays, {f"{prefix}.{key}": count for key, count in lost.items()}


def _order(column: InfoColumn) -> tuple[InfoPath, str]:
    # Tables list columns in the order in which they were first met, which depends on where chunks were cut.
    return column.path, column.kind


class _Column:
    """One typed column in the making."""

    def __init__(self, field: InfoField, n_rows: int) -> None:
        self._text = field.kind == STRING
        dtype, shape = (np.dtype(object), ()) if self._text else kind_type(field.kind)
        self._values = np.full(n_rows, None, object) if self._text else np.zeros((n_rows, *shape), dtype)
        self._missing = np.ones(n_rows, bool)

    def add(self, source: InfoColumn) -> Array:
        """Take the values that fit; return which did, bool (n,)."""
        fit = self._fit(source)
        if fit.any():  # Where none does, their shape may be another.
            rows = source.row_numbers()[fit]
            self._values[rows] = source.values[fit]
            self._missing[rows] = False
        return fit

    def _fit(self, source: InfoColumn) -> Array:
        if self._text or source.kind in (STRING, JSON):
            return np.full(len(source.values), self._text and source.kind == STRING)
        if source.values.shape[1:] != self._values.shape[1:]:
            return np.zeros(len(source.values), bool)
        return fits(source.values, self._values.dtype)

    def encode(self) -> pa.Array:
        if self._text:
            return text_array(self._values.tolist())
        return encode_tensor(self._values, self._missing if self._missing.any() else None)


class _Remainder:
    """The values without a column, one JSON object a row, by dotted key."""

    def __init__(self, n_rows: int) -> None:
        self._rows: dict[int, dict[str, Any]] = {}
        self._n_rows = n_rows
        self.lost: dict[str, int] = {}

    def add(self, source: InfoColumn, placed: Array | None) -> None:
        """Take the values of `source` that are not `placed`."""
        left = np.ones(len(source.values), bool) if placed is None else ~placed
        if not left.any():
            return
        key = ".".join(source.path)
        for row, value in zip(source.row_numbers()[left].tolist(), source.values[left], strict=True):
            values = self._rows.setdefault(row, {})
            if key in values:
                self.lost[key] = self.lost.get(key, 0) + 1
            else:
                values[key] = json.loads(value) if source.kind == JSON else _plain(value)

    def encode(self) -> pa.Array:
        if not self._rows:
            return pa.nulls(self._n_rows, pa.string())
        texts: list[str | None] = [None] * self._n_rows
        for row, values in self._rows.items():
            texts[row] = json.dumps(values, sort_keys=True, allow_nan=False)
        return text_array(texts)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    # The texts NaN, Infinity and -Infinity, as `rollout_cli.infos` writes them: JSON has no such numbers.
    return json.dumps(value) if isinstance(value, float) and not math.isfinite(value) else value


def decode_infos(prefix: str, table: pa.Table) -> dict[str, Array]:
    """Return one array a dotted key of the info columns of `table`; keys without any value are left out.

    The arrays are those of `InfoTable.to_arrays`: plain where every row has a value, masked where some lack it, object
    arrays (None where a row lacks it) for texts, JSON, and keys with values both in a column and in the remainder.
    """
    start = f"{prefix}."
    names = [name for name in table.column_names if name.startswith(start)]
    found = {name.removeprefix(start): _decode(table[name].combine_chunks()) for name in names}
    arrays = {key: values for key, values in found.items() if values is not None}
    for row, text in enumerate(table[f"{prefix}_extra"].to_pylist()):
        for key, value in json.loads(text).items() if text else ():
            arrays[key] = objects = _as_objects(arrays.get(key), table.num_rows)
            objects[row] = value
    return dict(sorted(arrays.items()))


def _decode(column: pa.Array) -> Array | None:
    if column.null_count == len(column):
        return None
    if pa.types.is_string(column.type):
        return np.array([*column.to_pylist(), None], dtype=object)[:-1]
    present = decode_tensor(column)
    if not column.null_count:
        return present
    rows = present_rows(column)
    values = np.zeros((len(column), *present.shape[1:]), present.dtype)
    values[rows] = present
    mask = np.ones(values.shape, bool)
    mask[rows] = False
    return np.ma.MaskedArray(values, mask)


def _as_objects(values: Array | None, n_rows: int) -> Array:
    if values is not None and values.dtype == object:
        return values
    out = np.full(n_rows, None, dtype=object)
    if values is not None:
        mask = np.ma.getmaskarray(values).reshape(n_rows, -1)[:, 0]
        for row in np.flatnonzero(~mask):
            out[row] = values[row]
    return out
