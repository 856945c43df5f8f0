"""Finding the random generators that a policy or environment carries, and seeding them for an episode.

A pickled policy with a generator of its own would explore in every worker alike, and otherwise again in each run. So the
generators among the attributes of the policy and of each wrapper of the environment are found once and seeded before each
episode, each from a stream named by its path.
"""

from __future__ import annotations

import random
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from rollout_cli.seeding import derive_seed, seed_digest

MAX_DEPTH = 4
"""How many attributes, list items and dictionary values deep a generator is looked for."""

MAX_OBJECTS = 20_000
"""Objects looked at below one policy or environment; a replay buffer held by a policy must not cost seconds."""

Seeder = Callable[[int, int | str, str], None]


@dataclass(frozen=True, slots=True)
class FoundGenerator:
    """A generator, and the stream (its path) that it is seeded from."""

    path: str
    generator: Any

    def seed(self, root: int, number: int | str) -> None:
        """Put the generator into the state that belongs to (root, number, path)."""
        generator = self.generator
        if isinstance(generator, np.random.Generator):
            _seed_numpy(generator, root, number, self.path)
        elif isinstance(generator, np.random.RandomState):
            generator.seed(derive_seed(root, number, self.path) >> 31)
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


class GeneratorSet:
    """The generators found below some named objects, kept up to date.

    Args:
        roots: Objects to look below, by the name that begins their paths (`policy`, `env`). An environment stands for
            its whole chain of wrappers.
    """

    def __init__(self, roots: dict[str, Any]) -> None:
        self._roots = roots
        self._known: dict[str, int] = {}
        self._found: list[FoundGenerator] = []
        self._asleep: list[tuple[str, gymnasium.Space[Any]]] = []
        self.look_again()

    @property
    def paths(self) -> list[str]:
        """Return the streams that are seeded, in order."""
        return [found.path for found in self._found]

    def seed(self, root: int, number: int | str) -> None:
        """Seed every generator found for one episode (or for `SETUP`)."""
        for found in self._found:
            found.seed(root, number)

    def look_again(self) -> bool:
        """Search all roots once more; return whether there is a generator where there was none before."""
        before, self._known = self._known, {}
        self._found, self._asleep = [], []
        _make_env_generators(self._roots)
        for path, item in _walk_roots(self._roots):
            if isinstance(item, gymnasium.Space):
                self._add_space(path, item)
            else:
                self._found.append(FoundGenerator(path, item))
        self._known = {found.path: id(found.generator) for found in self._found}
        # Where `reset(seed=...)` makes the environment's generator anew, seeding the one it has is work for nothing.
        self._found = [found for found in self._found if not _made_by_reset(found, before)]
        return any(path not in before for path in self._known)

    def woken(self) -> bool:
        """Return whether a space that had never drawn has drawn since; it is seeded from now on.

        A space makes its generator, with a seed of its own choice, when it first draws. Most spaces never do, and
        looking costs far less than seeding them all.
        """
        # gymnasium has no public way to ask whether a space has drawn without making it draw.
        if not any(space._np_random is not None for _, space in self._asleep):
            return False
        return self.look_again()

    def _add_space(self, path: str, space: gymnasium.Space[Any]) -> None:
        if space._np_random is None:
            self._asleep.append((path, space))
        else:
            self._found.append(FoundGenerator(path, space._np_random))


_ENV_GENERATOR = "._np_random"


def _make_env_generators(roots: dict[str, Any]) -> None:
    """Let environments make the generator that they would otherwise make lazily, from a seed that nobody knows."""
    for root in roots.values():
        if isinstance(root, gymnasium.Env):
            _ = root.unwrapped.np_random


def _made_by_reset(found: FoundGenerator, before: dict[str, int]) -> bool:
    known = before.get(found.path)
    return found.path.endswith(_ENV_GENERATOR) and known is not None and known != id(found.generator)


def _walk_roots(roots: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    seen: set[int] = set()
    for name, root in roots.items():
        yield from _Walk(seen).below(name, root, 0)


def is_generator(item: Any) -> bool:
    """Return whether `item` is a random generator that can be seeded."""
    if isinstance(item, np.random.Generator | np.random.RandomState | random.Random):
        return not isinstance(item, random.SystemRandom)
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(item, torch.Generator)


_OPAQUE = (str, bytes, int, float, complex, bool, type(None), np.ndarray, np.generic, type, types.ModuleType)


class _Walk:
    """One search; each object is visited once, so that a cycle ends and a shared generator has one path."""

    def __init__(self, seen: set[int]) -> None:
        self._seen = seen
        # `id` is only a name while the object lives: properties may give fresh objects.
        self._alive: list[Any] = []

    def below(self, path: str, item: Any, depth: int) -> Iterator[tuple[str, Any]]:
        if isinstance(item, _OPAQUE) or id(item) in self._seen or len(self._seen) >= MAX_OBJECTS:
            return
        self._seen.add(id(item))
        self._alive.append(item)
        if is_generator(item):
            yield path, item
        elif isinstance(item, gymnasium.Space):
            yield from self._space(path, item, depth)
        elif depth < MAX_DEPTH:
            for key, child, step in _children(item):
                yield from self.below(f"{path}{key}", child, depth + step)

    def _space(self, path: str, space: gymnasium.Space[Any], depth: int) -> Iterator[tuple[str, Any]]:
        yield path, space
        for key, child, step in _children(space):
            if isinstance(child, dict | list | tuple | gymnasium.Space):
                yield from self.below(f"{path}{key}", child, depth + step)


def _children(item: Any) -> Iterator[tuple[str, Any, int]]:
    """Give (path suffix, object, depth it costs) for what `item` holds."""
    if isinstance(item, dict):
        yield from ((f".{key}", child, 1) for key, child in list(item.items()))
    elif isinstance(item, list | tuple):
        yield from ((f".{at}", child, 1) for at, child in enumerate(item))
    elif isinstance(item, types.FunctionType):
        yield from _function_children(item)
    elif isinstance(item, types.MethodType):
        yield ".__self__", item.__self__, 1
    elif hasattr(item, "__dict__"):
        for key, child in list(vars(item).items()):
            # A wrapper's inner environment starts afresh: the chain may be longer than the depth.
            wrapped = isinstance(item, gymnasium.Wrapper) and key == "env"
            yield f".{key}", child, -MAX_DEPTH if wrapped else 1


def _function_children(function: types.FunctionType) -> Iterator[tuple[str, Any, int]]:
    """A plain function carries state in its closure, its defaults, and the globals that its code names."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f".{name}", cell.cell_contents, 1
        except ValueError:
            continue  # The cell is still empty: the name is bound later.
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield f".{name}", function.__globals__[name], 1
    for at, default in enumerate(function.__defaults__ or ()):
        yield f".default{at}", default, 1
