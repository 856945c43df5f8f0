"""RowDraws: random numbers for the rows of a batch, each row from its own generator."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rollout_cli.policies.random import set_generator

Array = npt.NDArray[np.float64]

BLOCK_STEPS, BLOCK_NUMBERS = 32, 256
"""A generator gives numbers for many steps at once, which takes little longer than for one."""


class RowDraws:
    """Gives each of n rows its next numbers, whenever it was seeded and whatever the others do.

    Args:
        n_rows: n.
        width: How many numbers `gumbel` gives a row.
    """

    def __init__(self, n_rows: int, width: int) -> None:
        self._generators = [np.random.Generator(np.random.PCG64()) for _ in range(n_rows)]
        self._steps = max(1, min(BLOCK_STEPS, BLOCK_NUMBERS // max(1, width)))
        self._blocks = np.zeros((n_rows, self._steps, width))
        self._numbers = self._blocks.reshape(n_rows * self._steps, width)
        self._ends = (np.arange(n_rows) + 1) * self._steps
        self._next = self._ends.copy()
        self._sure = 0

    def __len__(self) -> int:
        """Return n."""
        return len(self._generators)

    def seed(self, row: int, seed: int) -> None:
        """Begin the numbers that belong to `seed` in one row."""
        set_generator(self._generators[row], seed)
        self._fill(row)

    def normal(self, shape: tuple[int, ...]) -> Array:
        """Return standard normal numbers for each row, (n, *shape)."""
        return np.stack([generator.standard_normal(shape) for generator in self._generators])

    def gumbel(self) -> Array:
        """Return numbers of the standard Gumbel distribution for each row, (n, width)."""
        if not self._sure:
            self._fill_empty()
        self._sure -= 1
        numbers = self._numbers[self._next]
        self._next += 1
        return numbers

    def _fill(self, row: int) -> None:
        block = self._blocks[row]
        self._generators[row].standard_exponential(out=block)
        np.log(block, out=block)
        np.negative(block, out=block)
        self._next[row] = row * self._steps

    def _fill_empty(self) -> None:
        """Fill the blocks that are used up, and find how often none will be."""
        for row in np.flatnonzero(self._next == self._ends).tolist():
            self._fill(row)
        self._sure = int((self._ends - self._next).min())
