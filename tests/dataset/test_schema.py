"""Columns: of spaces, of infos, and which of them a run decides; values come back as they were."""

from __future__ import annotations

import json
from inspect import signature
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

from rollout_cli.dataset import convert
from rollout_cli.dataset.convert import decode_infos, encode_sparse_tensor, text_array
from rollout_cli.dataset.inference import SchemaInference, choose_kind
from rollout_cli.dataset.layout import read_info
from rollout_cli.dataset.reader import load
from rollout_cli.dataset.schema import DatasetSchema, SpaceSchema, space_columns
from rollout_cli.dataset.tables import stored_form
from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.chunk import Chunk, concatenate
from rollout_cli.episodes.infos import InfoColumns, tabulate
from rollout_cli.episodes.spaces import space_from_json, space_leaves, space_to_json
from rollout_cli.errors import DatasetFormatError, StorageError, UnsupportedSpaceError
from rollout_cli.seeding.seeds import env_seed
from tests.helpers.batches import assert_same_batches
from tests.helpers.chunks import BOX_SPEC, episode, grouped
from tests.helpers.errors import raises
from tests.helpers.writing import RICH_SPEC, rich_episodes, write_dataset

ACTIONS = BOX_SPEC.action_space
BOOL: Any = np.bool_  # gymnasium's types name numbers only.

# Spaces.

Space = spaces.Space[Any]


class Mission(gymnasium.Space[str]):
    """A space of texts that is not gymnasium's own, like MiniGrid's missions."""

    def __init__(self) -> None:
        super().__init__(shape=(), dtype=str)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        return "go to the red ball"

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)


@pytest.mark.parametrize(("space", "expected"), [
    (spaces.Box(-1, 1, (), np.float32), {"o": "float"}),
    (spaces.Box(-1, 1, (3,), np.float16), {"o": "fixed_size_list<element: halffloat not null>[3]"}),
    (spaces.Box(0, 9, (2, 3), np.int16),
     {"o": "fixed_size_list<element: fixed_size_list<element: int16 not null>[3] not null>[2]"}),
    (spaces.Box(0, 255, (4, 5, 3), np.uint8), {"o": "fixed_size_binary[60]"}),
    (spaces.Box(0, 255, (4,), np.uint8), {"o": "fixed_size_list<element: uint8 not null>[4]"}),
    (spaces.Box(0, 1, (3,), BOOL), {"o": "fixed_size_list<element: bool not null>[3]"}),
    (spaces.Box(0, 1, (0, 3)), {}),
    (spaces.Discrete(5, start=-2), {"o": "int64"}),
    (spaces.MultiDiscrete([3, 4]), {"o": "fixed_size_list<element: int64 not null>[2]"}),
    (spaces.MultiBinary([2, 2]),
     {"o": "fixed_size_list<element: fixed_size_list<element: int8 not null>[2] not null>[2]"}),
    (spaces.Text(9), {"o": "string"}),
    (Mission(), {"o": "string"}),
    (spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Tuple([spaces.Discrete(2), spaces.Text(2)])}),
     {"o.a": "int64", "o.b.0": "int64", "o.b.1": "string"}),
    (spaces.Dict({"a.b": spaces.Discrete(2), "a": spaces.Dict({"b": spaces.Discrete(3)})}),
     {"o.a.b": "int64", "o.a.b#2": "int64"}),
])  # fmt: skip
def test_a_leaf_is_a_column_of_a_plain_type(space: Space, expected: dict[str, str]) -> None:
    columns = space_columns(space, "o")
    assert expected == {column.name: str(column.type) for column in columns if column.stored}
    assert [list(leaf.path) for leaf in space_leaves(space)] == [
        column.describe()["path"] for column in columns
    ]


@pytest.mark.parametrize("space", [
    spaces.Sequence(spaces.Text(2)), spaces.Box(0, 1, (2,), np.longdouble), spaces.Dict(),
    spaces.Dict({"\udc80": ACTIONS}),
])  # fmt: skip
def test_a_space_without_fixed_columns_is_refused_with_advice(space: Space) -> None:
    with pytest.raises(UnsupportedSpaceError) as caught:
        space_columns(space, "o")
    assert caught.value.hint


TYPED = [spaces.Discrete(3, dtype=np.int32)] if "dtype" in signature(spaces.Discrete).parameters else []
"""Later versions of gymnasium than 1.2.1 have such spaces."""


@pytest.mark.parametrize("space", [
    spaces.Box(-1, 1, (2, 3), np.float64), spaces.Box(-np.inf, np.inf, (2,)), spaces.Box(0, 255, (4, 4, 3), np.uint8),
    spaces.Box(np.array([0, -np.inf]), np.array([np.inf, 7]), dtype=np.float64), spaces.Box(0, 1, (0,)),
    spaces.Box(-2, 3, ()),
    spaces.Discrete(5, start=-2), *TYPED, spaces.MultiDiscrete([3, 4], start=[1, 2]),
    spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])), spaces.MultiBinary(3), spaces.MultiBinary([2, 2]),
    spaces.Text(4, min_length=2, charset="ab☃"),
    spaces.Tuple([spaces.Discrete(2), spaces.Dict({"b": ACTIONS, "a": ACTIONS})]),
])  # fmt: skip
def test_a_space_comes_back_from_json(space: Space) -> None:
    found = space_from_json(json.loads(json.dumps(space_to_json(space), allow_nan=False)))
    assert space == found
    assert space.dtype == found.dtype


@pytest.mark.skipif(not TYPED, reason="gymnasium 1.2.1 and older have no typed Discrete")
def test_a_discrete_space_of_int64_needs_no_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in gymnasium 1.2.0 and 1.2.1; one of another type needs a later one, and the dataset is sound."""

    class EarlyDiscrete(spaces.Discrete):
        def __init__(self, n: int, seed: Any = None, start: int = 0) -> None:
            super().__init__(n, seed, start)

    documents = [space_to_json(spaces.Discrete(5, start=-2, dtype=kind)) for kind in (np.int64, np.int32)]
    monkeypatch.setattr(spaces, "Discrete", EarlyDiscrete)
    assert documents[0] == space_to_json(space_from_json(documents[0]))
    with raises(DatasetFormatError, "info-features", gymnasium.__version__) as caught:
        space_from_json(documents[1])
    assert all(part in caught.value.hint for part in ("gymnasium", "meta/info.json"))
    assert "collect" not in caught.value.hint


def test_a_space_of_texts_of_its_own_comes_back_as_texts() -> None:
    document = space_to_json(Mission())
    assert document["class"].endswith("Mission")
    assert isinstance(space_from_json(document), spaces.Text)


@pytest.mark.parametrize(
    "document", [{}, {"type": "Graph"}, {"type": "Box"}, {"type": "Discrete", "n": "x"}, {"type": []}]
)
def test_json_that_describes_no_space_is_a_format_error(document: dict[str, Any]) -> None:
    with pytest.raises(DatasetFormatError):
        space_from_json(document)


def test_the_stored_form_of_episodes_is_what_a_dataset_gives(tmp_path: Path) -> None:
    chunk = concatenate(rich_episodes()[:20])
    write_dataset(tmp_path, rich_episodes(), spec=RICH_SPEC)
    found = stored_form(chunk, RICH_SPEC, read_info(tmp_path)["features"])
    assert_same_batches(load(tmp_path)[:20].to_episode_batch(), found)


# The tables.


def test_the_rows_of_both_tables_are_those_of_the_episodes(tmp_path: Path) -> None:
    """Ids, steps, flags, types and next observations of rows; facts of episodes."""
    episodes = [episode(n, 1 + n % 4) for n in (0, 1, 3, 4, 5)]
    write_dataset(tmp_path, episodes, next_observation=True)
    steps = pq.read_table(tmp_path / "data/chunk-00000/file-00000.parquet").to_pydict()
    assert [0, 1, 1, 2, 2, 2, 2, 3, 4, 4] == steps["episode_id"]
    assert [0, 0, 1, 0, 1, 2, 3, 0, 0, 1] == steps["step"]
    assert [2, 0, 3, 0, 1, 1, 2, 3, 0, 2] == steps["step_type"]
    assert [
        n % 3 != 1 and last
        for n, last in ((0, 1), (1, 0), (1, 1), (3, 0), (3, 0), (3, 0), (3, 1), (4, 1), (5, 0), (5, 1))
    ] == [bool(flag) for flag in steps["terminated"]]
    following = np.concatenate(
        [np.concatenate([e.observations[0][1:], e.last_observations[0]]) for e in episodes]
    )
    assert following.tolist() == steps["next_observation"]
    rows = pq.read_table(tmp_path / "meta/episodes/chunk-00000/file-00000.parquet").to_pydict()
    assert ([0, 1, 2, 3, 4], [0, 1, 3, 4, 5]) == (rows["episode_id"], rows["episode_number"])
    assert [env_seed(0, number) for number in (0, 1, 3, 4, 5)] == rows["seed"]
    assert [0, 1, 3, 7, 8] == rows["data_row_index"]
    assert [e.last_observations[0][0].tolist() for e in episodes] == rows["last_observation"]
    assert np.allclose([e.rewards.sum() for e in episodes], rows["return"])


def test_all_but_infos_are_never_null_and_other_tools_know_the_types(tmp_path: Path) -> None:
    write_dataset(tmp_path, rich_episodes(), spec=RICH_SPEC)
    schema = pq.read_schema(tmp_path / "data/chunk-00000/file-00000.parquet")
    assert {name for name in schema.names if schema.field(name).nullable} == {
        *(f"{group}.{key}" for group in ("env_info", "agent_info") for key in ("x", "text", "grid")),
        *("env_info_extra", "agent_info_extra"),
    }
    features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
    assert {"dtype": "float64", "_type": "Value"} == features["reward"]
    assert schema.names == list(features)
    assert b"3" == schema.metadata[b"rollout.format_version"]
    assert (
        DatasetSchema.from_info(read_info(tmp_path)).spaces.env_spec.observation_space
        == RICH_SPEC.observation_space
    )


# Which infos have columns.


@pytest.mark.parametrize(("kinds", "expected"), [
    ({}, None), ({"int64": True}, "int64"), ({"json": False}, None), ({"json": False, "bool": True}, "bool"),
    ({"int64": True, "float64": True}, "float64"), ({"int64": False, "float64": True}, None),
    ({"float32": True, "float64": True}, "float64"), ({"int8": True, "uint8": True}, "int16"),
    ({"int64": True, "uint64": True}, None), ({"bool": True, "int64": True}, None),
    ({"string": True, "int64": True}, None),
    ({"float32[2]": True, "float64[2]": True}, "float64[2]"), ({"float32[2]": True, "float32[3]": True}, None),
])  # fmt: skip
def test_values_of_several_kinds_share_the_column_that_holds_them_exactly(
    kinds: dict[str, bool], expected: str | None
) -> None:
    assert expected == choose_kind(kinds)


def infer(chunks: list[Chunk]) -> tuple[InfoColumns, bool]:
    inference = SchemaInference()
    for chunk in chunks:
        inference.hold(chunk, 0)
    return inference.result({"root_seed": 0})[0], inference.decided


def test_the_columns_depend_on_the_first_steps_alone(tmp_path: Path) -> None:
    """However the episodes came in chunks; a late key has no column."""
    episodes = list(rich_episodes())
    expected = infer(episodes)
    assert expected[1]
    keys = ("grid", "text", "x")
    assert [f"{group}_info.{key}" for group in ("env", "agent", "episode") for key in keys] == list(
        expected[0]
    )
    assert expected == infer(grouped(episodes, [7, 30]))
    assert not infer(episodes[:20])[1]


def test_columns_are_decided_at_the_end_of_the_episode_that_completes_the_steps() -> None:
    def info(number: int, step: int) -> dict[str, int]:
        return {f"key{number}": step}

    chunk = concatenate([episode(n, 400, env_info=info) for n in range(6)])
    found, _ = infer([chunk])
    assert ["key0", "key1", "key2"] == [".".join(path) for path, _ in found.values()]


def test_several_partitions_are_looked_at_in_the_order_of_their_numbers() -> None:
    """A number that was skipped holds nothing back."""

    def info(number: int, step: int) -> dict[str, int]:
        return {f"key{number}": step}

    inference = SchemaInference([0, 3])
    for number, partition in ((3, 1), (4, 1), (0, 0), (2, 0)):
        assert not inference.decided
        inference.hold(episode(number, 400, env_info=info), partition)
    assert inference.decided
    assert ["env_info.key0", "env_info.key2", "env_info.key3"] == list(inference.result({"root_seed": 0})[0])
    assert [(0, 0), (2, 0), (3, 1), (4, 1)] == [(int(c.numbers[0]), at) for c, at in inference.release()]


# The values of infos.


def encode(fields: dict[str, str], infos: list[dict[Any, Any]]) -> tuple[pa.Table, dict[str, int]]:
    columns = {f"env_info.{key}": ((key,), kind) for key, kind in fields.items()}
    arrays, dropped = convert.encode_infos("env_info", columns, [tabulate(infos)])
    return pa.Table.from_arrays(arrays, names=[*columns, "env_info_extra"]), dropped


@pytest.mark.parametrize(("kind", "value", "fits"), [
    ("float64", 3, True), ("float64", 2**53 + 1, False), ("float32", 2**24, True), ("float32", 2**24 + 1, False),
    ("float32", 0.5, True), ("float32", 0.1, False), ("float32", float("nan"), True), ("float32", 1e300, False),
    ("int64", 3.0, False), ("int64", True, False), ("float64", True, False), ("uint8", np.int64(255), True),
    ("uint8", 256, False), ("int8", np.uint64(2**63), False), ("string", "a", True), ("string", 1, False),
    ("int64", "a", False), ("float64[2]", np.ones(2, np.float32), True), ("float64[2]", np.ones(3), False),
    ("int64", None, False), ("int64", [1, 2], False),
])  # fmt: skip
def test_a_late_value_goes_into_its_column_if_it_is_exactly_of_that_type(
    kind: str, value: Any, *, fits: bool
) -> None:
    """And else into the row's JSON; it is in one of the two, and never lost."""
    table, dropped = encode({"k": kind}, [{}, {"k": value}, {}])
    assert [False, fits, False] == table["env_info.k"].is_valid().to_pylist()
    assert [False, not fits, False] == table["env_info_extra"].is_valid().to_pylist()
    assert {} == dropped
    found = decode_infos("env_info", table)["k"][1]
    expected, plain = (
        one.tolist() if isinstance(one, np.ndarray | np.generic) else one for one in (value, found)
    )
    # As texts, for nan and for numbers that JSON holds.
    assert expected == plain or str(expected) == str(plain)


def test_values_of_two_kinds_fill_one_column_in_the_order_of_their_rows() -> None:
    table, _ = encode({"k": "float64"}, [{"k": 1}, {"k": 0.5}, {}, {"k": np.float32(2)}, {"k": 3}])
    assert [1.0, 0.5, None, 2.0, 3.0] == table["env_info.k"].to_pylist()


def test_two_keys_that_are_equal_once_dotted_are_both_kept() -> None:
    """The later one in the order of their paths gets a number; written again they stay as they are."""
    table, dropped = encode({}, [{"a.b": 1, "a": {"b": 2}}, {"a.b": 3}])
    assert ['{"a.b": 2, "a.b#2": 1}', '{"a.b": 3}'] == table["env_info_extra"].to_pylist()
    assert {} == dropped
    again, _ = convert.encode_infos("env_info", {}, [convert.decode_info_table("env_info", table, {})])
    assert table["env_info_extra"].to_pylist() == again[-1].to_pylist()


def test_a_nested_value_that_does_not_fit_its_column_is_read_at_its_key() -> None:
    """It is no other key of the same name."""
    columns = {"env_info.a.b": (("a", "b"), "float64")}
    arrays, _ = convert.encode_infos("env_info", columns, [tabulate([{"a": {"b": 2.5}}, {"a": {"b": "x"}}])])
    table = pa.Table.from_arrays(arrays, names=[*columns, "env_info_extra"])
    found = convert.decode_info_table("env_info", table, columns).to_arrays()
    assert {"a.b": [2.5, "x"]} == {key: values.tolist() for key, values in found.items()}


@pytest.mark.parametrize(
    ("column", "infos"),
    [
        (("a", "b"), [{"a": {"b": 2.5}, "a.b": [1]}, {"a.b": "x"}]),
        (("a.b",), [{"a.b": 2.5, "a": {"b": [1]}}, {"a": {"b": "x"}}]),
    ],
)
def test_a_key_that_is_the_name_of_a_column_is_kept_beside_it(
    column: tuple[str, ...], infos: list[dict[Any, Any]]
) -> None:
    """It gets a number in the rows that have a value in the column of another path."""
    columns = {"env_info.a.b": (column, "float64")}
    (values, extra), dropped = convert.encode_infos("env_info", columns, [tabulate(infos)])
    assert ([2.5, None], ['{"a.b#2": [1]}', '{"a.b": "x"}']) == (values.to_pylist(), extra.to_pylist())
    assert {} == dropped


def test_values_that_nothing_stores_are_counted() -> None:
    table, dropped = encode(
        {"k": "int64"}, [{"f": print, "k": 1}, {"f": print, "nan": [float("nan"), {1, 2}]}]
    )
    assert {"env_info.f": 2} == dropped
    assert [None, '{"nan": ["nan", [1, 2]]}'] == table["env_info_extra"].to_pylist()


def test_large_infos_in_few_steps_take_memory_for_those_steps_only() -> None:
    """50 MB in 6 of 1,500 steps were 75 GB, had they been filled up."""
    infos: list[dict[Any, Any]] = [{} for _ in range(1_500)]
    for at in (0, 3, 700, 1_499):
        infos[at] = {"big": np.full((500, 1_000), at, np.uint16)}
    before = pa.total_allocated_bytes()
    table, _ = encode({"big": "uint16[500,1000]"}, infos)
    assert table.nbytes < 10 << 20
    assert pa.total_allocated_bytes() - before < 50 << 20
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    assert sink.getvalue().size < 1 << 20
    for read in (table, pq.read_table(pa.BufferReader(sink.getvalue()))):
        found = decode_infos("env_info", read)["big"]  # Filled up it would have 1.5 GB: too much.
        assert [0, 3, 700, 1_499] == [row for row, value in enumerate(found) if value is not None]
        assert (500, 1_000) == found[700].shape
        assert (found[700] == 700).all()


def test_more_text_than_a_column_holds_is_a_storage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "MOST_OFFSET", 10)
    with raises(StorageError, "column-too-large") as caught:
        text_array(["abcdef", "ghijkl"])
    assert "drop_info" in caught.value.hint


def test_a_lone_surrogate_is_stored_as_its_escape(tmp_path: Path) -> None:
    """In observations, infos and keys; the dataset says where."""

    def info(number: int, step: int) -> dict[str, str]:
        return {"t": "b\udc80", "\ud800key": "x"} if step else {}

    spec = EnvSpec(spaces.Text(3), ACTIONS)
    chunk = episode(0, 5, spec=spec, env_info=info, episode_info=info)
    chunk.observations[0][2] = "a\ud800☃"
    summary = write_dataset(tmp_path, [chunk], spec=spec)
    table = pq.read_table(tmp_path / "data/chunk-00000/file-00000.parquet")
    assert "a\\ud800☃" == table["observation"].to_pylist()[2]
    found = [(each.column, each.problem, each.episode, each.step) for each in summary.anomalies]
    assert [("observation", problem, 0, 2) for problem in ("not_unicode", "outside")] == found


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 1, 2)])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_, np.float16])
@pytest.mark.parametrize("rows", [[], [0], [2, 5], list(range(7))])
def test_sparse_tensors_come_back_from_slices_and_from_parquet(
    shape: tuple[int, ...], dtype: Any, rows: list[int]
) -> None:
    values = np.arange(len(rows) * int(np.prod(shape))).reshape(len(rows), *shape).astype(dtype)
    column = encode_sparse_tensor(values, np.array(rows, np.int64), 7)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"x": column}), sink, row_group_size=3)
    read = pq.read_table(pa.BufferReader(sink.getvalue()))["x"].combine_chunks()
    for array in (column, read):
        array.validate(full=True)
        for start, stop in ((0, 7), (1, 6), (2, 3), (5, 7)):
            inside = [at for at, row in enumerate(rows) if start <= row < stop]
            found = decode_infos(
                "e",
                pa.table(
                    {"e.x": array.slice(start, stop - start), "e_extra": pa.nulls(stop - start, pa.string())}
                ),
            )
            if not inside:
                assert {} == found
                continue
            present = [row - start for row in rows if start <= row < stop]
            assert values[inside].tolist() == np.ma.getdata(found["x"])[present].tolist()
            mask = np.ma.getmaskarray(found["x"]).reshape(stop - start, -1).all(axis=1)
            assert present == np.flatnonzero(~mask).tolist()


def test_rare_infos_count_towards_the_size_of_a_step() -> None:
    """A null takes memory too: many keys in few steps would pass any limit otherwise."""
    kinds = ["float64", "int8", "string", "float32[9]"]
    columns: InfoColumns = {f"env_info.{n}": ((f"{n}",), kind) for n, kind in enumerate(kinds)}
    of_spaces = SpaceSchema.of(BOX_SPEC)
    bare = DatasetSchema.of(of_spaces, {}, {})
    assert 8 + 1 + 4 + 4 == DatasetSchema.of(of_spaces, columns, {}).step_bytes - bare.step_bytes
