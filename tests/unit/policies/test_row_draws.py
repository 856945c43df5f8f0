"""RowDraws gives each row the numbers of its own generator, in whatever pieces it draws them."""

from __future__ import annotations

import numpy as np

from rollout_cli.policies.random import set_generator
from rollout_cli.policies.row_draws import BLOCK, RowDraws


def one_by_one(seed: int, count: int) -> list[float]:
    """Return what a generator that was set to `seed` gives."""
    generator = np.random.Generator(np.random.PCG64())
    set_generator(generator, seed)
    return [generator.random() for _ in range(count)]


def test_rows_that_begin_at_other_times() -> None:
    """A row has the numbers of its seed, over several blocks, whenever it was seeded and whatever the others do."""
    draws = RowDraws(3)
    for row, seed in enumerate((7, 8, 9)):
        draws.seed(row, seed)
    drawn = [draws.uniform() for _ in range(10)]
    draws.seed(1, 11)
    drawn += [draws.uniform() for _ in range(3 * BLOCK)]
    count = 10 + 3 * BLOCK
    columns = np.array(drawn).T.tolist()
    assert [one_by_one(7, count), one_by_one(9, count)] == [columns[0], columns[2]]
    assert one_by_one(8, 10) + one_by_one(11, 3 * BLOCK) == columns[1]


def test_what_was_given_may_be_edited() -> None:
    """The numbers given belong to the caller."""
    draws = RowDraws(1)
    draws.seed(0, 7)
    first = draws.uniform()
    first[:] = -1.0
    draws.seed(0, 7)
    assert one_by_one(7, 1) == draws.uniform().tolist()


def test_rows_that_were_never_seeded_differ() -> None:
    """Without a seed, each row draws something else."""
    assert 4 == len(set(RowDraws(4).uniform().tolist()))
