"""StepBlock: what was recorded of a row is what is gathered for it, round the ring's end too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from gymnasium import spaces

from rollout_cli.buffer_pool import BufferPool
from rollout_cli.spaces import space_leaves
from rollout_cli.workers.gathering import Stretch, gather
from rollout_cli.workers.step_block import PADDED_ROWS, StepBlock
from rollout_cli.workers.step_columns import FEW_NUMBERS
from rollout_cli.workers.vector_infos import BatchColumn

Array = npt.NDArray[Any]
N_STEPS = 4
LEAVES = space_leaves(spaces.Box(-np.inf, np.inf, (2,), np.float64))
KEY = (("told",), "int64")


def recorded(n_rows: int, count: int) -> StepBlock:
    """Return a block: row r of step t has observation (t, r), reward t * n_rows + r, and an info where r > t."""
    block = StepBlock(LEAVES, n_rows=n_rows, n_steps=N_STEPS)
    rows = np.arange(n_rows)
    for step in range(count):
        if block.is_full:
            block.forget(block.oldest + 1)
        block.put_typed(0, [np.stack([np.full(n_rows, float(step)), rows], axis=1)])
        block.recorded[-1].put(block.slot, step * n_rows + rows.astype(np.float64))
        block.put_info(0, BatchColumn(KEY, rows + 0, rows > step))
        block.stepped()
    return block


@pytest.mark.parametrize("n_rows", [1, 3, PADDED_ROWS - 1, PADDED_ROWS, 1024])
@pytest.mark.parametrize("count", [3, 4, 6, 9])
def test_rows_are_gathered_as_they_were_recorded(n_rows: int, count: int) -> None:
    """The first, a middle and the last row, from the oldest step that is kept to the newest."""
    block = recorded(n_rows, count)
    rows = np.unique([0, n_rows // 2, n_rows - 1])
    kept = count - block.oldest
    counts = np.full(len(rows), kept)
    first = block.places(np.full(len(rows), block.oldest), rows)
    stretch = Stretch(block.columns, first, counts, block.pitch, np.cumsum(counts) - counts)
    columns = gather([stretch], len(rows) * kept, BufferPool().take)
    expected = np.array([(step, row) for row in rows for step in range(block.oldest, count)], np.float64)
    assert expected.tolist() == columns.leaves[0].tolist()
    assert (expected[:, 0] * n_rows + expected[:, 1]).tolist() == columns.leaves[1].tolist()
    has = expected[:, 1] > expected[:, 0]
    if has.any():
        values, told = columns.infos[0][KEY]
        assert has.tolist() == told.tolist()
        assert expected[has, 1].tolist() == values[has].tolist()


def test_steps_of_many_rows_do_not_lie_at_powers_of_two() -> None:
    """They would share a few lines of the processor's caches; few rows, whose steps do not, have no padding."""
    pitches = [StepBlock(LEAVES, n_rows=n_rows, n_steps=N_STEPS).pitch for n_rows in (4, 64, 256, 1024, 4096)]
    assert [4, 64, 264, 1032, 4104] == pitches


@pytest.mark.parametrize("n_rows", [3, PADDED_ROWS])
@pytest.mark.parametrize("count", [1, 2, FEW_NUMBERS // PADDED_ROWS, FEW_NUMBERS // PADDED_ROWS + 1])
@pytest.mark.parametrize(
    "turn", [np.ascontiguousarray, np.asfortranarray, lambda rows: np.repeat(rows, 2, axis=1)[:, ::2]]
)
def test_rows_are_recorded_however_they_lie_in_memory(n_rows: int, count: int, turn: Callable[[Array], Array]) -> None:
    """Row by row, column by column, or neither."""
    leaves = space_leaves(spaces.Box(-np.inf, np.inf, (count,), np.float32))
    block = StepBlock(leaves, n_rows=n_rows, n_steps=N_STEPS)
    steps = [np.random.default_rng(step).random((n_rows, count), np.float32) for step in range(N_STEPS)]
    for rows in steps:
        block.put_typed(0, [turn(rows)])
        block.stepped()
    recorded = block.columns.leaves[0].reshape(N_STEPS, block.pitch, count)[:, :n_rows]
    assert np.array_equal(np.stack(steps), recorded)
