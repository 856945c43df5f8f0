"""RowDraws: random numbers for the rows of a batch, each row from its own generator."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rollout_cli.policies.random import set_generator

Array = npt.NDArray[np.float64]

BLOCK = 64
"""A generator gives so many numbers at once, which takes little longer than one."""


class RowDraws:
    """Gives each of n rows its next numbers.

    Args:
        n_rows: n.
    """

    def __init__(self, n_rows: int) -> None:
        self._generators = [np.random.Generator(np.random.PCG64()) for _ in range(n_rows)]
        self._blocks = np.zeros((n_rows, BLOCK))
        self._numbers = self._blocks.ravel()
        self._ends = (np.arange(n_rows) + 1) * BLOCK
        self._next = self._ends.copy()
        self._sure = 0

    def seed(self, row: int, seed: int) -> None:
        """Begin the numbers that belong to `seed` in one row."""
        set_generator(self._generators[row], seed)
        self._fill(row)

    def __len__(self) -> int:
        """Return n."""
        return len(self._generators)

    def normal(self, shape: tuple[int, ...]) -> Array:
        """Return standard normal numbers for each row, (n, *shape)."""
        return np.stack([generator.standard_normal(shape) for generator in self._generators])

    def uniform(self) -> Array:
        """Return one number of [0, 1) for each row, (n,)."""
        if not self._sure:
            self._fill_empty()
        self._sure -= 1
        numbers = self._numbers[self._next]
        self._next += 1
        return numbers

    def _fill(self, row: int) -> None:
        self._generators[row].random(out=self._blocks[row])
        self._next[row] = row * BLOCK

    def _fill_empty(self) -> None:
        """Fill the blocks that are used up, and find how often none will be."""
        for row in np.flatnonzero(self._next == self._ends).tolist():
            self._fill(row)
        self._sure = int((self._ends - self._next).min())
