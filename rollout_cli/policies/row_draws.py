"""Random numbers for the rows of a batch: each row has those of its own seed, whenever it began."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rollout_cli.policies.counted_draws import stream_keys
from rollout_cli.policies.random import set_generator
from rollout_cli.seeding import draw_root_seed, mix_words

Array = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.float32]

BLOCK_STEPS, BLOCK_NUMBERS = 64, 256
"""Numbers are made for many steps at once, which takes little longer than for one."""

_LATER_NUMBERS = 1024
"""An episode that outlasts its first block probably needs several more."""

_MOST_PREPARED = 4_096
"""Blocks that were prepared for episodes that then were not run are forgotten at this many."""

_UNUSED_BITS = np.uint64(12)
_UNIT = 2.0**-52


def gumbel_numbers(seeds: npt.NDArray[np.int64], first: int, steps: int, width: int) -> Array:
    """Return independent numbers of the standard Gumbel distribution: a pure function of seed, step and place.

    Args:
        seeds: One a row, int64 (k,).
        first: The first step.
        steps: How many steps.
        width: How many numbers a step.

    Returns:
        (k, steps, width).
    """
    keys, gammas = stream_keys(seeds)
    counters = np.arange(first * width, (first + steps) * width, dtype=np.uint64)
    words = mix_words(keys[:, None] + gammas[:, None] * counters)
    words >>= _UNUSED_BITS
    # In the middle of an interval of 52 bits, so that neither 0 nor 1 comes, whose logarithms would be no use.
    numbers: Array = words.astype(np.float64)
    numbers += 0.5
    numbers *= _UNIT
    for _ in range(2):
        np.log(numbers, out=numbers)
        np.negative(numbers, out=numbers)
    return numbers.reshape(len(seeds), steps, width)


class GumbelStreams:
    """Gives the Gumbel numbers of seeds in blocks of steps.

    Attributes:
        steps: The steps of a block.
        width: How many numbers a step.

    Args:
        width: How many numbers a step.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self.steps = max(1, min(BLOCK_STEPS, BLOCK_NUMBERS // max(1, width)))
        self._prepared: dict[int, Array] = {}

    def prepare(self, seeds: Sequence[int]) -> None:
        """Make the first blocks of some seeds in one pass."""
        if len(self._prepared) > _MOST_PREPARED:
            self._prepared.clear()
        blocks = gumbel_numbers(np.array(seeds, np.int64), 0, self.steps, self.width)
        self._prepared.update(zip(seeds, blocks, strict=True))

    def first(self, seed: int) -> Array:
        """Return a seed's first block, (steps, width)."""
        block = self._prepared.pop(seed, None)
        return self._made(seed, 0, 1)[0] if block is None else block

    def later(self, seed: int, block: int) -> list[Array]:
        """Return some blocks of a seed from a certain one on, (steps, width) each."""
        return self._made(seed, block, max(1, _LATER_NUMBERS // (self.steps * max(1, self.width))))

    def _made(self, seed: int, block: int, count: int) -> list[Array]:
        made = gumbel_numbers(np.array([seed], np.int64), block * self.steps, count * self.steps, self.width)
        return list(made.reshape(count, self.steps, self.width))


class RowDraws:
    """Gives each of n rows its next Gumbel numbers.

    They lie in a ring of steps, into which each row's blocks are written from the step on in which it needs them: so a
    step takes all rows' numbers as they lie there.

    Args:
        n_rows: n.
        streams: Where the numbers come from.
    """

    def __init__(self, n_rows: int, streams: GumbelStreams) -> None:
        self._streams = streams
        # Of the type that logits mostly have: to add numbers of two types takes three times as long.
        self._ring = np.zeros((streams.steps, n_rows, streams.width), np.float32)
        self._seeds = [draw_root_seed() for _ in range(n_rows)]
        self._waiting: list[list[Array]] = [[] for _ in range(n_rows)]
        self._made = [0] * n_rows
        self._ends = [0] * n_rows
        self._step = self._first_end = 0

    def __len__(self) -> int:
        """Return n."""
        return len(self._seeds)

    def seed(self, row: int, seed: int) -> None:
        """Begin the numbers that belong to `seed` in one row."""
        self._seeds[row], self._made[row], self._waiting[row] = seed, 1, []
        self._write(row, self._streams.first(seed))

    def gumbel(self) -> Numbers:
        """Return independent numbers of the standard Gumbel distribution for each row, (n, width).

        They are the caller's to read until the next call.
        """
        if self._step >= self._first_end:
            self._fill_empty()
        numbers: Numbers = self._ring[self._step % len(self._ring)]
        self._step += 1
        return numbers

    def _fill_empty(self) -> None:
        """Write on where a row's block is used up, and find when that will be next."""
        for row, end in enumerate(self._ends):
            if end <= self._step:
                self._write(row, self._next_block(row))
        self._first_end = min(self._ends)

    def _next_block(self, row: int) -> Array:
        if not self._waiting[row]:
            blocks = self._streams.later(self._seeds[row], self._made[row])
            self._made[row] += len(blocks)
            self._waiting[row] = blocks[::-1]
        return self._waiting[row].pop()

    def _write(self, row: int, block: Array) -> None:
        ring = self._ring[:, row]
        at = self._step % len(ring)
        ring[at:] = block[: len(block) - at]
        ring[:at] = block[len(block) - at :]
        self._ends[row] = self._step + len(block)


class NormalDraws:
    """Gives each of n rows normal numbers from a generator of its own.

    Args:
        n_rows: n.
    """

    def __init__(self, n_rows: int) -> None:
        self._generators = [np.random.Generator(np.random.PCG64()) for _ in range(n_rows)]

    def __len__(self) -> int:
        """Return n."""
        return len(self._generators)

    def seed(self, row: int, seed: int) -> None:
        """Begin the numbers that belong to `seed` in one row."""
        set_generator(self._generators[row], seed)

    def normal(self, shape: tuple[int, ...]) -> Array:
        """Return standard normal numbers for each row, (n, *shape)."""
        return np.stack([generator.standard_normal(shape) for generator in self._generators])
