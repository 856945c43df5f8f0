"""Columns of steps are kept as narrow as their values are, and what is gathered from them is what was recorded."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from rollout_cli.buffer_pool import BufferPool
from rollout_cli.spaces import space_leaves
from rollout_cli.workers.gathering import Stretch, gather
from rollout_cli.workers.leaf_columns import BadSampleError
from rollout_cli.workers.step_block import StepBlock

Array = npt.NDArray[Any]
N_ROWS, N_STEPS = 3, 4
REWARD = 1


def block_of(space: spaces.Space[Any]) -> StepBlock:
    return StepBlock(space_leaves(space), n_rows=N_ROWS, n_steps=N_STEPS)


def gathered(block: StepBlock) -> list[Array]:
    """Return the leaves of all steps that are kept, step by step, in their own types."""
    steps = np.arange(block.oldest, block.step)
    places = np.concatenate([block.places(np.full(N_ROWS, step), np.arange(N_ROWS)) for step in steps])
    ones, to = np.ones(len(places), np.int64), np.arange(len(places))
    found = gather([Stretch(block.columns, places, ones, block.pitch, to)], len(places), BufferPool().take)
    # Until somebody wants them wide, they stay as they were kept.
    assert [leaf.dtype for leaf in block.columns.leaves] == [leaf.dtype for leaf in found.leaves]
    return [leaf.astype(kind) for leaf, kind in zip(found.leaves, found.types, strict=True)]


def record(block: StepBlock, values: Any, rewards: Any) -> None:
    """Record a step."""
    if block.is_full:
        block.forget(block.oldest + 1)
    block.put_typed(0, [block.typed(0, values)])
    block.recorded[-1].put(block.slot, rewards)
    block.stepped()


SPACES: dict[str, tuple[spaces.Space[Any], str]] = {
    "two": (spaces.Discrete(2), "u1"),
    "below zero": (spaces.Discrete(5, start=-2), "i1"),
    "hundreds": (spaces.Discrete(300), "u2"),
    "hundreds below zero": (spaces.Discrete(300, start=-150), "i2"),
    "many": (spaces.Discrete(1 << 20), "u4"),
    "too many": (spaces.Discrete(1 << 40), "i8"),
    "several": (spaces.MultiDiscrete([3, 4]), "u1"),
    "a table": (spaces.MultiDiscrete(np.array([[3, 4], [7, 300]])), "u2"),
    "bits": (spaces.MultiBinary(4), "i1"),
    "a box of integers": (spaces.Box(0, 1000, (2,), np.int64), "u2"),
    "any integer": (spaces.Box(-(1 << 63), (1 << 63) - 1, (2,), np.int64), "i8"),
    "without a sign": (spaces.Box(0, 200, (2,), np.uint32), "u1"),
    "bytes": (spaces.Box(0, 255, (2,), np.uint8), "u1"),
    "floats": (spaces.Box(0, 1, (2,), np.float64), "f8"),
    "no number": (spaces.Box(0, 9, (0,), np.int64), "i8"),
}


@pytest.mark.parametrize("name", SPACES)
def test_values_of_a_space_are_kept_as_small_as_they_are(name: str) -> None:
    """They have the space's type again when they are gathered."""
    space, kept = SPACES[name]
    space.seed(3)
    block = block_of(space)
    steps = [np.stack([space.sample() for _ in range(N_ROWS)]) for _ in range(6)]
    for values in steps:
        record(block, values, np.zeros(N_ROWS))
    column = gathered(block)[0]
    assert np.dtype(kept) == block.columns.leaves[0].dtype
    assert steps[0].dtype == column.dtype
    assert np.array_equal(np.concatenate(steps[-N_STEPS:]), column)


@given(
    steps=st.lists(
        st.lists(st.sampled_from([0, 1, 255, 256, -1, 65_536, -(1 << 63), (1 << 63) - 1]), min_size=3, max_size=3),
        min_size=1,
        max_size=7,
    ),
    start=st.sampled_from([0, -1]),
)
def test_values_outside_of_their_space_are_recorded_as_they_are(steps: list[list[int]], start: int) -> None:
    """Whoever checks them must see them: one that does not fit makes room for itself, and keeps the others."""
    block = block_of(spaces.Discrete(2, start=start))
    for values in steps:
        record(block, np.array(values), np.zeros(N_ROWS))
    assert np.concatenate(steps[-N_STEPS:]).tolist() == gathered(block)[0].tolist()


ROW_TYPES = ["f2", "f4", "f8", "i1", "u1", "i2", "i4", "i8", "?", "list"]


@given(kinds=st.lists(st.sampled_from(ROW_TYPES), min_size=1, max_size=8), data=st.data())
def test_rewards_of_any_types_are_those_that_were_given(kinds: list[str], data: st.DataObject) -> None:
    """Whatever type comes first and whichever follow, bit for bit."""
    block = block_of(spaces.Discrete(2))
    steps = []
    for kind in kinds:
        if kind == "list":
            rewards: Any = data.draw(st.lists(st.floats(), min_size=3, max_size=3))
        elif kind == "?":
            rewards = np.array(data.draw(st.lists(st.booleans(), min_size=3, max_size=3)))
        elif kind.startswith("f"):
            width = 8 * int(kind[1])
            floats = st.floats(width=width)  # type: ignore[arg-type]  # One of the widths that it knows.
            rewards = np.array(data.draw(st.lists(floats, min_size=3, max_size=3)), kind)
        else:
            limits = np.iinfo(kind)
            numbers = st.integers(max(limits.min, -(1 << 53)), min(limits.max, 1 << 53))
            rewards = np.array(data.draw(st.lists(numbers, min_size=3, max_size=3)), kind)
        steps.append(np.asarray(rewards, np.float64))
        record(block, np.zeros(N_ROWS, np.int64), rewards)
    column = gathered(block)[REWARD]
    assert np.dtype("f8") == column.dtype
    assert np.concatenate(steps[-N_STEPS:]).tobytes() == column.tobytes()


@pytest.mark.parametrize(("kind", "kept"), [("f4", "f4"), ("i2", "i2"), ("f8", "f8"), ("i8", "f8"), ("?", "?")])
def test_rewards_are_kept_as_they_come(kind: str, kept: str) -> None:
    """A later one of a larger type makes room for itself."""
    block = block_of(spaces.Discrete(2))
    record(block, np.zeros(N_ROWS, np.int64), np.ones(N_ROWS, kind))
    assert np.dtype(kept) == block.columns.leaves[REWARD].dtype
    record(block, np.zeros(N_ROWS, np.int64), np.full(N_ROWS, 0.1))
    assert [1.0] * 3 + [0.1] * 3 == gathered(block)[REWARD].tolist()


def test_rewards_that_are_none_are_refused_in_any_step() -> None:
    """The type that came last is taken without a second look, and no other is."""
    block = block_of(spaces.Discrete(2))
    for bad in (np.zeros(2, np.float32), np.zeros(N_ROWS, complex), np.array([None] * 3), ["a", "b", "c"]):
        with pytest.raises(BadSampleError, match=r"expected float64\(3,\), one for each of the 3 rows"):
            block.recorded[-1].put(block.slot, bad)
        record(block, np.zeros(N_ROWS, np.int64), np.ones(N_ROWS, np.float32))
    assert [1.0] * 12 == gathered(block)[REWARD].tolist()


def test_the_step_under_way_is_told_in_the_types_of_its_space() -> None:
    """As it was recorded, before it is over."""
    block = block_of(spaces.Discrete(7))
    block.put_typed(0, [np.array([3, 0, 6])])
    values = block.recorded[0].at(block.slot)
    assert [3, 0, 6] == values.tolist()
    assert np.dtype("i8") == values.dtype
