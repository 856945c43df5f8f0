"""Gathering: each row comes from where its stretch says, whatever the blocks, the order and the memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_cli.buffer_pool import BufferPool
from rollout_cli.workers import gathering
from rollout_cli.workers.gathering import BLOCK_ROWS, Columns, InfoColumns, Stretch, gather, spread

Array = npt.NDArray[Any]
ROWS = 97
KEY, OTHER = (("told",), "int64"), (("word",), "string")


def source(base: int, *, infos: bool = True) -> Columns:
    """Return rows that all differ: pairs of floats, texts, and infos that every other row has."""
    rows = base + np.arange(ROWS)
    texts = np.array([f"row {row}" for row in rows], object)
    told: InfoColumns = {KEY: (rows * 2, rows % 2 == 0)} if infos else {}
    words: InfoColumns = {OTHER: (texts, rows % 3 == 0)}
    return Columns([np.stack([rows, -rows], axis=1).astype(np.float32), texts, rows * 0.5], (told, words))


@st.composite
def plans(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Draw episodes as (source, first row, count), whose rows follow one another in what is gathered."""
    episode = st.tuples(st.integers(0, 1), st.integers(0, ROWS - 1), st.integers(1, 12))
    return draw(st.lists(episode, min_size=1, max_size=12))


@given(plan=plans(), stride=st.sampled_from([1, 5]), block=st.integers(1, 20), in_order=st.booleans())
def test_rows_are_those_that_the_stretches_name(
    plan: list[tuple[int, int, int]], stride: int, block: int, *, in_order: bool
) -> None:
    """From one source or two, told in the order of their rows or not, in blocks of any size."""
    sources = [source(0), source(1000, infos=False)]
    counts = np.array([count for _, _, count in plan])
    to = np.cumsum(counts) - counts
    stretches = []
    for at, columns in enumerate(sources):
        own = np.array([place for place, (which, _, _) in enumerate(plan) if which == at], int)
        own = own if in_order else own[::-1]
        if len(own):
            first = np.array([plan[place][1] for place in own])
            stretches.append(Stretch(columns, first, counts[own], stride, to[own]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gathering, "BLOCK_ROWS", block)
        found = gather(stretches, int(counts.sum()), BufferPool().take)
    expected = [which * 1000 + (first + stride * step) % ROWS for which, first, count in plan for step in range(count)]
    assert [[row, -row] for row in expected] == found.leaves[0].tolist()
    assert [f"row {row}" for row in expected] == found.leaves[1].tolist()
    assert [row * 0.5 for row in expected] == found.leaves[2].tolist()
    assert [np.dtype(kind) for kind in ("f4", "O", "f8")] == [leaf.dtype for leaf in found.leaves]
    _check_infos(found, expected)


def _check_infos(found: Columns, expected: list[int]) -> None:
    told, words = found.infos
    rows = [row for row in expected if row < 1000 and row % 2 == 0]
    if any(row < 1000 for row in expected):
        values, has = told[KEY]
        assert rows == [value // 2 for value in values[has].tolist()]
        assert [row < 1000 and row % 2 == 0 for row in expected] == has.tolist()
    values, has = words[OTHER]
    assert [f"row {row}" for row in expected if row % 3 == 0] == values[has].tolist()


def test_an_episode_longer_than_a_block_is_whole() -> None:
    """Blocks end between episodes."""
    n_rows = 3 * BLOCK_ROWS
    columns = Columns([np.arange(n_rows, dtype=np.int64)])
    counts = np.array([1, 2 * BLOCK_ROWS + 1, 5])
    to = np.cumsum(counts) - counts
    found = gather([Stretch(columns, np.array([7, 9, 2]), counts, 1, to)], int(counts.sum()), BufferPool().take)
    assert np.array_equal(spread(np.array([7, 9, 2]), counts), found.leaves[0])


def test_what_is_gathered_lies_in_lent_memory() -> None:
    """Once nobody holds the columns, the next ones lie there; while somebody does, they do not."""
    memory, columns = BufferPool(), source(0)
    stretch = Stretch(columns, np.array([3]), np.array([40]), 1, np.array([0]))
    held = gather([stretch], 40, memory.take)
    gather([stretch], 40, memory.take)
    free = memory.free_bytes
    assert free > 0
    again = gather([stretch], 40, memory.take)
    assert memory.free_bytes < free
    assert not np.shares_memory(again.leaves[0], held.leaves[0])
    assert held.leaves[0].tolist() == again.leaves[0].tolist()


@pytest.mark.parametrize("kinds", [("u1", "u1"), ("u1", "i8"), ("u1", "i2")])
def test_what_is_kept_narrow_stays_so_where_all_of_it_is(kinds: tuple[str, str]) -> None:
    """Two sources that keep a leaf in different types are put together in its own."""
    sources = [Columns([np.arange(5).astype(kind)], types=(np.dtype("i8"),)) for kind in kinds]
    count = np.array([3])
    stretches = [Stretch(columns, np.array([1]), count, 1, np.array([3 * at])) for at, columns in enumerate(sources)]
    found = gather(stretches, 6, BufferPool().take)
    assert [1, 2, 3] * 2 == found.leaves[0].tolist()
    assert np.dtype("u1" if kinds[1] == "u1" else "i8") == found.leaves[0].dtype
    assert (np.dtype("i8"),) == found.types
