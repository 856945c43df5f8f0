"""Checks of values, each for all rows of a column at once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from rollout_cli.dataset.columns import Array
from rollout_cli.dataset.limits import MAX_JSON_BYTES
from rollout_cli.dataset.schema import INFO_PREFIXES


def contiguous(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array; joining a single chunk would copy it."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


@dataclass(frozen=True, slots=True)
class WrongValues:
    """What is wrong with some values of a column by themselves.

    Attributes:
        problem: In words.
        rows: For which rows, bool (N,).
        is_readable: Whether the column can be decoded all the same.
    """

    problem: str
    rows: Array
    is_readable: bool = False


def wrong_values(table: pa.Table) -> Iterator[WrongValues]:
    """Yield what is wrong with values: texts are UTF-8, and infos without a column JSON objects.

    That no value is missing follows from the schema: but for infos, columns are declared so, and hold no nulls.
    """
    for name in table.column_names:
        column = contiguous(table[name])
        texts = pa.types.is_string(column.type)
        wrong = _rows_not_text(column) if texts else None
        if wrong is not None:
            yield WrongValues(f"its column {name} holds what is no UTF-8 text", wrong)
        elif texts and name.endswith("_extra") and name.removesuffix("_extra") in INFO_PREFIXES:
            wrong = _rows_not_json(column)
            if wrong.any():
                yield WrongValues(f"its column {name} holds what is no JSON object", wrong, is_readable=True)


def _rows_not_text(column: pa.Array) -> Array | None:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return np.array([not _is_text(value) for value in column], bool)
    return None


def _is_text(value: pa.StringScalar) -> bool:
    try:
        value.as_py()
    except UnicodeDecodeError:
        return False
    return True


def _rows_not_json(column: pa.Array) -> Array:
    wrong = np.zeros(len(column), bool)
    if column.null_count == len(column):
        return wrong
    for row in np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False)).tolist():
        wrong[row] = not _is_json_object(column[row].as_py())
    return wrong


def _is_json_object(text: str) -> bool:
    if len(text) > MAX_JSON_BYTES:
        return False
    try:
        return isinstance(json.loads(text, parse_constant=_refuse), dict)
    except (ValueError, RecursionError):
        return False


def _refuse(name: str) -> Any:
    raise ValueError(f"JSON has no {name}")


def same_rows(first: Array, second: Array) -> Array:
    """Return which rows of two arrays of one shape are the same bits (equal texts), bool (N,)."""
    if first.dtype == object:
        return np.asarray((first == second).reshape(len(first), -1).all(axis=1))
    size = first.dtype.itemsize * int(np.prod(first.shape[1:], dtype=np.int64))
    bits = [np.ascontiguousarray(array).view(np.uint8).reshape(len(array), size) for array in (first, second)]
    return np.asarray((bits[0] == bits[1]).all(axis=1))
