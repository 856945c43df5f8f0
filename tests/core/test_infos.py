"""Info dictionaries as typed columns, and back."""

from __future__ import annotations

import math
from enum import Enum
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_cli.episodes.chunk import unmatched_patterns, without_infos
from rollout_cli.episodes.infos import (
    JSON,
    MAX_NESTING,
    InfoTable,
    classify,
    concatenate_tables,
    kind_type,
    tabulate,
)
from tests.helpers.chunks import episode
from tests.helpers.contents import row_dicts
from tests.helpers.strategies import info_dicts


def contents(table: InfoTable) -> Any:
    """Return all that a table holds as plain values that compare."""
    columns = [
        (column.path, column.kind, column.row_numbers().tolist(), column.values.dtype, column.values.tolist())
        for column in table.columns
    ]
    return table.n_rows, columns, dict(table.dropped)


class Colour(Enum):
    RED = "red"


class Foreign:
    """Converts to an array, or fails to."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        if isinstance(self.value, Exception):
            raise self.value
        return np.asarray(self.value)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (True, "bool"),
        (-(2**63), "int64"),
        (2**63 - 1, "int64"),
        (2**63, JSON),
        pytest.param(10**5000, None, id="too long to print"),
        (math.nan, "float64"),
        ("text", "string"),
        (np.str_("text"), "string"),
        ("\ud800", JSON),
        (np.str_("\ud800"), JSON),
        (np.float32(0.5), "float32"),
        (np.array(0.5, np.float16), "float16"),
        (np.array(3, ">i4"), "int32"),
        (np.uint64(2**64 - 1), "uint64"),
        (np.zeros((3, 2), np.float32), "float32[3,2]"),
        (np.zeros(2, ">f8"), "float64[2]"),
        (np.zeros((0, 2)), JSON),
        (np.array(["a", "b"]), JSON),
        (np.zeros(2, np.complex128), None),
        (np.datetime64("2020-01-01"), None),
        (np.longdouble(1), None),
        (None, JSON),
        ([1, 2], JSON),
        ({3, 1}, JSON),
        ({}, JSON),
        (Foreign([1.0, 2.0]), "float64[2]"),
        (Foreign(RuntimeError("needs grad")), None),
        (Colour.RED, None),
        (b"bytes", None),
        (Foreign, None),
        ([lambda: 0], None),
    ],
)
def test_kinds(value: Any, kind: str | None) -> None:
    """Numbers, arrays of numbers and text keep their type; JSON takes what it can; the rest has no kind."""
    assert kind == classify(value)[0]


@pytest.mark.parametrize("value", [np.float32(0.1), np.array([[1, 2]], np.int8), 7, True, 0.1, "ä"])
def test_values_are_kept_exactly(value: Any) -> None:
    """What goes into a typed column comes out with the same dtype and bits."""
    (column,) = tabulate([{"x": value}]).columns
    dtype, shape = kind_type(column.kind) if column.kind != "string" else (np.dtype(object), ())
    assert (dtype, (1, *shape)) == (column.values.dtype, column.values.shape)
    assert np.array_equal(np.asarray(value, dtype), column.values[0])


@pytest.mark.parametrize(
    ("value", "decoded"),
    [
        (None, None),
        (2**70, 2**70),
        ([1, math.inf, -math.inf, math.nan], [1, "inf", "-inf", "nan"]),
        ({"b", "a"}, ["a", "b"]),
        ([{"k": (np.int8(1), np.zeros(2))}], [{"k": [1, [0.0, 0.0]]}]),
        ("\ud800", "\ud800"),
        (np.array(["a"]), ["a"]),
        (np.ma.masked, None),
        (np.ma.array([1.0, 2.0], mask=[False, True]), [1.0, None]),
        ({}, {}),
    ],
)
def test_json_values(value: Any, decoded: Any) -> None:
    """JSON values come back decoded; numbers that JSON lacks are texts, sets are sorted, and so are keys."""
    assert [{"x": decoded}] == row_dicts(tabulate([{"x": value}]))
    assert classify([{"b": value, "a": 1}]) == classify([{"a": 1, "b": value}])


def test_nested_dictionaries_give_paths() -> None:
    """Keys become texts, nested ones longer paths; columns stand in the order in which they were first met."""
    table = tabulate([{"b": {"c": 1, 2: {"d": 2}}, "a": 3}, {"e": 4}])
    assert [("b", "c"), ("b", "2", "d"), ("a",), ("e",)] == [column.path for column in table.columns]
    assert [{"b.c": 1, "b.2.d": 2, "a": 3}, {"e": 4}] == row_dicts(table)


def test_a_changing_type_gives_two_columns() -> None:
    """Nothing is cast: each type at a path has its own column with its own rows."""
    table = tabulate([{"x": 1}, {"x": "one"}, {"x": 2}, {}])
    assert (
        4,
        [(("x",), "int64", [0, 2], np.int64, [1, 2]), (("x",), "string", [1], object, ["one"])],
        {},
    ) == contents(table)


@pytest.mark.parametrize(
    ("values", "kinds"),
    [
        ([1, 2], ["int64"]),
        ([np.float32(1), np.float32(2)], ["float32"]),
        ([True, False], ["bool"]),
        ([1, 2**70], ["int64", "json"]),
        ([1, 2.0], ["int64", "float64"]),
        (["a", "b"], ["string"]),
    ],
)
def test_infos_under_the_same_keys_are_those_of_single_rows(values: list[Any], kinds: list[str]) -> None:
    """Whether every row has the keys or not, the columns have the same kinds and values."""
    infos = [{"key": value, "other": 0.5} for value in values]
    table, sparse = tabulate(infos), tabulate([*infos, {}])
    assert kinds == [column.kind for column in table.columns if column.path == ("key",)]
    assert row_dicts(sparse)[:-1] == row_dicts(table)
    assert [(column.path, column.kind) for column in sparse.columns] == [
        (c.path, c.kind) for c in table.columns
    ]


def test_values_that_are_dropped_are_counted() -> None:
    """Those that nothing can store, and the second of two keys with one text, by their dotted paths."""
    table = tabulate([{"f": len, "x": 1}, {"g": {"h": open}}, {"f": len, 1: 10, "1": 20}])
    assert {"f": 2, "g.h": 1, "1": 1} == table.dropped
    assert [{"x": 1}, {}, {"1": 10}] == row_dicts(table)
    assert [{"f": 1}, {"g.h": 1}, {"f": 1, "1": 1}] == [table.slice(at, at + 1).dropped for at in range(3)]
    assert {"f": 4, "g.h": 2, "1": 2} == concatenate_tables([table, table]).dropped


def test_a_dictionary_that_holds_itself_ends() -> None:
    """Endless nesting is left out and counted; what stands beside it is kept."""
    endless: dict[str, Any] = {"x": 1}
    endless["self"] = endless
    table = tabulate([endless])
    assert 1 == sum(table.dropped.values())
    assert MAX_NESTING + 1 == len(table.columns)
    assert 1 == row_dicts(table)[0]["x"]


def test_an_array_that_is_written_to_later() -> None:
    """The table holds values of its own, also of arrays of no dimensions."""
    vector, scalar = np.zeros(2), np.array(0.5, np.float32)
    kind_and_values = classify(vector), classify(scalar)
    vector[:], scalar[...] = 9, 9
    assert [("float64[2]", [0.0, 0.0]), ("float32", 0.5)] == [(k, v.tolist()) for k, v in kind_and_values]


@given(info_dicts(), st.data())
def test_slices_and_joins_are_those_of_the_list(infos: list[dict[str, Any]], data: st.DataObject) -> None:
    """tabulate(list)[a:b] equals tabulate(list[a:b]), and cutting a table up and joining it gives the table."""
    table = tabulate(infos)
    start = data.draw(st.integers(0, len(infos)))
    stop = data.draw(st.integers(start, len(infos)))
    assert _unordered(tabulate(infos[start:stop])) == _unordered(table.slice(start, stop))
    pieces = [table.slice(0, start), table.slice(start, stop), table.slice(stop, len(infos))]
    assert contents(table) == contents(concatenate_tables(pieces))
    assert contents(table) == contents(concatenate_tables([tabulate(infos[:start]), tabulate(infos[start:])]))


def _unordered(table: InfoTable) -> Any:
    n_rows, columns, dropped = contents(table)
    return n_rows, sorted(columns, key=repr), dropped


def test_arrays() -> None:
    """Full columns are plain arrays, sparse ones masked, and mixed types, text and JSON are objects with None."""
    infos = [
        {"full": 1, "some": np.float32(2), "mix": 1, "text": "a", "v": np.ones(2), "list": [1]},
        {"full": 2, "mix": "b", "v": np.zeros(2)},
        {"full": 3, "some": np.float32(4)},
    ]
    arrays = tabulate(infos).to_arrays()
    assert ("int64", [1, 2, 3]) == (arrays["full"].dtype.name, arrays["full"].tolist())
    assert type(arrays["full"]) is np.ndarray
    assert ("float32", [2, None, 4]) == (arrays["some"].dtype.name, arrays["some"].tolist())
    assert [[1, 1], [0, 0], [None, None]] == arrays["v"].tolist()
    assert [[1, "b", None], ["a", None, None], [[1], None, None]] == [
        arrays[k].tolist() for k in ("mix", "text", "list")
    ]


@given(info_dicts())
def test_arrays_hold_what_the_dictionaries_hold(infos: list[dict[str, Any]]) -> None:
    """Each value is found in its path's array at its row; rows that lack one are masked or None."""
    table = tabulate(infos)
    arrays = {key: values.tolist() for key, values in table.to_arrays().items()}
    for row, found in enumerate(row_dicts(table)):
        for key, values in arrays.items():
            assert repr(np.array(found.get(key)).tolist()) == repr(np.array(_none(values[row])).tolist())


def _none(value: Any) -> Any:
    # A masked row of a vector is a list of None.
    return None if isinstance(value, list) and value and all(item is None for item in value) else value


# -- infos that are not recorded ------------------------------------------------------------------------------------

INFO = {"episode": {"t": 0.5, "r": 1.0}, "step_time": 2, "bad": lambda: None, "plain": 3}


def names(*patterns: str) -> list[str]:
    """Return the env infos that are left with these patterns."""
    chunk = without_infos(episode(0, 2, env_info=lambda _, __: INFO), patterns)
    return sorted(".".join(column.path) for column in chunk.env_infos.columns)


ALL = ["episode.r", "episode.t", "plain", "step_time"]


@pytest.mark.parametrize(
    ("pattern", "left"),
    [
        ("episode.t", ["episode.r", "plain", "step_time"]),
        ("episode", ["plain", "step_time"]),
        ("episode.*", ["plain", "step_time"]),
        ("*t*", ["episode.r", "plain"]),
        ("env_info.plain", ["episode.r", "episode.t", "step_time"]),
        ("agent_info.plain", ALL),
        ("epi", ALL),
        ("EPISODE", ALL),
        ("t", ALL),
    ],
)
def test_patterns(pattern: str, left: list[str]) -> None:
    """A dotted path or a glob of it, and all below; the name of a group may stand before it."""
    assert left == names(pattern)


def test_all_three_groups_are_filtered_and_counted() -> None:
    """A name means infos of steps, policies and resets; what was left out is counted by its path."""
    chunk = episode(
        0, 3, env_info=lambda _, __: INFO, agent_info=lambda _, __: INFO, episode_info=lambda _, __: INFO
    )
    kept = without_infos(chunk, ("plain",))
    tables = (kept.env_infos, kept.agent_infos, kept.episode_infos)
    assert [{"bad": n, "plain": n} for n in (3, 3, 1)] == [dict(table.dropped) for table in tables]
    assert all(("plain",) != column.path for table in tables for column in table.columns)
    assert chunk.env_infos is without_infos(chunk, ("nothing",)).env_infos


def test_patterns_that_matched_nothing() -> None:
    """They are found from the names that something was dropped of."""
    dropped = ["env_info.episode.t", "agent_info.p"]
    patterns = ("episode", "p", "env_info.p", "x")
    assert ["env_info.p", "x"] == unmatched_patterns(patterns, dropped)


# -- faults ---------------------------------------------------------------------------------------------------------


class Rude:
    """Raises wherever it is asked for anything."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__array"):
            raise RuntimeError(name)
        raise AttributeError(name)


@pytest.mark.parametrize(
    ("key", "stored"),
    [("a\ud800", "a\\ud800"), ("", ""), (None, "None"), (5, "5"), ((1, 2), "(1, 2)"), (Rude(), "<Rude>")],
)
def test_any_key_has_a_text_that_files_can_hold(key: Any, stored: str) -> None:
    """Lone surrogates are escaped, at any depth; a key without a text has its class's name."""
    table = tabulate([{key: 1, "deep": {key: 2}, "json": [{key: 3}]}])
    assert [(stored,), ("deep", stored), ("json",)][: len(table.columns)] == [
        column.path for column in table.columns
    ]
    assert all(".".join(column.path).encode() for column in table.columns if column.path != ("",))


@pytest.mark.parametrize("value", [Rude(), [Rude()], {"x": Rude()}], ids=["object", "list", "dict"])
def test_values_that_raise_are_dropped_and_counted(value: Any) -> None:
    """No info value ends a run."""
    table = tabulate([{"good": 1, "bad": value}])
    assert ([{"good": 1}], 1) == (row_dicts(table), sum(table.dropped.values()))


def test_few_large_values_among_many_steps_are_not_filled_up() -> None:
    """A masked array of 2 GB would be nearly all mask: the values stay as objects, None elsewhere."""
    large = np.ones((1024, 1024), np.uint8)
    table = tabulate([{"image": large, "n": 1}] + [{}] * 2_047)
    arrays = table.to_arrays()
    assert ("object", "int64") == (arrays["image"].dtype.name, arrays["n"].dtype.name)
    assert [True] + [False] * 2_047 == [value is not None for value in arrays["image"]]
    assert np.array_equal(large, arrays["image"][0])
