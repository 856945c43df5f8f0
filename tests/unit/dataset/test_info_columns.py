"""Infos as typed columns with a JSON remainder."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rollout_cli.dataset.info_columns import decode_infos, encode_infos, info_fields
from rollout_cli.dataset.window import InfoField
from rollout_cli.infos import tabulate

X = InfoField(("x",), "float64")


def encoded(fields: list[InfoField], *infos: dict[Any, Any]) -> list[dict[str, Any]]:
    columns, _ = encode_infos("env_info", fields, [tabulate(infos)])
    rows: list[dict[str, Any]] = pa.Table.from_arrays(columns, schema=pa.schema(info_fields("i", fields))).to_pylist()
    return rows


@pytest.mark.parametrize(
    ("kind", "value", "column", "extra"),
    [
        ("float64", 1.5, 1.5, None),
        ("float64", 2, 2.0, None),
        ("float64", 2**53 + 1, None, '{"x": 9007199254740993}'),
        ("float64", 2**63 - 1, None, '{"x": 9223372036854775807}'),
        ("float64", np.uint64(2**64 - 1), None, '{"x": 18446744073709551615}'),
        ("float64", np.float32(0.1), float(np.float32(0.1)), None),
        ("float64", True, None, '{"x": true}'),
        ("float64", "t", None, '{"x": "t"}'),
        ("float64", None, None, '{"x": null}'),
        ("float64", [1, {"a": 2}], None, '{"x": [1, {"a": 2}]}'),
        ("float64", np.array([1.0, math.nan]), None, '{"x": [1.0, "NaN"]}'),
        ("float32", 0.5, 0.5, None),
        ("float32", 0.1, None, '{"x": 0.1}'),
        ("float32", 1e300, None, '{"x": 1e+300}'),
        ("float32", math.inf, math.inf, None),
        ("int32", 7, 7, None),
        ("int32", 2**40, None, '{"x": 1099511627776}'),
        ("int64", 1.0, None, '{"x": 1.0}'),
        ("uint8", -1, None, '{"x": -1}'),
        ("bool", 1, None, '{"x": 1}'),
        ("string", "t", "t", None),
        ("string", 1, None, '{"x": 1}'),
        ("float32[2]", np.array([1, 2]), [1.0, 2.0], None),
        ("float32[2]", np.array([0.5, 0.1]), None, '{"x": [0.5, 0.1]}'),
        ("float32[2]", np.zeros(3), None, '{"x": [0.0, 0.0, 0.0]}'),
    ],
)
def test_a_value_is_in_its_column_only_if_it_is_exactly_of_its_type(
    kind: str, value: Any, column: Any, extra: str | None
) -> None:
    """Anything else is kept in the remainder; nothing is rounded."""
    assert [{"i.x": column, "i_extra": extra}] == encoded([InfoField(("x",), kind)], {"x": value})


def test_each_value_is_decided_by_itself() -> None:
    """A row's place does not depend on its neighbours."""
    rows = encoded([X], {"x": 1}, {"x": "t"}, {}, {"x": 2**53 + 1}, {"x": 2.5})
    assert [1.0, None, None, None, 2.5] == [row["i.x"] for row in rows]
    assert [None, '{"x": "t"}', None, '{"x": 9007199254740993}', None] == [row["i_extra"] for row in rows]


def test_keys_without_a_column_are_sorted_in_the_remainder() -> None:
    """Nested keys are dotted, whatever order they were met in."""
    assert ['{"a.b": 3, "a.c": 4}'] == [row["i_extra"] for row in encoded([], {"a": {"c": 4}, "a.b": 3})]
    assert ['{"a": 1, "b.c": 2}', None] == [row["i_extra"] for row in encoded([], {"b": {"c": 2}, "a": 1}, {})]


def test_two_keys_that_read_alike_are_not_lost_silently() -> None:
    """The second finds no place, and is counted."""
    columns, lost = encode_infos("env_info", [], [tabulate([{"a.b": 1, "a": {"b": 2}}])])
    assert ['{"a.b": 2}'] == columns[-1].to_pylist()
    assert {"env_info.a.b": 1} == lost


def test_infos_come_back_as_arrays() -> None:
    """As `InfoTable.to_arrays` gives them: plain, masked, objects."""
    infos: list[dict[str, Any]] = [
        {"all": 1, "some": np.float32(2), "vec": np.array([1, 2], np.int16), "text": "t", "odd": [1], "mix": 1},
        {"all": 3, "vec": np.array([3, 4], np.int16), "mix": "m"},
        {"all": 5, "some": np.float32(6)},
    ]
    fields = [InfoField((key,), kind) for key, kind in KINDS.items()]
    table = tabulate(infos)
    columns, _ = encode_infos("i", fields, [table])
    actual = decode_infos("i", pa.Table.from_arrays(columns, schema=pa.schema(info_fields("i", fields))))
    expected = table.to_arrays()
    assert sorted(expected) == list(actual)
    for key, values in expected.items():
        assert values.dtype == actual[key].dtype, key
        assert values.shape == actual[key].shape, key
        assert values.tolist() == actual[key].tolist(), key
    assert isinstance(actual["some"], np.ma.MaskedArray)
    assert not isinstance(actual["all"], np.ma.MaskedArray)


KINDS = {"all": "int64", "some": "float32", "vec": "int16[2]", "text": "string", "mix": "int64", "never": "bool"}


def test_the_columns_do_not_depend_on_how_rows_were_joined() -> None:
    """The order in which columns were first met differs between one table and three."""
    infos: list[dict[str, Any]] = [{"b": 1}, {"a.b": 1, "x": "t"}, {"a": {"b": 2}, "b": 3, "x": 1.0}]
    one = encode_infos("i", [X], [tabulate(infos)])
    many = encode_infos("i", [X], [tabulate([info]) for info in infos])
    assert [column.to_pylist() for column in one[0]] == [column.to_pylist() for column in many[0]]


def test_values_that_nothing_could_store_are_counted_with_those_without_a_place() -> None:
    """Over all tables, by column."""
    tables = [tabulate([{"f": print, "a.b": 1, "a": {"b": 2}}]), tabulate([{"f": print, "a": {"b": print}}])]
    assert {"i.a.b": 2, "i.f": 2} == encode_infos("i", [], tables)[1]
