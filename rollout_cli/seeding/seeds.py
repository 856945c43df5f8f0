"""Seeds as a pure function of (root seed, episode number, stream), and the seeding of global generators."""

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
"""The replacement of the episode number for builds and updates."""


_MASK = 0xFFFFFFFFFFFFFFFF
_MIX_A = 0xBF58476D1CE4E5B9
_MIX_B = 0x94D049BB133111EB


def seed_digest(root: int, number: int | str, stream: str, *, size: int) -> bytes:
    """Return `size` bytes (at most 64), a pure function of root, number and stream."""
    return blake2b(f"{root}/{number}/{stream}".encode(), digest_size=size).digest()


def derive_seed(root: int, number: int | str, stream: str) -> int:
    """Return the 64-bit seed of a stream, such as `policy`, for an episode or `SETUP`."""
    return int.from_bytes(seed_digest(root, number, stream, size=8), "big")


def env_seed(root: int, number: int) -> int:
    """Return the seed of episode `number` for `env.reset`, in [0, 2**32).

    `numpy.random.seed`, which many environments call, accepts 32 bits. The seeds are a permutation of the
    numbers (a Feistel network of four rounds, M. Luby and C. Rackoff): episodes below 2**32 do not share
    seeds.
    """
    seed: int = _permuted(number, _round_keys(root, number >> 32))
    return seed


def env_seeds(root: int, numbers: Array) -> Array:
    """Return `env_seed` for an array of episode numbers, both int64 (N,)."""
    seeds = np.empty_like(numbers)
    epochs = numbers >> 32
    for epoch in np.unique(epochs).tolist():
        rows = epochs == epoch
        seeds[rows] = _permuted(numbers[rows].astype(np.uint64), _round_keys(root, epoch))
    return seeds


def _permuted(number: Any, keys: tuple[int, ...]) -> Any:
    """Permute the low 32 bits of an integer, or of uint64 (N,) with wrapping products."""
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
    """Return the four round keys; each epoch of 2**32 numbers has another permutation."""
    digest = seed_digest(root, epoch, "env", size=32)
    return tuple(int.from_bytes(digest[start : start + 8], "big") for start in range(0, 32, 8))


def draw_root_seed() -> int:
    """Return a random root seed from the operating system, with 32 bits, which is short enough to type."""
    return secrets.randbits(32)


Seeding = tuple[int, int | str]
"""The arguments of a call of `seed_globals`."""
_last_seeding: Seeding | None = None


def last_seeding() -> Seeding | None:
    """Return the root and number of the last `seed_globals`; each call of it makes another tuple."""
    return _last_seeding


def seed_globals(root: int, number: int | str) -> None:
    """Seed `random`, `numpy.random` and, if loaded, torch, on the CPU and initialized CUDA devices."""
    global _last_seeding  # noqa: PLW0603 - a part of the state of the global generators
    _last_seeding = (root, number)
    random.seed(derive_seed(root, number, "random"))
    np.random.seed(derive_seed(root, number, "numpy.random") >> 32)
    for generator in _torch_generators():
        generator.manual_seed(derive_seed(root, number, "torch"))


def _torch_generators() -> list[Any]:
    """Return torch's existing global generators; an empty list if torch is not loaded."""
    # `torch.manual_seed` visits all kinds of devices, which takes a hundred times as long.
    torch: Any = sys.modules.get("torch")
    default = getattr(torch, "default_generator", None)  # A user's module may also be named torch.
    if default is None:
        return []
    if not torch.cuda.is_initialized():
        return [default]
    return [default, *torch.cuda.default_generators]


def torch_has_drawn() -> bool:
    """Return True if torch's CPU generator has been used since it was seeded."""
    generators = _torch_generators()
    if not generators:
        return False
    unused = type(generators[0])().manual_seed(generators[0].initial_seed())
    return bool(generators[0].get_state().tolist() != unused.get_state().tolist())


_States = tuple[Any, Any, list[Any], Seeding | None]


def _global_states() -> _States:
    return (
        random.getstate(),
        np.random.get_state(),
        [generator.get_state() for generator in _torch_generators()],
        _last_seeding,
    )


def _put_back(states: _States) -> None:
    """Restore states; a torch generator that did not exist yet is seeded by the operating system."""
    global _last_seeding  # noqa: PLW0603 - as above
    _last_seeding = states[3]
    random.setstate(states[0])
    np.random.set_state(states[1])
    for generator, state in zip_longest(_torch_generators(), states[2]):
        if state is None:
            generator.seed()
        else:
            generator.set_state(state)


class BorrowedGenerators:
    """A context manager that uses the global generators without changing their states for the caller.

    Each entry restores the states of the last exit; each exit restores the states of the caller.
    """

    def __init__(self) -> None:
        self._own_states = self._callers_states = _global_states()

    def __enter__(self) -> None:
        self._callers_states = _global_states()
        _put_back(self._own_states)

    def __exit__(self, *_: object) -> None:
        self._own_states = _global_states()
        _put_back(self._callers_states)


class SharedGenerators:
    """The global generators for users that alternate, such as the sessions of a server: each has its own states."""

    def __init__(self) -> None:
        self._user: Any = None
        self._states: dict[Any, _States] = {}  # Of the other users.

    def use(self, user: Any) -> None:
        """Restore the states of `user`; a new user continues with the present ones until it seeds them."""
        if user is self._user:
            return
        if self._user is not None:
            self._states[self._user] = _global_states()
        self._user = user
        if user in self._states:
            _put_back(self._states.pop(user))

    def forget(self, user: Any) -> None:
        """Drop `user` and its states."""
        self._states.pop(user, None)
        if self._user is user:
            self._user = None
