"""RowDraws gives each row the numbers of its own seed, in whatever pieces they are made."""

from __future__ import annotations

import numpy as np
import pytest

from rollout_cli.policies.row_draws import (
    BLOCK_NUMBERS,
    BLOCK_STEPS,
    GumbelStreams,
    NormalDraws,
    RowDraws,
    gumbel_numbers,
)


def alone(seed: int, count: int, width: int) -> list[list[float]]:
    """Return what one row that was set to `seed` gives."""
    draws = RowDraws(1, GumbelStreams(width))
    draws.seed(0, seed)
    return [draws.gumbel()[0].tolist() for _ in range(count)]


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("width", [1, 3, BLOCK_NUMBERS + 1])
def test_rows_that_begin_at_other_times(width: int, prepared: bool) -> None:
    """A row has the numbers of its seed, over several blocks, whenever it was seeded and whatever the others do."""
    streams = GumbelStreams(width)
    draws = RowDraws(3, streams)
    streams.prepare([8, 9, 10] if prepared else [10, 12])
    for row, seed in enumerate((7, 8, 9)):
        draws.seed(row, seed)
    count = 3 * BLOCK_STEPS
    drawn = [draws.gumbel().copy() for _ in range(10)]
    draws.seed(1, 11)
    drawn += [draws.gumbel().copy() for _ in range(count)]
    rows = np.array(drawn).swapaxes(0, 1).tolist()
    assert [alone(7, 10 + count, width), alone(9, 10 + count, width)] == [rows[0], rows[2]]
    assert alone(8, 10, width) + alone(11, count, width) == rows[1]


def test_no_number_comes_twice() -> None:
    """Numbers differ from step to step, over several blocks, and within a step."""
    numbers = np.ravel(alone(7, 3 * BLOCK_STEPS, 2))
    assert len(numbers) == len(set(numbers.tolist()))


def test_blocks_are_one_stream() -> None:
    """The numbers of a seed are a function of seed, step and place, however long the blocks are."""
    seeds = np.array([5, 2**63 - 1])
    whole = gumbel_numbers(seeds, 0, 40, 3)
    for seed, rows in zip(seeds.tolist(), whole.tolist(), strict=True):
        assert alone(seed, 40, 3) == np.array(rows, np.float32).tolist()
        assert rows[7:19] == gumbel_numbers(np.array([seed]), 7, 12, 3)[0].tolist()


def test_what_is_prepared_in_vain_is_forgotten() -> None:
    """Blocks that nobody asks for do not heap up."""
    streams = GumbelStreams(2)
    for start in range(0, 20_000, 1_000):
        streams.prepare(range(start, start + 1_000))
    assert 6_000 > len(streams._prepared)
    assert np.array_equal(GumbelStreams(2).first(19_999), streams.first(19_999))
    assert np.array_equal(GumbelStreams(2).first(3), streams.first(3))


def test_numbers_are_independent() -> None:
    """Neighbouring seeds, steps and places have nothing to do with each other."""
    numbers = gumbel_numbers(np.arange(200), 0, 64, 2) - 0.5772
    for one, other in (
        (numbers[1:], numbers[:-1]),
        (numbers[:, 1:], numbers[:, :-1]),
        (numbers[..., 0], numbers[..., 1]),
    ):
        assert 0.0 == pytest.approx(float((one * other).mean()), abs=0.05)


def test_normal_numbers_of_a_row() -> None:
    """Each row has the normal numbers of its own generator, whatever the others do."""
    draws, one = NormalDraws(2), NormalDraws(1)
    draws.seed(0, 7)
    draws.normal((3,))
    draws.seed(1, 8)
    one.seed(0, 8)
    assert np.array_equal(one.normal((2, 3))[0], draws.normal((2, 3))[1])


def test_the_distribution() -> None:
    """Their mean is Euler's constant, their variance pi squared over six."""
    numbers = np.ravel(alone(7, 10_000, 3))
    assert 0.5772 == pytest.approx(numbers.mean(), abs=0.02)
    assert np.pi**2 / 6 == pytest.approx(numbers.var(), abs=0.05)


def test_rows_that_were_never_seeded_differ() -> None:
    """Without a seed, each row draws something else."""
    assert 4 == len(set(RowDraws(4, GumbelStreams(1)).gumbel().ravel().tolist()))
