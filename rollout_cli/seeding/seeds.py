"""Seeds: a pure function of (root seed, episode number, stream), and the global generators that get them."""

from __future__ import annotations

import random
import secrets
import sys
from functools import lru_cache
from hashlib import blake2b
from itertools import zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

SETUP = "setup"
"""Stands in place of an episode number: the seeds of every build and update."""


_MASK = 0xFFFFFFFFFFFFFFFF
_MIX_A = 0xBF58476D1CE4E5B9
_MIX_B = 0x94D049BB133111EB


def seed_digest(root: int, number: int | str, stream: str, *, size: int) -> bytes:
    """Return `size` bytes (at most 64) that are a pure function of the three."""
    return blake2b(f"{root}/{number}/{stream}".encode(), digest_size=size).digest()


def derive_seed(root: int, number: int | str, stream: str) -> int:
    """Return the seed of one stream, such as `policy`, of one episode, or of `SETUP`: 64 bits."""
    return int.from_bytes(seed_digest(root, number, stream, size=8), "big")


def env_seed(root: int, number: int) -> int:
    """Return the seed that episode `number` gives to `env.reset`, in [0, 2**32).

    `numpy.random.seed`, which many environments call, takes no more. It is a permutation of the numbers (a
    Feistel network of four rounds, M. Luby and C. Rackoff), so no two episodes below 2**32 share a seed.
    """
    seed: int = _permuted(number, _round_keys(root, number >> 32))
    return seed


def env_seeds(root: int, numbers: Array) -> Array:
    """Return `env_seed` of episode numbers, both int64 (N,)."""
    seeds = np.empty_like(numbers)
    epochs = numbers >> 32
    for epoch in np.unique(epochs).tolist():
        rows = epochs == epoch
        seeds[rows] = _permuted(numbers[rows].astype(np.uint64), _round_keys(root, epoch))
    return seeds


def _permuted(number: Any, keys: tuple[int, ...]) -> Any:
    """Permute the low 32 bits of an integer or of uint64 (N,), whose products wrap."""
    left = (number & 0xFFFFFFFF) >> 16
    right = number & 0xFFFF
    for key in keys:
        mixed = ((right ^ key) * _MIX_A) & _MASK
        mixed = ((mixed ^ (mixed >> 29)) * _MIX_B) & _MASK
        following = left ^ (mixed >> 48)
        left = right
        right = following
    return (left << 16) | right


@lru_cache(maxsize=64)
def _round_keys(root: int, epoch: int) -> tuple[int, ...]:
    """Return the four round keys; numbers of 2**32 and above are permuted anew in each epoch of 2**32."""
    digest = seed_digest(root, epoch, "env", size=32)
    return tuple(int.from_bytes(digest[start : start + 8], "big") for start in range(0, 32, 8))


def draw_root_seed() -> int:
    """Return a root seed from the operating system: 32 bits, short enough to type again."""
    return secrets.randbits(32)


def seed_globals(root: int, number: int | str) -> None:
    """Seed `random`, `numpy.random` and, if loaded, torch, on the CPU and initialised CUDA devices."""
    random.seed(derive_seed(root, number, "random"))
    np.random.seed(derive_seed(root, number, "numpy.random") >> 32)
    for generator in _torch_generators():
        generator.manual_seed(derive_seed(root, number, "torch"))


def _torch_generators() -> list[Any]:
    """Return torch's global generators that exist by now; none where torch is not loaded."""
    # `torch.manual_seed` asks every kind of device each time, which takes a hundred times as long.
    torch: Any = sys.modules.get("torch")
    default = getattr(torch, "default_generator", None)  # A module of the user's may be named torch as well.
    if default is None:
        return []
    if not torch.cuda.is_initialized():
        return [default]
    return [default, *torch.cuda.default_generators]


def torch_has_drawn() -> bool:
    """Return whether torch is loaded and its generator of the CPU has drawn since it was seeded."""
    generators = _torch_generators()
    if not generators:
        return False
    unused = type(generators[0])().manual_seed(generators[0].initial_seed())
    return bool(generators[0].get_state().tolist() != unused.get_state().tolist())


def _global_states() -> tuple[Any, Any, list[Any]]:
    return (
        random.getstate(),
        np.random.get_state(),
        [generator.get_state() for generator in _torch_generators()],
    )


def _put_back(states: tuple[Any, Any, list[Any]]) -> None:
    """Put states back; a generator of torch that did not exist yet gets a seed from the operating system."""
    random.setstate(states[0])
    np.random.set_state(states[1])
    for generator, state in zip_longest(_torch_generators(), states[2]):
        if state is None:
            generator.seed()
        else:
            generator.set_state(state)


class BorrowedGenerators:
    """The global generators, borrowed from a caller whose own states must not change.

    Each entry of `with borrowed:` puts in the states of the last exit; each exit gives the caller its own
    back.
    """

    def __init__(self) -> None:
        self._own_states = self._callers_states = _global_states()

    def __enter__(self) -> None:
        self._callers_states = _global_states()
        _put_back(self._own_states)

    def __exit__(self, *_: object) -> None:
        self._own_states = _global_states()
        _put_back(self._callers_states)
