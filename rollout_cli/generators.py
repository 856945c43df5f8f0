"""The random generators that a policy or environment carries, seeded for each episode.

A pickled policy with a generator of its own would explore alike in every worker, and otherwise again in each run. So
the generators among the attributes of the policy and of each wrapper of the environment are found once and seeded
before each episode, each from a stream named by its path.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from rollout_cli._generator_search import SPACE_GENERATOR, search
from rollout_cli.seeding import derive_seed, seed_digest


@dataclass(frozen=True, slots=True)
class FoundGenerator:
    """A generator, and the stream (its path) that it is seeded from.

    Attributes:
        path: The stream.
        generator: The generator.
        space: The space that draws from it, where it is a space's; None for any other.
    """

    path: str
    generator: Any
    space: gymnasium.Space[Any] | None = None

    @property
    def current(self) -> Any:
        """Return the generator, or what a space has now: seeding a space makes its generator anew."""
        return self.generator if self.space is None else _space_generator(self.space)

    def seed(self, root: int, number: int | str) -> None:
        """Put the generator into the state that belongs to (root, number, path)."""
        generator = self.generator
        if isinstance(generator, np.random.Generator):
            _seed_numpy(generator, root, number, self.path)
        elif isinstance(generator, np.random.RandomState):
            _seed_legacy_numpy(generator, derive_seed(root, number, self.path) >> 31)
        elif isinstance(generator, random.Random):
            generator.seed(derive_seed(root, number, self.path))
        else:
            generator.manual_seed(derive_seed(root, number, self.path))


def _seed_numpy(generator: np.random.Generator, root: int, number: int | str, path: str) -> None:
    bits: Any = generator.bit_generator
    if type(bits) is np.random.PCG64 or type(bits) is np.random.PCG64DXSM:
        # Its state is 128 bits and an odd increment: taken from the hash itself, a tenth of the cost of a SeedSequence.
        digest = seed_digest(root, number, path, size=32)
        state, increment = int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:], "big") | 1
        bits.state = {
            "bit_generator": type(bits).__name__,
            "state": {"state": state, "inc": increment},
            "has_uint32": 0,
            "uinteger": 0,
        }
    else:
        bits.state = type(bits)(derive_seed(root, number, path)).state


def _seed_legacy_numpy(generator: np.random.RandomState, seed: int) -> None:
    try:
        generator.seed(seed)
    except TypeError:  # It stands on another bit generator than its own MT19937, and `seed` knows no other.
        state: Any = generator.get_state(legacy=False)
        fresh: Any = np.random.RandomState(getattr(np.random, state["bit_generator"])(seed))
        generator.set_state(fresh.get_state(legacy=False))


class GeneratorSet:
    """The generators found below some named objects, kept up to date.

    Args:
        roots: Objects to look below, by the name that begins their paths (`policy`, `env`). An environment stands for
            its whole chain of wrappers.
    """

    def __init__(self, roots: dict[str, Any]) -> None:
        self._roots = roots
        self._known: dict[str, Any] = {}
        self._found: list[FoundGenerator] = []
        self._asleep: list[gymnasium.Space[Any]] = []
        self.look_again()

    @property
    def paths(self) -> list[str]:
        """Return the streams that are seeded, in order."""
        return [found.path for found in self._found]

    @property
    def found(self) -> list[FoundGenerator]:
        """Return the generators that are seeded, in the same order."""
        return list(self._found)

    def seed(self, root: int, number: int | str) -> None:
        """Seed every generator found for one episode (or for `SETUP`)."""
        for found in self._found:
            found.seed(root, number)

    def look_again(self) -> bool:
        """Search all roots once more; return whether there is a generator where there was none before."""
        before, self._known, self._asleep = self._known, {}, []
        spaces: dict[int, gymnasium.Space[Any]] = {}
        _make_env_generators(self._roots)
        for path, item in search(self._roots):
            generator = _space_generator(item) if isinstance(item, gymnasium.Space) else item
            if generator is None:
                self._asleep.append(item)
                continue
            if generator is not item:
                spaces[id(generator)] = item
            self._known[_unused(path, self._known)] = generator
        # Where `reset(seed=...)` makes the environment's generator anew, seeding the one it has is work for nothing.
        self._found = [
            FoundGenerator(path, generator, spaces.get(id(generator)))
            for path, generator in self._known.items()
            if not _made_by_reset(path, generator, before.get(path))
        ]
        return any(path not in before for path in self._known)

    def woken(self) -> bool:
        """Return whether a space that had never drawn has drawn since; it is seeded from now on.

        A space makes its generator, with a seed of its own choice, when it first draws. Most spaces never do, and
        looking costs far less than seeding them all.
        """
        for space in self._asleep:
            if _space_generator(space) is not None:
                return self.look_again()
        return False


def _space_generator(space: gymnasium.Space[Any]) -> Any:
    # gymnasium has no public way to ask whether a space has drawn without making it draw.
    return getattr(space, SPACE_GENERATOR, None)


def _unused(path: str, known: dict[str, Any]) -> str:
    """Return `path`, marked where another generator has it: the keys 1 and "1" of a dictionary read alike."""
    while path in known:
        path += "'"
    return path


def _make_env_generators(roots: dict[str, Any]) -> None:
    """Let environments make the generator that they would otherwise make lazily, from a seed that nobody knows."""
    for root in roots.values():
        if isinstance(root, gymnasium.Env):
            _ = root.unwrapped.np_random


def _made_by_reset(path: str, generator: Any, before: Any) -> bool:
    return path.endswith(f".{SPACE_GENERATOR}") and before is not None and before is not generator
