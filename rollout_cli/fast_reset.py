"""Making `env.reset(seed=...)` cheap: generators from seeds whose hashing was done for many episodes at once.

gymnasium makes a generator in every seeded reset, and most of its cost is numpy's SeedSequence hashing one seed. Here
that hash is computed for many seeds in one vectorised pass, and `gymnasium.utils.seeding.np_random` gives generators
made from it: the same generators bit for bit, which is checked when it is installed.

The algorithm is that of numpy's SeedSequence (M. E. O'Neill's seed_seq_fe, with a pool of four words).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.utils import seeding
from numpy.random.bit_generator import ISpawnableSeedSequence

Words = npt.NDArray[np.uint64]

_POOL = 4
_SHIFT = np.uint32(16)
_INIT_A, _MULT_A = 0x43B0D7E5, 0x931E8875
_INIT_B, _MULT_B = 0x8B51F9DD, 0x58F38DED
_MIX_LEFT, _MIX_RIGHT = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)
_MASK = 0xFFFFFFFF
_Column = npt.NDArray[np.uint32]


class _Hasher:
    """SeedSequence's running hash; its constant changes with every use, in the same way for all seeds."""

    def __init__(self, constant: int, multiplier: int) -> None:
        self._constant, self._multiplier = constant, multiplier

    def __call__(self, value: _Column) -> _Column:
        value = value ^ np.uint32(self._constant)
        self._constant = self._constant * self._multiplier & _MASK
        value = value * np.uint32(self._constant)
        hashed: _Column = value ^ (value >> _SHIFT)
        return hashed


def _mix(left: _Column, right: _Column) -> _Column:
    mixed = left * _MIX_LEFT - right * _MIX_RIGHT
    folded: _Column = mixed ^ (mixed >> _SHIFT)
    return folded


def seed_sequence_words(seeds: Sequence[int]) -> Words:
    """Return `SeedSequence(seed).generate_state(4, uint64)` for each seed of at most 64 bits, shape (n, 4)."""
    values = np.array(seeds, np.uint64)
    zero = np.zeros(len(values), np.uint32)
    hash_a = _Hasher(_INIT_A, _MULT_A)
    entropy = [values.astype(np.uint32), (values >> np.uint64(32)).astype(np.uint32), zero, zero]
    pool = [hash_a(word) for word in entropy]
    for source in range(_POOL):
        for target in range(_POOL):
            if source != target:
                pool[target] = _mix(pool[target], hash_a(pool[source]))
    hash_b = _Hasher(_INIT_B, _MULT_B)
    state = np.stack([hash_b(pool[at % _POOL]) for at in range(2 * _POOL)], axis=1)
    return np.ascontiguousarray(state).astype("<u4").view("<u8").astype(np.uint64)


class HashedSeed(ISpawnableSeedSequence):
    """Stands in for the SeedSequence of one seed whose words are known.

    Attributes:
        entropy: The seed.
    """

    def __init__(self, entropy: int, words: Words) -> None:
        self.entropy = entropy
        self._words = words
        self._real: np.random.SeedSequence | None = None

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Any:
        """Return the words; whatever else is asked, the real SeedSequence answers."""
        if n_words == _POOL and dtype is np.uint64:
            return self._words
        return self._sequence().generate_state(n_words, dtype)

    def spawn(self, n_children: int) -> Any:
        """Return children as the real SeedSequence has them."""
        return self._sequence().spawn(n_children)

    def __getattr__(self, name: str) -> Any:
        """Return what the real SeedSequence has beside."""
        return getattr(self._sequence(), name)

    def _sequence(self) -> np.random.SeedSequence:
        # One and the same: it counts the children it has had, so that the next ones are others.
        self._real = self._real or np.random.SeedSequence(self.entropy)
        return self._real

    def __reduce__(self) -> Any:
        """Pickle as the real SeedSequence, so that a copy needs nothing of ours."""
        return self._sequence().__reduce__()


_plain_np_random = seeding.np_random
_prepared: dict[int, Words] = {}

MOST_PREPARED = 100_000
"""Seeds that were prepared for episodes that then were not run are forgotten at this many."""


def _np_random(seed: int | None = None) -> tuple[np.random.Generator, int]:
    if seed is None or (words := _prepared.pop(seed, None)) is None:
        return _plain_np_random(seed)
    return np.random.Generator(_pcg64(seed, words)), seed


def _pcg64(seed: int, words: Words) -> np.random.PCG64:
    # numpy documents any ISeedSequence as an argument; its type stubs do not.
    sequence: Any = HashedSeed(seed, words)
    return np.random.PCG64(sequence)


def prepare_seeds(seeds: Sequence[int]) -> None:
    """Hash the seeds of the next episodes, if `install` was called; what was prepared and not used is forgotten."""
    if len(_prepared) > MOST_PREPARED:
        _prepared.clear()
    if seeding.np_random is _np_random and len(seeds) > 1:  # One seed alone is hashed faster by numpy itself.
        _prepared.update(zip(seeds, seed_sequence_words(seeds), strict=True))


def install() -> bool:
    """Let gymnasium's resets use prepared seeds in this process; return whether they do.

    They do not where a trial shows that this numpy or gymnasium makes its generators in another way.
    """
    if seeding.np_random is not _np_random and _gives_the_same():
        seeding.np_random = _np_random
    return seeding.np_random is _np_random


def _gives_the_same() -> bool:
    trials = [0, 1, 2**31, 2**32 + 5, 2**63 - 1]
    try:
        made = [_pcg64(seed, words) for seed, words in zip(trials, seed_sequence_words(trials), strict=True)]
    except TypeError:
        return False
    plain = [_plain_np_random(seed)[0].bit_generator.state for seed in trials]
    return [generator.state for generator in made] == plain


def uninstall() -> None:
    """Give gymnasium its own function back."""
    seeding.np_random = _plain_np_random
