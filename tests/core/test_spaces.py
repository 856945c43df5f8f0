"""A space as named leaves, and back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.spaces import (
    SpaceRows,
    count_rows,
    differences,
    empty_column,
    leaf_getter,
    map_tree,
    space_leaves,
    unflatten,
)
from rollout_cli.errors import UnsupportedSpaceError
from tests.helpers.errors import raises
from tests.helpers.strategies import any_space

NESTED = spaces.Dict(
    {
        "camera": spaces.Tuple((spaces.Box(0, 255, (4, 4, 3), np.uint8), spaces.Discrete(3, start=-1))),
        "joint": spaces.Dict({"angle": spaces.Box(-1, 1, (2,), np.float32), "on": spaces.MultiBinary(3)}),
        "mode": spaces.MultiDiscrete([2, 5]),
        "say": spaces.Text(5),
    }
)


def sample_of(space: gymnasium.Space[Any], seed: int = 0) -> Any:
    space.seed(seed)
    return space.sample()


def test_leaves_are_named_by_their_place() -> None:
    """Keys and positions from the root give path and dotted name, in the order of the space's own tree."""
    leaves = space_leaves(NESTED)
    paths = [("camera", 0), ("camera", 1), ("joint", "angle"), ("joint", "on"), ("mode",), ("say",)]
    assert paths == [leaf.path for leaf in leaves]
    assert ["camera.0", "camera.1", "joint.angle", "joint.on", "mode", "say"] == [
        leaf.name for leaf in leaves
    ]


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (spaces.Box(-1, 1, (2, 3), np.float32), ("box", np.float32, (2, 3), 24)),
        (spaces.Box(0, 1, (), np.float64), ("box", np.float64, (), 8)),
        (spaces.Box(0, 1, (0, 4), np.float64), ("box", np.float64, (0, 4), 0)),
        (spaces.Discrete(4, start=-2), ("discrete", np.int64, (), 8)),
        (spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])), ("multi_discrete", np.int64, (2, 2), 32)),
        (spaces.MultiDiscrete([2, 3], dtype=np.int8), ("multi_discrete", np.int8, (2,), 2)),
        (spaces.MultiBinary((2, 2)), ("multi_binary", np.int8, (2, 2), 4)),
        (spaces.Text(3), ("text", object, (), 0)),
    ],
)
def test_kinds_of_leaf(space: gymnasium.Space[Any], expected: tuple[Any, ...]) -> None:
    """Each kind has the dtype, shape and row size of its column; a space without parts has no path and no name."""
    (leaf,) = space_leaves(space)
    assert ((), "") == (leaf.path, leaf.name)
    assert expected == (leaf.kind, leaf.dtype, leaf.shape, leaf.row_bytes)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Graph(spaces.Box(-1, 1, (2,)), None),
        spaces.Sequence(spaces.Text(2)),
        spaces.Sequence(spaces.Sequence(spaces.Discrete(2))),
        spaces.Sequence(spaces.Box(-1, 1, (2, 0))),
        spaces.OneOf((spaces.Discrete(2), spaces.Box(-1, 1, (2,)))),
    ],
)
def test_spaces_without_fixed_columns_are_refused(space: gymnasium.Space[Any]) -> None:
    """The error names the kind of space and where in the tree it is."""
    with raises(UnsupportedSpaceError, "space-unsupported", type(space).__name__):
        space_leaves(space)
    with raises(UnsupportedSpaceError, "space-unsupported", type(space).__name__) as caught:
        space_leaves(spaces.Dict({"a": spaces.Tuple([space])}))
    assert "Box, Discrete" in caught.value.hint


@given(any_space())
def test_flatten_and_back(space: gymnasium.Space[Any]) -> None:
    """Any sample taken apart is one value a leaf, as the getters give them, and put together the sample again."""
    sample = sample_of(space)
    values = SpaceRows(space).columns(sample)
    shapes = [leaf.shape for leaf in space_leaves(space) if leaf.kind != "sequence"]
    assert shapes == [
        np.shape(value)
        for leaf, value in zip(space_leaves(space), values, strict=True)
        if leaf.kind != "sequence"
    ]
    assert repr(values) == repr(tuple(get(sample) for get in map(leaf_getter, space_leaves(space))))
    assert repr(sample) == repr(unflatten(space, values))


def test_map_tree_takes_trees_of_one_structure() -> None:
    """The function gets the leaves of all trees at one place; lists are leaves."""
    left: Any = {"a": (1, [2]), "b": 3}
    right: Any = {"b": 30, "a": (10, [20])}
    assert {"a": (11, [2, 20]), "b": 33} == map_tree(lambda one, other: one + other, left, right)


@given(any_space())
def test_empty_columns_have_the_leafs_type(space: gymnasium.Space[Any]) -> None:
    """Zeros of the leaf's dtype and shape; empty strings for text."""
    for leaf in space_leaves(space):
        column = empty_column(leaf, 3)
        assert ((3, *leaf.shape), leaf.dtype) == (column.shape, column.dtype)
        assert all(value == ("" if leaf.kind == "text" else 0) for value in column.ravel())


class Missions(spaces.Space[str]):
    """A space of texts that is no Text, as MiniGrid's MissionSpace."""

    def __init__(self) -> None:
        super().__init__(dtype=str)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        return f"get the {self.np_random.choice(['key', 'box'])}"

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)


def test_any_space_of_texts_is_a_text_leaf() -> None:
    """Its dtype says so; its generator is not drawn from."""
    space = Missions()
    space.seed(3)
    state = space.np_random.bit_generator.state
    assert [("text", np.dtype(object), ())] == [
        (leaf.kind, leaf.dtype, leaf.shape) for leaf in space_leaves(space)
    ]
    assert state == space.np_random.bit_generator.state


def test_specs_are_the_same_where_a_space_is_no_equal_of_its_copy() -> None:
    """As one of the environment's own, which each worker builds: `Space` itself compares nothing."""
    assert Missions() != Missions()
    first, second = (EnvSpec(Missions(), spaces.Discrete(2), 9) for _ in range(2))
    assert first == second
    assert first != replace(first, max_episode_length=8)
    assert first != replace(first, action_space=spaces.Discrete(3))


@pytest.mark.parametrize("space", [spaces.Dict({}), spaces.Tuple(()), spaces.Dict({"a": spaces.Tuple(())})])
def test_a_space_without_values_is_refused(space: gymnasium.Space[Any]) -> None:
    """Nothing could be stored."""
    with raises(UnsupportedSpaceError, "space-empty") as caught:
        space_leaves(space)
    assert caught.value.hint


def test_an_empty_part_beside_others_is_kept() -> None:
    """It has no leaf, and comes back in the tree."""
    space = spaces.Dict({"a": spaces.Tuple(()), "b": spaces.Discrete(2)})
    assert ["b"] == [leaf.name for leaf in space_leaves(space)]
    assert {"a": (), "b": 1} == unflatten(space, [1])


def test_a_key_without_utf8_is_refused() -> None:
    """No column can have the name of a lone surrogate."""
    with raises(UnsupportedSpaceError, "space-key", "UTF") as caught:
        space_leaves(spaces.Dict({"a\ud800": spaces.Discrete(2)}))
    assert caught.value.hint
    assert caught.value.message.encode()


@pytest.mark.parametrize("key", [("a", 1), 1.5, None, np.int64(1)])
def test_a_key_that_is_no_text_and_no_integer_is_refused(key: Any) -> None:
    """No reader could have it back from the dataset's JSON."""
    with raises(UnsupportedSpaceError, "space-key", type(key).__name__) as caught:
        space_leaves(spaces.Tuple([spaces.Dict([(key, spaces.Discrete(2))])]))
    assert caught.value.hint


@given(any_space(), st.integers(0, 4))
def test_stacking_and_splitting(space: gymnasium.Space[Any], n_rows: int) -> None:
    """Samples stacked are a tree of arrays with a row each; split, they are the samples, in the space's own types."""
    samples = [sample_of(space, seed) for seed in range(n_rows + 1)]
    rows = SpaceRows(space)
    tree = rows.stack(samples)
    assert n_rows + 1 == count_rows(tree)
    split = rows.split(tree)
    assert all(space.contains(one) for one in split)
    assert [plain(space, one) for one in samples] == [plain(space, one) for one in split]


def plain(space: gymnasium.Space[Any], sample: Any) -> list[Any]:
    """Return a sample's leaves as Python's own numbers, lists and texts."""
    values = SpaceRows(space).columns(sample)
    return [np.array(value).tolist() for value in values]


def test_differences_name_the_parts_of_dict_spaces() -> None:
    """Dicts of the same keys are compared by key, in any order; other spaces as a whole."""
    box, wide, bits = spaces.Box(0, 1, (2,)), spaces.Box(0, 1, (3,)), spaces.MultiBinary(3)
    first = spaces.Dict({"a": box, "b": spaces.Dict({"c": box, "d": bits})})
    second = spaces.Dict([("b", spaces.Dict({"c": wide, "d": spaces.MultiBinary((3,))})), ("a", box)])
    assert [("x 'b' 'c'", box, wide)] == [*differences("x", first, second)]
    assert [] == [*differences("x", first, first)]
    other = spaces.Dict({"a": box})
    assert [("x", first, other)] == [*differences("x", first, other)]
    pair = spaces.Tuple([box, bits])
    assert [("x", pair, box)] == [*differences("x", pair, box)]
