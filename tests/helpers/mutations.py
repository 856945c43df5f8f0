"""Seeded damage to a dataset of every kind: any field of its JSON files, any column of its tables, any byte."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import gymnasium
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from gymnasium import spaces

from tests.helpers.breaks import data_files, episode_files
from tests.helpers.damage import INFO, STATS

DEEP = "a document nested thousands deep"
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 3, 10**30, 1.5, float("nan"), "", "x", "interrupted", "../x", "\x1b"),
    *([], [1], ["x"], [None], [[0, 1]], {}, {"a": 1}, {"spec": 1}, {"status": []}, [{}], [{"a": None}]),
)
"""Values that stand in the place of others."""


class World(gymnasium.Env[Any, Any]):
    """Episodes of three to eight steps with spaces and infos of all sorts; `render` shows a picture."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 9}  # noqa: RUF012 - gymnasium reads it of the class
    observation_space = spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (4, 5, 3), np.uint8),
            "at": spaces.Tuple((spaces.Discrete(5), spaces.Box(-1, 1, (2, 3), np.float32))),
            "word": spaces.Text(6, charset="abcdef"),
        }
    )
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, *, render_mode: str | None = None, size: int = 3) -> None:
        self.render_mode, self._size = render_mode, size

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        self._left = int(self.np_random.integers(3, 9))
        return self.observation_space.sample(), {"level": self._left}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._left -= 1
        if self._left == 5 and self.np_random.random() < 0.1:
            raise ValueError("a fault that --on-env-error skip leaves out")
        if self._left == 4 and self.np_random.random() < 0.1:
            action = action * np.nan
        info = {
            "dropped": lambda: 1,
            "left": self._left,
            "grid": np.full((2, 2), self._left / 2),
            "odd": [1, None],
            "say": "hi",
        }
        return self.observation_space.sample(), float(action.sum()), self._left == 0, self._left == 0, info

    def render(self) -> Any:
        return np.zeros((6, 6, 3), np.uint8)


@dataclass(frozen=True, slots=True)
class Mutation:
    """What was done to a file of a dataset."""

    file: str
    what: str

    def __str__(self) -> str:
        return f"{self.file}: {self.what}"


def mutate(root: Path, random: Random, kind: str | None = None) -> Mutation:
    """Damage one file of the dataset in `root`, in a way that the generator chooses."""
    kind = kind or random.choice(
        ["info", "info", "info", "stats", "episodes", "episodes", "data", "data", "bytes"]
    )
    if kind in ("info", "stats"):
        file = root / (INFO if kind == "info" else STATS)
        what = _mutate_json(file, random)
    elif kind == "bytes":
        files = [root / INFO, root / STATS, *episode_files(root), *data_files(root)]
        file = random.choice(files)
        what = _mutate_bytes(file, random)
    else:
        file = random.choice((data_files if kind == "data" else episode_files)(root))
        what = _mutate_table(file, random)
    return Mutation(file.relative_to(root).as_posix(), what)


def _places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value of a JSON document but itself."""
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in items:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from _places(value, (*path, key))


def _mutate_json(file: Path, random: Random) -> str:
    document = json.loads(file.read_text())
    places = [*_places(document)]
    # Half of them near the top: there are hundreds of values in `features` and `collector`.
    depth = random.choice([1, 2, 3, 4, 9])
    *parents, key = random.choice([place for place in places if len(place) <= depth])
    parent = document
    for each in parents:
        parent = parent[each]
    where = ".".join(map(str, [*parents, key]))
    action = random.choice(["replace"] * 6 + ["delete", "rename", "deep", "whole"])
    if action == "delete":
        del parent[key]
    elif action == "rename" and isinstance(parent, dict):
        parent["other"] = parent.pop(key)
    elif action == "deep":
        parent[key] = DEEP
    elif action == "whole":
        document, where = random.choice(ODD), "all of it"
    else:
        parent[key] = random.choice(ODD)
        action = f"replace by {parent[key]!r}"
    deep = random.choice(["[", '{"a": '])
    n_levels = random.choice([900, 5_000, 100_000])
    deep = deep * n_levels + ("" if random.random() < 0.3 else "1" + ("]" if deep == "[" else "}") * n_levels)
    file.write_text(json.dumps(document).replace(json.dumps(DEEP), deep))
    return f"{action} {where}"


def _mutate_bytes(file: Path, random: Random) -> str:
    content = bytearray(file.read_bytes())
    at = random.randrange(len(content))
    action = random.choice(["flip", "flip", "flip", "truncate", "zeros", "append", "empty", "text"])
    if action == "flip":
        content[at] ^= 1 << random.randrange(8)
    elif action == "truncate":
        del content[at:]
    elif action == "zeros":
        content[at : at + 64] = bytes(len(content[at : at + 64]))
    elif action == "append":
        content += random.randbytes(20)
    else:
        content = bytearray(b"" if action == "empty" else b"PAR1" + random.randbytes(50) + b"PAR1")
    file.write_bytes(bytes(content))
    return f"{action} at {at}"


_STRUCT = pa.struct([("a", pa.int64())])
ODD_COLUMNS: dict[str, Callable[[int], pa.Array]] = {
    "strings": lambda n: pa.array([f"{row % 3}" for row in range(n)]),
    "large strings": lambda n: pa.array([f"{row % 3}" for row in range(n)], pa.large_string()),
    "bytes": lambda n: pa.array([b"x"] * n),
    "words": lambda n: pa.array(["a"] * n).dictionary_encode(),
    "int8": lambda n: pa.array([row % 3 for row in range(n)], pa.int8()),
    "int64": lambda n: pa.array([*range(n)]),
    "uint64": lambda n: pa.array([(1 << 64) - 1] * n, pa.uint64()),
    "float32": lambda n: pa.array([row / 3 for row in range(n)], pa.float32()),
    "float64": lambda n: pa.array([row / 3 for row in range(n)]),
    "decimals": lambda n: pa.array([1.5] * n).cast(pa.decimal128(9, 2)),
    "bools": lambda n: pa.array([row % 2 == 0 for row in range(n)]),
    "times": lambda n: pa.array([*range(n)], pa.timestamp("us")),
    "nothing": pa.nulls,
    "structs": lambda n: pa.array([{"a": 1}] * n, _STRUCT),
    "lists": lambda n: pa.array([[row] * (row % 3) for row in range(n)], pa.list_(pa.int64())),
    "large lists": lambda n: pa.array([["x"]] * n, pa.large_list(pa.string())),
    "pairs": lambda n: pa.array([[1.0, row] for row in range(n)], pa.list_(pa.float32(), 2)),
    "empty JSON": lambda n: pa.array(["{}"] * n),
    "other JSON": lambda n: pa.array(["[1]"] * n),
    "no JSON": lambda n: pa.array(["{"] * n),
    "deep JSON": lambda n: pa.array(['{"a":' * 3000] * n),
}
"""Columns of n rows that stand in the place of another one."""


def _with_values(table: pa.Table, at: int, values: list[Any]) -> pa.Table:
    field = table.schema.field(at)
    return table.set_column(at, pa.field(field.name, field.type), pa.array(values, field.type))


def _null(table: pa.Table, at: int, random: Random) -> pa.Table:
    values = table[at].to_pylist()
    values[random.randrange(len(values))] = None
    return _with_values(table, at, values)


def _odd(table: pa.Table, at: int, random: Random) -> pa.Table:
    name = random.choice([*ODD_COLUMNS])
    return table.set_column(at, table.schema.field(at).name, ODD_COLUMNS[name](len(table)))


def _shuffled(table: pa.Table, at: int, random: Random) -> pa.Table:
    values, field = table[at].to_pylist(), table.schema.field(at)
    return table.set_column(at, field, pa.array(random.sample(values, len(values)), field.type))


def _odd_number(table: pa.Table, at: int, random: Random) -> pa.Table:
    """Return a table with another number in one row of a column of numbers; others are shuffled."""
    field, values = table.schema.field(at), table[at].to_pylist()
    if not pa.types.is_integer(field.type):
        return _shuffled(table, at, random)
    values[random.randrange(len(values))] = random.choice([0, 1, 2, 100])
    return table.set_column(at, field, pa.array(values, field.type))


CHANGES: dict[str, Callable[[pa.Table, int, Random], pa.Table]] = {
    "a null in": _null,
    "nulls in": lambda table, at, random: _with_values(table, at, [None] * len(table)),
    "another type of": _odd,
    "a type of": _odd,
    "no": lambda table, at, random: table.remove_column(at),
    "other order than": lambda table, at, random: table.select(
        random.sample(table.column_names, table.num_columns)
    ),
    "twice": lambda table, at, random: table.append_column(table.schema.field(at), table[at]),
    "fewer rows of": lambda table, at, random: table.slice(random.randrange(2), max(1, len(table) // 2)),
    "no rows of": lambda table, at, random: table.slice(0, 0),
    "reversed rows of": lambda table, at, random: table.take(list(range(len(table)))[::-1]),
    "shuffled": _shuffled,
    "an odd number in": _odd_number,
}


def _mutate_table(file: Path, random: Random) -> str:
    table = pq.ParquetFile(file).read()
    keys = dict(pq.ParquetFile(file).metadata.metadata)
    keys.pop(b"ARROW:schema", None)
    at, action = random.randrange(table.num_columns), random.choice([*CHANGES])
    changed = CHANGES[action](table, at, random)
    try:
        pq.write_table(changed.replace_schema_metadata(keys), file, write_page_checksum=True)
    except pa.ArrowNotImplementedError:  # An older pyarrow cannot write some types.
        action = "no rows of"
        pq.write_table(table.slice(0, 0).replace_schema_metadata(keys), file, write_page_checksum=True)
    return f"{action} {table.schema.names[at]}"


def zeros(episode: Any) -> Any:
    """Return rewards for `relabel`."""
    return np.zeros(len(episode))
