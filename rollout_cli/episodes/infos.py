"""Info dictionaries as typed columns.

They hold anything, at any step. An `InfoTable` holds many of them as sparse columns, one for each (path, type) that was
met, so that nothing is lost or cast here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rollout_cli.episodes.spaces import has_utf8

if TYPE_CHECKING:
    from rollout_cli.episodes.chunk import Chunk

Array = npt.NDArray[Any]
InfoPath = tuple[str, ...]

STRING = "string"
JSON = "json"
"""The kind of a value with no column type of its own: its column holds JSON texts."""

DENSE_BYTES = 1 << 30
"""A column that some rows lack is filled up to this size at most."""

MAX_NESTING = 16
"""Dictionaries nested deeper than this are JSON, so that one that holds itself ends (JSON refuses it)."""


@dataclass(frozen=True, slots=True, eq=False)
class InfoColumn:
    """The values of one kind at one path, and the rows that have them.

    Attributes:
        path: Keys from the root of the info dictionary; nested dictionaries give longer paths.
        kind: A numpy dtype name such as `bool`, the same with a shape (`float32[3,2]`), `string` or `json`.
        rows: Row numbers, ascending int64, shape (n,); None where every row has a value.
        values: Shape (n, *shape); dtype object, holding str, for `string` and `json`.
    """

    path: InfoPath
    kind: str
    rows: Array | None
    values: Array

    def __reduce__(self) -> tuple[Any, ...]:
        # The state of a dataclass with slots is found field by field, at ten times the cost of a plain call.
        return InfoColumn, (self.path, self.kind, self.rows, self.values)

    def row_numbers(self) -> Array:
        """Return the rows that have a value, shape (n,)."""
        return np.arange(len(self.values)) if self.rows is None else self.rows


@dataclass(frozen=True, slots=True, eq=False)
class InfoTable:
    """`n_rows` info dictionaries as columns, in the order in which the columns were first met.

    Attributes:
        n_rows: How many dictionaries.
        columns: Their values.
        dropped_rows: By dotted path, the rows (ascending int64, some more than once) of values that nothing can store.
    """

    n_rows: int
    columns: tuple[InfoColumn, ...] = ()
    dropped_rows: Mapping[str, Array] = field(default_factory=dict)

    def __reduce__(self) -> tuple[Any, ...]:
        return InfoTable, (self.n_rows, self.columns, self.dropped_rows)

    @property
    def dropped(self) -> dict[str, int]:
        """Return how many values were dropped, by dotted path."""
        return {name: len(rows) for name, rows in self.dropped_rows.items()}

    def slice(self, start: int, stop: int) -> InfoTable:
        """Return rows `start` to `stop - 1`; columns with no value there are omitted."""
        columns = (_slice(column, start, stop) for column in self.columns)
        dropped = {}
        for name, rows in self.dropped_rows.items():
            low, high = np.searchsorted(rows, (start, stop))
            if low < high:
                dropped[name] = rows[low:high] - start
        return InfoTable(stop - start, tuple(column for column in columns if len(column.values)), dropped)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one flat dictionary a row, keys dotted; JSON values are decoded."""
        out: list[dict[str, Any]] = [{} for _ in range(self.n_rows)]
        for column in self.columns:
            key = ".".join(column.path)
            for row, value in zip(column.row_numbers().tolist(), column.values, strict=True):
                out[row][key] = json.loads(value) if column.kind == JSON else value
        return out

    def to_arrays(self) -> dict[str, Array]:
        """Return one array a dotted path, length `n_rows`.

        It is plain where every row has a value of one kind, masked where some rows lack it. A path of several kinds,
        or of text or JSON, is an object array with None where a row lacks it; so is one that would take more than
        `DENSE_BYTES` as a masked array, such as a few renderings among a million steps.
        """
        by_path: dict[str, list[InfoColumn]] = {}
        for column in self.columns:
            by_path.setdefault(".".join(column.path), []).append(column)
        return {key: self._array(columns) for key, columns in by_path.items()}

    def _array(self, columns: list[InfoColumn]) -> Array:
        first, *others = columns
        is_number = first.kind not in (JSON, STRING) and not others
        if is_number and first.rows is None:
            return first.values
        if is_number and self.n_rows * first.values[:1].nbytes <= DENSE_BYTES:
            values = all_masked((self.n_rows, *first.values.shape[1:]), first.values.dtype)
            values[first.rows] = first.values
            return values
        mixed = np.full(self.n_rows, None, dtype=object)
        for column in columns:
            for row, value in zip(column.row_numbers().tolist(), column.values, strict=True):
                mixed[row] = json.loads(value) if column.kind == JSON else value
        return mixed


def all_masked(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return an array without any value: zeros under a mask."""
    return np.ma.MaskedArray(np.zeros(shape, dtype), np.ones(shape, bool))


def _slice(column: InfoColumn, start: int, stop: int) -> InfoColumn:
    if column.rows is None:
        return InfoColumn(column.path, column.kind, None, column.values[start:stop])
    low, high = np.searchsorted(column.rows, (start, stop))
    rows = None if high - low == stop - start else column.rows[low:high] - start
    return InfoColumn(column.path, column.kind, rows, column.values[low:high])


def concatenate_tables(tables: Sequence[InfoTable]) -> InfoTable:
    """Return the rows of `tables` after one another."""
    parts: dict[tuple[InfoPath, str], list[tuple[Array, Array]]] = {}
    dropped: dict[str, list[Array]] = {}
    offset = 0
    for table in tables:
        for column in table.columns:
            parts.setdefault((column.path, column.kind), []).append((column.row_numbers() + offset, column.values))
        for key, rows in table.dropped_rows.items():
            dropped.setdefault(key, []).append(rows + offset)
        offset += table.n_rows
    columns = []
    for (path, kind), found in parts.items():
        rows, values = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
        columns.append(InfoColumn(path, kind, None if len(rows) == offset else rows, values))
    return InfoTable(offset, tuple(columns), {key: np.concatenate(rows) for key, rows in dropped.items()})


def tabulate(infos: Sequence[Mapping[Any, Any]]) -> InfoTable:
    """Turn info dictionaries, one a row, into typed columns.

    Python and numpy scalars and arrays of numbers keep their type (Python's int is int64, its float float64), text is
    `string`, nested dictionaries give longer paths, None, lists and the like become JSON, and what JSON cannot hold is
    dropped and counted; so is the second of two keys with one text, such as 1 and "1". Lone surrogates, which UTF-8
    lacks, are escaped in keys, and make a text JSON.
    """
    table = _Tabulator()
    for row, info in enumerate(infos):
        if info:
            table.add(row, (), info.items())
    return table.finish(len(infos))


class _Tabulator:
    """Collects values by (path, kind)."""

    def __init__(self) -> None:
        self._rows: dict[tuple[InfoPath, str], list[int]] = {}
        self._values: dict[tuple[InfoPath, str], list[Any]] = {}
        self._dropped: dict[str, list[int]] = {}

    def add(self, row: int, prefix: InfoPath, items: Iterable[tuple[Any, Any]]) -> None:
        for key, value in items:
            path = (*prefix, key if type(key) is str and key.isascii() else key_text(key))
            if isinstance(value, Mapping) and value and len(prefix) < MAX_NESTING:
                self.add(row, path, value.items())
                continue
            kind, stored = classify(value)
            if kind is None or not self._keep(row, (path, kind), stored):
                self._dropped.setdefault(".".join(path), []).append(row)

    def _keep(self, row: int, column: tuple[InfoPath, str], stored: Any) -> bool:
        rows = self._rows.setdefault(column, [])
        if rows and rows[-1] == row:
            return False  # Two keys with one text: the first one stays.
        rows.append(row)
        self._values.setdefault(column, []).append(stored)
        return True

    def finish(self, n_rows: int) -> InfoTable:
        columns = []
        for (path, kind), rows in self._rows.items():
            dense = len(rows) == n_rows
            values = column_values(kind, self._values[path, kind])
            columns.append(InfoColumn(path, kind, None if dense else np.array(rows, np.int64), values))
        dropped = {name: np.array(rows, np.int64) for name, rows in self._dropped.items()}
        return InfoTable(n_rows, tuple(columns), dropped)


def key_text(key: Any) -> str:
    """Return a key of an info dictionary as text that has UTF-8."""
    try:
        text = str(key)
    except Exception:  # noqa: BLE001 - a key is the user's object, and may raise anything
        text = f"<{type(key).__name__}>"
    return text.encode("utf-8", "backslashreplace").decode()


def column_values(kind: str, values: list[Any]) -> Array:
    """Return values of one kind, as `classify` gave them, as the array of a column."""
    if kind in (STRING, JSON):
        column = np.empty(len(values), dtype=object)
        column[:] = values
        return column
    dtype, shape = kind_type(kind)
    return np.array(values, dtype=dtype).reshape(len(values), *shape)


def kind_type(kind: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return dtype and shape of one value of a numeric kind: `float32[3,2]` is (float32, (3, 2))."""
    name, _, shape = kind.partition("[")
    return np.dtype(name), tuple(int(part) for part in shape.rstrip("]").split(",")) if shape else ()


_FAST_KINDS: dict[type, str] = {bool: "bool", int: "int64", float: "float64", str: STRING}
# Simulators give several of these in every step; asking numpy for a dtype's name takes longer than recording them.
_FAST_KINDS |= {np.bool_: "bool", np.int64: "int64", np.float64: "float64", np.float32: "float32", np.int32: "int32"}
_WIDEST_BYTES = 8


def classify(value: Any) -> tuple[str | None, Any]:
    """Return the kind of one info value and the value as its column stores it; (None, None) if nothing can store it."""
    kind = _FAST_KINDS.get(type(value))
    fits = -(2**63) <= value < 2**63 if kind == "int64" else kind != STRING or has_utf8(value)
    if kind is not None and fits:
        return kind, value
    try:
        if isinstance(value, np.ndarray | np.generic):
            return _classify_numpy(value)
        if hasattr(value, "__array__") and not isinstance(value, type):
            return _classify_numpy(np.asarray(value))
        return JSON, _json(value)
    except Exception:  # noqa: BLE001 - a tensor with a gradient, a device array or any other object may raise anything
        return None, None


def _classify_numpy(value: Any) -> tuple[str | None, Any]:
    if value.dtype.kind in "biuf" and value.dtype.itemsize <= _WIDEST_BYTES:
        name = value.dtype.newbyteorder("=").name
        if value.ndim == 0:
            # `[()]` takes a scalar out of what may be an environment's own buffer.
            return name, value.item() if name in ("bool", "int64", "float64") else value[()]
        if value.size:
            return f"{name}[{','.join(map(str, value.shape))}]", np.array(value)
    if value.ndim == 0 and value.dtype.kind == "U":
        return classify(str(value))
    return JSON, _json(value)


def _json(value: Any) -> str:
    return json.dumps(_plain(value), sort_keys=True, allow_nan=False)


def _plain(value: Any) -> Any:
    """Return `value` built of what JSON has; numbers that JSON lacks become the texts NaN, Infinity and -Infinity."""
    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else json.dumps(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((_plain(item) for item in value), key=repr)
    plain = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    # What Python has no number for, such as a long double, stays numpy's.
    if plain is not value and not isinstance(plain, np.generic):
        return _plain(plain)
    raise TypeError(type(value).__name__)


class InfoFilter:
    """Omits infos whose keys match one of some patterns.

    A pattern is a dotted path (`episode.t`), or a glob of one (`*_time`), and stands for all that lies below it too. It
    means the infos of steps, policies and resets alike, unless it begins with the name of one: `env_info.episode.t`.
    """

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        self.patterns = tuple(patterns)

    def __bool__(self) -> bool:
        """Return whether anything is omitted."""
        return bool(self.patterns)

    def without(self, chunk: Chunk) -> Chunk:
        """Return a chunk without these infos, whose tables count them as dropped."""
        return replace(
            chunk,
            env_infos=self._without("env_info", chunk.env_infos),
            agent_infos=self._without("agent_info", chunk.agent_infos),
            episode_infos=self._without("episode_info", chunk.episode_infos),
        )

    def _without(self, group: str, table: InfoTable) -> InfoTable:
        kept, dropped = [], dict(table.dropped_rows)
        for column in table.columns:
            name = ".".join(column.path)
            if any(_matches(pattern, group, name) for pattern in self.patterns):
                rows = [column.row_numbers(), dropped.get(name, np.zeros(0, np.int64))]
                dropped[name] = np.sort(np.concatenate(rows))
            else:
                kept.append(column)
        return table if len(kept) == len(table.columns) else InfoTable(table.n_rows, tuple(kept), dropped)

    def never_met(self, dropped: Iterable[str]) -> list[str]:
        """Return the patterns that match none of the dropped infos, by names such as `env_info.episode.t`."""
        met = [name.partition(".")[::2] for name in dropped]
        return [pattern for pattern in self.patterns if not any(_matches(pattern, *one) for one in met)]


@lru_cache(maxsize=4096)
def _matches(pattern: str, group: str, name: str) -> bool:
    wanted = (pattern, f"{pattern}.*")
    return any(fnmatchcase(text, one) for text in (name, f"{group}.{name}") for one in wanted)
