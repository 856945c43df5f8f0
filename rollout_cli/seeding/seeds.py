"""Seeds: a pure function of (root seed, episode number, stream), and the generators that they are given to.

Python's, numpy's and torch's global generators are seeded before each build and each episode, and so are the generators
and spaces that are found among the attributes of a policy or environment (`generators.py`).
"""

from __future__ import annotations

import random
import secrets
import sys
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

SETUP = "setup"
"""In place of an episode number: the seed of every build and update."""


def seed_digest(root: int, number: int | str, stream: str, *, size: int) -> bytes:
    """Return `size` bytes (at most 64) that are a pure function of the three."""
    return blake2b(f"{root}/{number}/{stream}".encode(), digest_size=size).digest()


def derive_seed(root: int, number: int | str, stream: str) -> int:
    """Return the seed of one stream of one episode: the first 63 bits of BLAKE2b of the three.

    Args:
        root: The run's root seed, any integer of at least 0.
        number: The episode number, or `SETUP`.
        stream: What the seed is for, such as `env` or `policy.rng`.
    """
    return int.from_bytes(seed_digest(root, number, stream, size=8), "big") >> 1


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_A, _MIX_B = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)


def mix_words(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Mix 64-bit words in place, and return them: the last step of splitmix64 (G. Steele, D. Lea, C. Flood)."""
    high = np.empty_like(words)
    words ^= np.right_shift(words, _SHIFTS[0], out=high)
    words *= _MIX_A
    words ^= np.right_shift(words, _SHIFTS[1], out=high)
    words *= _MIX_B
    words ^= np.right_shift(words, _SHIFTS[2], out=high)
    return words


def spread_seeds(base: int, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return a seed of 63 bits for each number, where one hash an episode would cost more than its steps.

    Args:
        base: 63 bits, such as `derive_seed(root, SETUP, stream)` gives.
        numbers: Episode numbers, int64 (k,).
    """
    # An odd factor keeps them apart; the generators that take them mix their seeds themselves.
    words = numbers.view(np.uint64) * _GOLDEN
    words += np.uint64(base)
    words >>= np.uint64(1)
    return words.view(np.int64)


def draw_root_seed() -> int:
    """Return a root seed from the operating system, 32 bits (short enough to type again)."""
    return secrets.randbits(32)


def seed_global_generators(root: int, number: int | str) -> None:
    """Seed `random`, `numpy.random` and, where torch is loaded, torch's default generator."""
    random.seed(derive_seed(root, number, "random"))
    np.random.seed(derive_seed(root, number, "numpy.random") >> 31)
    seed_torch(root, number)


def seed_torch(root: int, number: int | str) -> None:
    """Seed torch's default generator, where torch is loaded."""
    torch = sys.modules.get("torch")
    if torch is not None:
        # torch.manual_seed also walks the CUDA and MPS devices, which takes a hundred times as long.
        torch.default_generator.manual_seed(derive_seed(root, number, "torch"))


class GlobalGenerators:
    """A copy of the states of the global generators, to put back later."""

    def __init__(self) -> None:
        self._random = random.getstate()
        self._numpy = np.random.get_state()
        torch = sys.modules.get("torch")
        self._torch: Any = None if torch is None else torch.default_generator.get_state()

    def restore(self) -> None:
        """Put the states back; torch, where it was loaded since they were taken, gets a seed from the system."""
        random.setstate(self._random)
        np.random.set_state(self._numpy)
        torch = sys.modules.get("torch")
        if self._torch is not None and torch is not None:
            torch.default_generator.set_state(self._torch)
        elif torch is not None:
            # That is what it gives itself when it is imported.
            torch.default_generator.seed()


class BorrowedGenerators:
    """The global generators, borrowed from a caller whose own states must not change.

    Code that must run in the caller's process (a local worker) runs inside `with borrowed:`; at each entry the
    borrower's states are put in, at each exit the caller's come back, whatever was raised.
    """

    def __init__(self) -> None:
        self._mine: GlobalGenerators | None = None
        self._callers: GlobalGenerators | None = None

    def __enter__(self) -> None:
        self._callers = GlobalGenerators()
        if self._mine is not None:
            self._mine.restore()

    def __exit__(self, *_: object) -> None:
        assert self._callers is not None
        self._mine = GlobalGenerators()
        self._callers.restore()
        self._callers = None
