"""Rectangles: what is copied as one is what indices would gather, and only what is one is taken for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_cli.buffer_pool import BufferPool
from rollout_cli.workers import gathering, rectangles
from rollout_cli.workers.gathering import Columns, InfoColumns, Stretch, gather
from rollout_cli.workers.vector_infos import InfoKey

Array = npt.NDArray[Any]
N_STEPS, N_ROWS, PITCH = 9, 6, 8
KEY: InfoKey = (("told",), "int64")


def bits(rng: np.random.Generator, kind: str, *shape: int) -> Array:
    """Return numbers of any bits, nan with all their payloads among them."""
    count = N_STEPS * PITCH * int(np.prod(shape, dtype=int)) * np.dtype(kind).itemsize
    return rng.integers(0, 256, count, np.uint8).view(kind).reshape(N_STEPS * PITCH, *shape)


def ring() -> Columns:
    """Return steps with rows of all sizes, texts, and infos that some have."""
    rng = np.random.default_rng(5)
    n_places = N_STEPS * PITCH
    texts = np.array([f"place {place}" for place in range(n_places)], object)
    leaves = [
        bits(rng, "f4", 4),
        bits(rng, "f8"),
        bits(rng, "u1", 2),
        bits(rng, "f8", 17),
        bits(rng, "f4", 2, 2),
        bits(rng, "i8", 0),
        bits(rng, "i2", 3),
    ]
    told: InfoColumns = {KEY: (np.arange(n_places), rng.random(n_places) < 0.5)}
    return Columns([*leaves, texts, bits(rng, "f8")], (told, {}))


def stretch_of(source: Columns, episodes: list[tuple[int, int, int]]) -> Stretch:
    """Return where (row, first step, count) lie in a ring, one after another."""
    row, first, count = (np.array(part) for part in zip(*episodes, strict=True))
    return Stretch(source, first % N_STEPS * PITCH + row, count, PITCH, np.cumsum(count) - count)


@st.composite
def groups(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Draw episodes: some neighbours that began and ended together, others that only began so, or alone."""
    out: list[tuple[int, int, int]] = []
    for _ in range(draw(st.integers(1, 4))):
        row, first, count = draw(st.integers(0, N_ROWS - 1)), draw(st.integers(0, 20)), draw(st.integers(1, N_STEPS))
        width = draw(st.integers(1, N_ROWS - row))
        ends = draw(st.sampled_from([[count], [count, count, 1], [1, N_STEPS]]))
        out += [(row + at, first, ends[at % len(ends)]) for at in range(width)]
    return out


@given(episodes=groups())
def test_rectangles_are_copied_as_they_would_be_gathered(episodes: list[tuple[int, int, int]]) -> None:
    """Every bit of every column, round the ring's end too."""
    source = ring()
    stretch = stretch_of(source, episodes)
    n_rows = int(stretch.count.sum())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rectangles, "LEAST_ROWS", 1)
        as_rectangles = gather([stretch], n_rows, BufferPool().take)
        patch.setattr(gathering, "runs", lambda first, count, stride: [(0, len(first), False)])
        by_indices = gather([stretch], n_rows, BufferPool().take)
    for one, other in zip(as_rectangles.leaves, by_indices.leaves, strict=True):
        assert other.dtype == one.dtype
        assert one.tolist() == other.tolist() if one.dtype == object else one.tobytes() == other.tobytes()
    for one, other in zip(as_rectangles.infos[0][KEY], by_indices.infos[0][KEY], strict=True):
        assert one.tolist() == other.tolist()


@given(episodes=groups(), least=st.sampled_from([1, 12, 1000]))
def test_runs_cover_all_episodes_and_rectangles_are_such(episodes: list[tuple[int, int, int]], least: int) -> None:
    """Each once, in order; the rows of a rectangle are neighbours that began and ended together."""
    stretch = stretch_of(ring(), episodes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rectangles, "LEAST_ROWS", least)
        found = list(rectangles.runs(stretch.first, stretch.count, PITCH))
    assert [0, *(stop for _, stop, _ in found[:-1])] == [start for start, _, _ in found]
    assert len(episodes) == found[-1][1]
    for start, stop, is_rectangle in found:
        if is_rectangle:
            (row, first, count), part = episodes[start], episodes[start:stop]
            assert [(row + at, first % N_STEPS, count) for at in range(len(part))] == [
                (other, step % N_STEPS, length) for other, step, length in part
            ]
            assert sum(length for _, _, length in part) >= least


def test_all_rows_of_a_time_limit_are_one_rectangle() -> None:
    """What this is for."""
    count = np.full(1024, 500)
    assert [(0, 1024, True)] == list(rectangles.runs(np.arange(1024) + 77 * 1032, count, 1032))


def test_the_last_row_of_a_step_and_the_first_of_the_next_are_no_neighbours() -> None:
    """Without padding their places follow each other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rectangles, "LEAST_ROWS", 1)
        found = list(rectangles.runs(np.arange(6) + 2, np.full(6, 3), 8))
        across = list(rectangles.runs(np.arange(10) + 3, np.full(10, 3), 8))
    assert [(0, 6, True)] == found
    assert [(0, 5, True), (5, 10, True)] == across
