"""Info dictionaries, which may contain any value at any step, as typed columns.

An `InfoTable` stores info dictionaries as sparse columns, one per (path, kind), without loss or casts. Info
arrays, the form of EpisodeBatch, are one array per path. If some rows lack a number the array is masked; if
they lack another value it has objects, with None for missing values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Any

import numpy as np

from rollout_cli.episodes.plain import plain_value
from rollout_cli.episodes.spaces import Array, Arrays, DType, Shape, has_utf8

InfoPath = tuple[str, ...]

InfoColumns = Mapping[str, tuple[InfoPath, str]]
"""The path and the kind (never `json`) of each typed info column, by name, such as `env_info.x`."""

InfoArrays = dict[str, Array]
"""Info arrays by dotted path."""

INFO_GROUPS = ("env_info", "agent_info", "episode_info")
"""The infos of `env.step`, of the policy, and of `env.reset`."""

STRING = "string"
SUCCESS_INFOS = ("env_info.is_success", "env_info.success")
"""The infos by which environments of several packages say that an episode succeeded."""
STATE = "state"
"""The key of the simulator's state in the infos of `env.reset` and `env.step`, if a run stores it."""
JSON = "json"
"""The kind of values without their own column type, which are stored as JSON strings."""

DENSE_BYTES = 1 << 30
"""The maximum size of a masked info array."""

MAX_NESTING = 16
"""Dictionaries nested deeper than this are stored as JSON, which rejects a dictionary that contains itself."""


@dataclass(frozen=True, slots=True, eq=False)
class InfoColumn:
    """The values of one kind at one path, and the rows that have them."""

    path: InfoPath  # Keys from the root of the info dictionary.
    kind: str  # A numpy dtype such as `bool`, a dtype with a shape (`float32[3,2]`), `string` or `json`.
    rows: Array | None  # Ascending int64, shape (n,); None if every row has a value.
    values: Array  # Shape (n, *shape); str objects for `string` and `json`.

    def row_numbers(self) -> Array:
        """Return the rows with a value, shape (n,)."""
        return np.arange(len(self.values)) if self.rows is None else self.rows

    def items(self) -> Iterator[tuple[int, Any]]:
        """Yield row and value; JSON values are decoded."""
        for row, value in zip(self.row_numbers().tolist(), self.values, strict=True):
            if self.kind == JSON:
                yield row, json.loads(value)
            else:
                yield row, value

    def slice(self, start: int, stop: int) -> InfoColumn:
        """Return the values of rows `start` to `stop - 1`."""
        if self.rows is None:
            return InfoColumn(self.path, self.kind, None, self.values[start:stop])
        low, high = np.searchsorted(self.rows, (start, stop))
        rows = None if high - low == stop - start else self.rows[low:high] - start
        return InfoColumn(self.path, self.kind, rows, self.values[low:high])


@dataclass(frozen=True, slots=True, eq=False)
class InfoTable:
    """`n_rows` info dictionaries as columns, in order of first appearance."""

    n_rows: int
    columns: tuple[InfoColumn, ...] = ()
    # By dotted path, the rows of values that cannot be stored (ascending int64, possibly with duplicates).
    dropped_rows: Arrays = field(default_factory=dict)

    @property
    def dropped(self) -> dict[str, int]:
        """The number of dropped values, by dotted path."""
        return {name: len(rows) for name, rows in self.dropped_rows.items()}

    def slice(self, start: int, stop: int) -> InfoTable:
        """Return rows `start` to `stop - 1`, without columns that have no values there."""
        columns = []
        for column in self.columns:
            part = column.slice(start, stop)
            if len(part.values):
                columns.append(part)
        dropped_rows = {}
        for name, rows in self.dropped_rows.items():
            inside = rows[(rows >= start) & (rows < stop)]
            if len(inside):
                dropped_rows[name] = inside - start
        return InfoTable(stop - start, tuple(columns), dropped_rows)

    def to_arrays(self) -> InfoArrays:
        """Return one info array per dotted path, length `n_rows`.

        If the masked array would need more than `DENSE_BYTES`, e.g. for a few images, the array has objects.
        """
        by_path: dict[str, list[InfoColumn]] = {}
        for column in self.columns:
            by_path.setdefault(".".join(column.path), []).append(column)
        return {key: self._array(columns) for key, columns in by_path.items()}

    def _array(self, columns: list[InfoColumn]) -> Array:
        first = columns[0]
        is_sparse = first.rows is not None
        is_too_sparse = is_sparse and self.n_rows * first.values[:1].nbytes > DENSE_BYTES
        if len(columns) > 1 or first.values.dtype == object or is_too_sparse:
            values = np.full(self.n_rows, None, dtype=object)
            for column in columns:
                for row, value in column.items():
                    values[row] = value
            return values
        if not is_sparse:
            return first.values
        values = all_masked((self.n_rows, *first.values.shape[1:]), first.values.dtype)
        values[first.rows] = first.values
        return values


def free_name(name: str, taken: Container[str]) -> str:
    """Return `name`, or the first of `name#2`, `name#3`, … that is not taken."""
    free = name
    numbers = count(2)
    while free in taken:
        free = f"{name}#{next(numbers)}"
    return free


def all_masked(shape: Shape, dtype: DType) -> Array:
    """Return an array whose elements are all masked."""
    return np.ma.MaskedArray(np.zeros(shape, dtype), np.ones(shape, bool))


def concatenate_arrays(infos: Sequence[Arrays], sizes: Sequence[int]) -> InfoArrays:
    """Concatenate info arrays by key; the arrays of `infos[j]` have length `sizes[j]`."""
    return {key: _join(key, infos, sizes) for key in dict.fromkeys(chain(*infos))}


def _join(key: str, infos: Sequence[Arrays], sizes: Sequence[int]) -> Array:
    first = next(info[key] for info in infos if key in info)
    is_object = first.dtype == object or sum(sizes) * first[:1].nbytes > DENSE_BYTES
    parts = []
    for info, size in zip(infos, sizes, strict=True):
        if key in info:
            parts.append(info[key])
        elif is_object:
            parts.append(np.full(size, None, object))
        else:
            parts.append(all_masked((size, *first.shape[1:]), first.dtype))
    return concatenated(parts)


def concatenated(arrays: Sequence[Array]) -> Array:
    """Concatenate arrays: the result is masked if one array is, and has objects if types differ."""
    first = arrays[0]
    if any((array.dtype, array.shape[1:]) != (first.dtype, first.shape[1:]) for array in arrays):
        arrays = list(map(_objects, arrays))
    is_masked = any(isinstance(array, np.ma.MaskedArray) for array in arrays)
    concatenate: Any = np.ma.concatenate if is_masked else np.concatenate
    return np.asanyarray(concatenate(arrays))


def _objects(column: Array) -> Array:
    objects = np.full(len(column), None, dtype=object)
    has_value = ~np.ma.getmaskarray(column).reshape(len(column), -1).any(axis=1)
    for row in np.flatnonzero(has_value):
        objects[row] = np.ma.getdata(column)[row]
    return objects


def concatenate_tables(tables: Sequence[InfoTable]) -> InfoTable:
    """Return one table with the rows of all `tables`, in order."""
    parts: dict[tuple[InfoPath, str], list[tuple[Array, Array]]] = {}
    dropped: dict[str, list[Array]] = {}
    offset = 0
    for table in tables:
        for column in table.columns:
            parts.setdefault((column.path, column.kind), []).append(
                (column.row_numbers() + offset, column.values)
            )
        for key, rows in table.dropped_rows.items():
            dropped.setdefault(key, []).append(rows + offset)
        offset += table.n_rows
    columns = []
    for (path, kind), chunks in parts.items():
        rows, values = map(np.concatenate, zip(*chunks, strict=True))
        columns.append(InfoColumn(path, kind, None if len(rows) == offset else rows, values))
    return InfoTable(offset, tuple(columns), {key: np.concatenate(rows) for key, rows in dropped.items()})


def tabulate(infos: Sequence[Mapping[Any, Any]]) -> InfoTable:
    """Convert info dictionaries, one per row, to typed columns.

    Numbers and arrays of numbers keep their type (a Python int is int64, a float is float64), and a str is
    `string`. None, lists and similar values become JSON. Values that JSON cannot represent are dropped and
    counted, as is the second of two keys with the same string, such as 1 and "1". Lone surrogates, which are
    not valid UTF-8, are escaped in keys; a string with a lone surrogate becomes JSON.
    """
    if (uniform_columns := _uniform(infos)) is not None:
        return InfoTable(len(infos), uniform_columns)
    rows_and_values: dict[tuple[InfoPath, str | None], tuple[list[int], list[Any]]] = {}
    dropped: dict[str, list[int]] = {}
    for row, info in enumerate(infos):
        if not info:
            continue
        for path, value in _entries(info):
            kind, stored = classify(value)
            rows, values = rows_and_values.setdefault((path, kind), ([], []))
            if kind is None or rows[-1:] == [row]:
                dropped.setdefault(".".join(path), []).append(row)
            else:
                rows.append(row)
                values.append(stored)
    columns = []
    for (path, kind), (rows, values) in rows_and_values.items():
        if kind is None:
            continue
        dtype, shape = (np.dtype(object), ()) if kind in (STRING, JSON) else kind_type(kind)
        array = np.array(values, dtype).reshape(len(values), *shape)
        columns.append(
            InfoColumn(path, kind, None if len(rows) == len(infos) else np.array(rows, np.int64), array)
        )
    dropped_rows = {name: np.array(rows, np.int64) for name, rows in dropped.items()}
    return InfoTable(len(infos), tuple(columns), dropped_rows)


def _uniform(infos: Sequence[Mapping[Any, Any]]) -> tuple[InfoColumn, ...] | None:
    """Return the columns if all infos have the same keys, with numbers of one type each; else None."""
    if not infos or not infos[0]:
        return None
    keys = infos[0].keys()
    if any(not info or info.keys() != keys for info in infos):
        return None
    columns = []
    for key in keys:
        values = [info[key] for info in infos]
        first_type, *other_types = set(map(type, values))
        kind = _FAST_KINDS.get(first_type)
        if other_types or kind in (None, STRING) or type(key) is not str or not key.isascii():
            return None
        try:
            columns.append(InfoColumn((key,), kind, None, np.array(values, kind)))
        except OverflowError:  # An integer of more than 64 bits.
            return None
    return tuple(columns)


def _entries(info: Mapping[Any, Any], prefix: InfoPath = ()) -> Iterator[tuple[InfoPath, Any]]:
    for key, value in info.items():
        path = (*prefix, key if type(key) is str and key.isascii() else key_text(key))
        if isinstance(value, Mapping) and value and len(prefix) < MAX_NESTING:
            yield from _entries(value, path)
        else:
            yield path, value


def key_text(key: Any) -> str:
    """Return a key of an info dictionary as a valid UTF-8 string."""
    try:
        string = str(key)
    except Exception:  # noqa: BLE001 - a user's object may raise any error
        string = f"<{type(key).__name__}>"
    return string.encode("utf-8", "backslashreplace").decode()


def kind_type(kind: str) -> tuple[DType, Shape]:
    """Return dtype and shape of a numeric kind: (float32, (3, 2)) for `float32[3,2]`."""
    name, _, shape = kind.partition("[")
    return np.dtype(name), tuple(map(int, re.findall(r"\d+", shape)))


_FAST_KINDS: dict[type, str] = {
    bool: "bool",
    int: "int64",
    float: "float64",
    str: STRING,
    # Simulators return several of these in every step; numpy's dtype name takes longer than the recording.
    np.bool_: "bool",
    np.int64: "int64",
    np.float64: "float64",
    np.float32: "float32",
    np.int32: "int32",
}
_WIDEST_BYTES = 8


def classify(value: Any) -> tuple[str | None, Any]:
    """Return the kind of an info value and the value to store; (None, None) if it cannot be stored."""
    kind = _FAST_KINDS.get(type(value))
    fits = kind != STRING or has_utf8(value)
    if kind == "int64":
        fits = -(2**63) <= value < 2**63
    if kind is not None and fits:
        return kind, value
    try:
        is_masked = isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value)
        # A masked array is not converted to a plain array, which would show the masked elements.
        if hasattr(value, "__array__") and not isinstance(value, type) and not is_masked:
            value = np.asarray(value)
            if value.ndim == 0 and value.dtype.kind == "U":
                return classify(str(value))
            if value.size and value.dtype.kind in "biuf" and value.dtype.itemsize <= _WIDEST_BYTES:
                name = value.dtype.newbyteorder("=").name
                if value.ndim:
                    return f"{name}[{','.join(map(str, value.shape))}]", np.array(value)
                # `[()]` copies a scalar, since the array may be a buffer of the environment.
                return name, value.item() if name in ("bool", "int64", "float64") else value[()]
        return JSON, json.dumps(plain_value(value), sort_keys=True, allow_nan=False)
    except Exception:  # noqa: BLE001 - device arrays and tensors with gradients raise various errors
        return None, None
