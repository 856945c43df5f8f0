"""SpaceRecorder: rows in their space's types, and private to whoever gets them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from rollout_cli.spaces import space_leaves, tree_leaves
from rollout_cli.workers.leaf_columns import BadSampleError
from rollout_cli.workers.space_recorder import SpaceRecorder
from tests.support.envs import ALL_SPACE_ENVS

BOX = spaces.Box(-10, 10, (2,), np.float32)


def taken(recorder: SpaceRecorder) -> tuple[Any, ...]:
    """Return all rows as columns."""
    return recorder.join([recorder.cut()])


@pytest.mark.parametrize("env", ALL_SPACE_ENVS)
def test_every_space_gives_its_rows_back(env: type[Any]) -> None:
    """Columns have each leaf's dtype and shape and hold what was recorded; what `record` returns is the sample."""
    space = env().observation_space
    space.seed(3)
    recorder = SpaceRecorder(space)
    samples = [space.sample() for _ in range(9)]
    for sample in samples:
        returned = recorder.record(sample)
        assert all(np.array_equal(*pair) for pair in zip(tree_leaves(sample), tree_leaves(returned), strict=True))
    columns = taken(recorder)
    for at, (leaf, column) in enumerate(zip(space_leaves(space), columns, strict=True)):
        assert (leaf.dtype, (9, *leaf.shape)) == (column.dtype, column.shape)
        assert all(np.array_equal(tree_leaves(sample)[at], row) for sample, row in zip(samples, column, strict=True))


def test_a_reused_buffer_changes_nothing() -> None:
    """What an environment writes into its array later reaches neither the rows nor what the policy was given."""
    recorder = SpaceRecorder(BOX)
    buffer = np.zeros(2, np.float32)
    returned = recorder.record(buffer)
    buffer[:] = 5
    assert ([0, 0], [[0, 0]]) == (returned.tolist(), taken(recorder)[0].tolist())


def test_an_edit_of_what_was_returned_changes_nothing() -> None:
    """What a policy does to its observation reaches neither the rows nor the environment's own array."""
    recorder = SpaceRecorder(BOX)
    buffer = np.zeros(2, np.float32)
    recorder.record(buffer)[:] = 5
    assert ([0, 0], [[0, 0]]) == (buffer.tolist(), taken(recorder)[0].tolist())


@pytest.mark.parametrize("space", [spaces.Dict({"a": BOX, "b": BOX}), spaces.Tuple((BOX, BOX))])
def test_leaves_of_a_tree_are_private_too(space: spaces.Space[Any]) -> None:
    """Each leaf of a Dict or Tuple is copied."""
    recorder = SpaceRecorder(space)
    buffer = np.zeros(2, np.float32)
    sample = {"a": buffer, "b": buffer} if isinstance(space, spaces.Dict) else (buffer, buffer)
    for leaf in tree_leaves(recorder.record(sample)):
        leaf[:] = 5
    buffer[:] = 7
    assert [[[0, 0]], [[0, 0]]] == [column.tolist() for column in taken(recorder)]


def test_a_zero_d_array_for_a_discrete_space_is_a_value() -> None:
    """An array of no dimensions may be reused like any other one: its number is taken at once."""
    recorder = SpaceRecorder(spaces.Discrete(9))
    buffer = np.array(3)
    returned = recorder.record(buffer)
    buffer[...] = 8
    assert (3, [3]) == (returned, taken(recorder)[0].tolist())


def test_what_a_comparison_gives_is_an_action() -> None:
    """`observation[0] > 0` is numpy's bool, which no Discrete space contains: the environment gets the integer."""
    recorder = SpaceRecorder(spaces.Discrete(2))
    assert (True, np.int64) == (recorder.keep(np.float32(1) > 0) == 1, type(recorder.keep(np.True_)))


@pytest.mark.parametrize("space", [spaces.Discrete(3, start=-1), spaces.Discrete(3, dtype=np.int32), BOX])
def test_the_table_of_numbers_gives_what_keep_gives(space: spaces.Space[Any]) -> None:
    """For a Discrete it holds its values in its own type, and makes of any other integer what it would be."""
    recorder = SpaceRecorder(space)
    numbers = [-1, 0, 1, 7] if isinstance(space, spaces.Discrete) else []
    expected = [recorder.keep(number) for number in numbers]
    actual = [recorder.numbers[number] for number in numbers]
    assert [(type(value), value) for value in expected] == [(type(value), value) for value in actual]
    assert bool(recorder.numbers) == isinstance(space, spaces.Discrete)


def test_actions_are_not_copied_but_their_rows_are() -> None:
    """What was kept is given back as it came; the row is taken before."""
    recorder = SpaceRecorder(BOX)
    action = np.ones(2, np.float32)
    returned = recorder.keep(action)
    returned[:] = 5
    assert returned is action
    assert [[1, 1]] == taken(recorder)[0].tolist()


@pytest.mark.parametrize("lengths", [[3, 1, 4], [700, 1, 700], [1, 2000]])
def test_big_rows_are_kept_whatever_block_they_lie_in(lengths: list[int]) -> None:
    """Episodes that end and go on within blocks, and across them, hold their own rows; what was cut stays as it is."""
    space = spaces.Box(0, 255, (256, 256), np.uint8)
    recorder = SpaceRecorder(space)
    cuts = []
    for episode, length in enumerate(lengths):
        for step in range(length):
            recorder.record(np.full(space.shape, (episode + step) % 251, np.uint8))
        cuts.append(recorder.cut())
    (column,) = recorder.join(cuts)
    expected = [(episode + step) % 251 for episode, length in enumerate(lengths) for step in range(length)]
    assert (sum(lengths), 256, 256) == column.shape
    assert expected == column[:, 7, 9].tolist() == column[:, -1, -1].tolist()


@pytest.mark.parametrize("held", [True, False])
def test_blocks_are_used_again_once_nobody_holds_them(held: bool) -> None:
    """Rows that somebody holds stay as they are; else the same two blocks serve any number of episodes."""
    space = spaces.Box(0, 255, (1024, 1024), np.uint8)
    recorder = SpaceRecorder(space)
    columns, blocks = [], set()
    for episode in range(20):
        for _ in range(10):
            recorder.record(np.full(space.shape, episode, np.uint8))
        column = taken(recorder)[0]
        blocks.add(column.base.ctypes.data if column.base is not None else 0)
        if held:
            columns.append(column[:, 3, 3])
        del column
    assert [[episode] * 10 for episode in range(20)] == [column.tolist() for column in columns] or not held
    assert (len(blocks) > 2) == held


def test_big_rows_are_private() -> None:
    """A big observation is copied for the policy as a small one is; one that is kept is not copied."""
    recorder = SpaceRecorder(spaces.Box(0, 255, (64, 64), np.uint8))
    buffer = np.zeros((64, 64), np.uint8)
    recorder.record(buffer)[:] = 5
    assert recorder.keep(buffer) is buffer
    buffer[:] = 7
    assert 0 == taken(recorder)[0].max()


def test_a_big_row_of_another_shape_is_refused() -> None:
    """It names both sides, as for small rows."""
    recorder = SpaceRecorder(spaces.Box(0, 255, (64, 64), np.uint8))
    with pytest.raises(BadSampleError, match=r"got uint8\(64, 65\), expected uint8\(64, 64\)"):
        recorder.record(np.zeros((64, 65), np.uint8))


CASTS = [
    (BOX, [1, 2], [1.0, 2.0]),
    (BOX, np.array([1.5, 2.5]), [1.5, 2.5]),
    (spaces.Box(0, 9, (), np.float32), 3, 3.0),
    (spaces.Box(0, 9, (), np.float32), np.float64(2.5), 2.5),
    (spaces.Discrete(5), np.int32(4), 4),
    (spaces.Discrete(2), np.True_, 1),
    (spaces.MultiBinary(2), np.array([1, 0], np.int64), [1, 0]),
    (spaces.Text(5), np.str_("abc"), "abc"),
]


@pytest.mark.parametrize(("space", "value", "expected"), CASTS, ids=repr)
def test_values_of_a_like_kind_are_cast(space: spaces.Space[Any], value: Any, expected: Any) -> None:
    """What means the same in the space's own type is recorded in it."""
    recorder = SpaceRecorder(space)
    recorder.record(value)
    (column,) = taken(recorder)
    assert (space_leaves(space)[0].dtype, expected) == (
        column.dtype,
        column[0].tolist() if column.ndim > 1 else column[0],
    )


REFUSED = [
    (BOX, np.zeros(3, np.float32), r"got float32\(3,\), expected float32\(2,\) of Box"),
    (spaces.Box(0, 9, (2,), np.int64), np.array([0.5, 1.0]), r"got float64\(2,\), expected int64\(2,\)"),
    (BOX, np.array([1j, 2j]), r"got complex128\(2,\), expected float32\(2,\)"),
    (BOX, [[1], [2, 3]], r"got list \[\[1\], \[2, 3\]\], expected float32\(2,\)"),
    (BOX, None, r"got NoneType None, expected float32\(2,\)"),
    (spaces.Discrete(5), 2.5, r"got float 2.5, expected int64\(\) of Discrete"),
    (spaces.Discrete(5), np.array([1, 2]), r"got int64\(2,\), expected int64\(\)"),
    (spaces.Text(5), b"abc", r"got bytes b'abc', expected object\(\) of Text"),
    (spaces.Dict({"a": spaces.Dict({"b": BOX})}), {"a": {"b": 1}}, r"got int 1 at 'a.b', expected float32\(2,\)"),
    (spaces.Dict({"a": BOX}), {"c": 1}, r"it lacks KeyError\('a'\): got \{'c': 1\}, expected a sample of Dict"),
    (spaces.Tuple((BOX, BOX)), (np.zeros(2),), r"it lacks IndexError"),
    (spaces.Dict({"a": BOX}), 5, r"it lacks TypeError"),
]


@pytest.mark.parametrize(("space", "value", "message"), REFUSED, ids=repr)
def test_a_sample_of_another_type_is_refused(space: spaces.Space[Any], value: Any, message: str) -> None:
    """The message prints both sides, and where in the tree."""
    with pytest.raises(BadSampleError, match=message):
        SpaceRecorder(space).record(value)


@given(parts=st.lists(st.integers(0, 5), min_size=1, max_size=6))
def test_cuts_join_to_what_was_recorded(parts: list[int]) -> None:
    """What is cut episode by episode is joined to one column in the order of the cuts; the recorder begins anew."""
    recorder = SpaceRecorder(spaces.Dict({"a": spaces.Discrete(100), "b": spaces.Box(0, 99, (1,), np.int64)}))
    values = iter(range(100))
    cuts = []
    for size in parts:
        for value in (next(values) for _ in range(size)):
            recorder.record({"a": value, "b": np.array([value])})
        cuts.append(recorder.cut())
    discrete, box = recorder.join(cuts)
    assert list(range(sum(parts))) == discrete.tolist() == box[:, 0].tolist()


def test_rows_that_were_taken_can_be_written_to() -> None:
    """Columns belong to whoever gets them."""
    recorder = SpaceRecorder(BOX)
    recorder.record(np.zeros(2, np.float32))
    (column,) = taken(recorder)
    column += 1
    assert [[1, 1]] == column.tolist()


def test_a_box_without_elements_has_rows_all_the_same() -> None:
    """A zero in the shape leaves nothing to keep but the number of rows."""
    recorder = SpaceRecorder(spaces.Box(0, 1, (0, 3), np.float32))
    for _ in range(4):
        recorder.record(np.zeros((0, 3), np.float32))
    assert (4, 0, 3) == taken(recorder)[0].shape


def test_non_contiguous_samples_are_recorded_as_they_read() -> None:
    """A transposed or strided array is recorded in its own reading order."""
    space = spaces.Box(0, 99, (3, 2), np.int64)
    recorder = SpaceRecorder(space)
    sample = np.arange(6).reshape(2, 3).T
    recorder.record(sample)
    assert sample.tolist() == taken(recorder)[0][0].tolist()
