"""RowDraws gives each row the numbers of its own generator, in whatever pieces it draws them."""

from __future__ import annotations

import numpy as np
import pytest

from rollout_cli.policies.row_draws import BLOCK_NUMBERS, BLOCK_STEPS, RowDraws


def alone(seed: int, count: int, width: int) -> list[list[float]]:
    """Return what one row that was set to `seed` gives."""
    draws = RowDraws(1, width)
    draws.seed(0, seed)
    return [draws.gumbel()[0].tolist() for _ in range(count)]


@pytest.mark.parametrize("width", [1, 3, BLOCK_NUMBERS + 1])
def test_rows_that_begin_at_other_times(width: int) -> None:
    """A row has the numbers of its seed, over several blocks, whenever it was seeded and whatever the others do."""
    draws = RowDraws(3, width)
    for row, seed in enumerate((7, 8, 9)):
        draws.seed(row, seed)
    count = 3 * BLOCK_STEPS
    drawn = [draws.gumbel() for _ in range(10)]
    draws.seed(1, 11)
    drawn += [draws.gumbel() for _ in range(count)]
    rows = np.array(drawn).swapaxes(0, 1).tolist()
    assert [alone(7, 10 + count, width), alone(9, 10 + count, width)] == [rows[0], rows[2]]
    assert alone(8, 10, width) + alone(11, count, width) == rows[1]


def test_no_number_comes_twice() -> None:
    """Numbers differ from step to step, over several blocks, and within a step."""
    numbers = np.ravel(alone(7, 3 * BLOCK_STEPS, 2))
    assert len(numbers) == len(set(numbers.tolist()))


def test_what_was_given_may_be_edited() -> None:
    """The numbers given belong to the caller."""
    draws = RowDraws(1, 2)
    draws.seed(0, 7)
    draws.gumbel()[:] = -1.0
    draws.gumbel()[:] = -1.0
    draws.seed(0, 7)
    assert alone(7, 2, 2) == [draws.gumbel()[0].tolist() for _ in range(2)]


def test_the_distribution() -> None:
    """Their mean is Euler's constant, their variance pi squared over six."""
    numbers = np.ravel(alone(7, 10_000, 3))
    assert 0.5772 == pytest.approx(numbers.mean(), abs=0.02)
    assert np.pi**2 / 6 == pytest.approx(numbers.var(), abs=0.05)


def test_rows_that_were_never_seeded_differ() -> None:
    """Without a seed, each row draws something else."""
    assert 4 == len(set(RowDraws(4, 1).gumbel().ravel().tolist()))
