"""EpisodeSeeder: puts every random generator that a policy or environment may draw from into an episode's own state.

A pickled policy with a generator of its own would otherwise explore alike in every worker.
"""

from __future__ import annotations

import contextlib
import gc
import random
import sys
import types
from collections import deque
from collections.abc import Iterator
from typing import Any, cast

import gymnasium
import numpy as np

from rollout_cli.seeding.seeds import derive_seed, seed_digest, seed_globals

MAX_OBJECTS = 20_000
"""Objects looked at below one policy or environment: a replay buffer that a policy holds must not cost seconds."""


class EpisodeSeeder:
    """Seeds the global generators, and those found in one policy and one environment."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._watched: dict[str, _Watched] = {}

    def watch(self, *, policy: Any = None, env: Any = None) -> None:
        """Search for generators, after a build, an update or the first reset; those found before keep their streams.

        A policy or environment takes the place of the one watched before; None leaves that one. A generator that both
        hold counts as the environment's. Nothing is drawn, called or changed, except that a space or environment makes
        the generator that it would otherwise make at its first draw.
        """
        for name, root in (("env", env), ("policy", policy)):
            known = self._watched.get(name)
            if root is not None and (known is None or known.root is not root):
                self._watched[name] = _Watched(root)
        seen: dict[int, Any] = {}
        for name in ("env", "policy"):
            if name in self._watched:
                self._watched[name].look(seen)

    def begin(self, number: int | str) -> None:
        """Seed the global generators, then the policy's, then the environment's, for one episode (or `SETUP`)."""
        seed_globals(self._root, number)
        self.seed_found(number)

    def seed_found(self, number: int | str) -> None:
        """Seed the policy's generators, then the environment's, and leave the global ones."""
        for name, stream, holder in self._streams():
            # The user's own class may refuse a seed, or its space; the end-of-run check shows the difference.
            with contextlib.suppress(Exception):
                _seed(_generator_of(holder), self._root, number, f"{name}.{stream}")

    @property
    def generators(self) -> list[Any]:
        """Return the generators that are seeded beside the global ones, those of spaces among them."""
        return [_generator_of(holder) for _, _, holder in self._streams()]

    def _streams(self) -> Iterator[tuple[str, str, Any]]:
        for name in ("policy", "env"):
            if name in self._watched:
                for stream, holder in self._watched[name].streams():
                    yield name, stream, holder


class _Watched:
    """One object, and the generators found below it.

    Those that came after the first search (an environment may make one at its first reset) have names of their own,
    since whether a worker has met them must not change the others' streams.
    """

    def __init__(self, root: Any) -> None:
        self.root = root
        self._first: list[Any] | None = None
        self._late: list[Any] = []

    def look(self, seen: dict[int, Any]) -> None:
        found = _holders(_search(self.root, seen))
        if self._first is None:
            self._first = found
        first = {id(holder) for holder in self._first}
        self._late = [holder for holder in found if id(holder) not in first]

    def streams(self) -> Iterator[tuple[str, Any]]:
        yield from ((str(at), holder) for at, holder in enumerate(self._first or ()))
        yield from ((f"late.{at}", holder) for at, holder in enumerate(self._late))


def _holders(found: list[Any]) -> list[Any]:
    """Return the generators found, and in place of those that spaces and environments make anew, their holders."""
    holders, made = [], set()
    for item in found:
        if not _is_kind(item, _HOLDERS):
            holders.append(item)
            continue
        # A property of the user's own class may raise anything.
        with contextlib.suppress(Exception):
            made.add(id(item.np_random))
            holders.append(item)
    return [item for item in holders if id(item) not in made]


_HOLDERS = (gymnasium.Space, gymnasium.Env, gymnasium.vector.VectorEnv)
_WRAPPERS = (gymnasium.Wrapper, gymnasium.vector.VectorWrapper)
_OPAQUE = (
    *(str, bytes, bytearray, int, float, complex, bool, type(None), np.ndarray, np.generic),
    # Modules and classes lead to everything that is loaded, frames to everything that runs.
    *(type, types.ModuleType, types.CodeType, types.FrameType, types.TracebackType),
    # The order of a set differs from one process to the next.
    *(set, frozenset),
)
_GLOBAL_GENERATORS = (cast("Any", random.random).__self__, cast("Any", np.random.rand).__self__)


def _is_kind(item: Any, kinds: tuple[type, ...]) -> bool:
    # Never isinstance, which asks an object for its `__class__`: a proxy may answer by calling anything.
    return issubclass(type(item), kinds)


def _is_generator(item: Any) -> bool:
    if _is_kind(item, (np.random.Generator, np.random.RandomState, random.Random)):
        return not _is_kind(item, (random.SystemRandom,)) and not any(item is known for known in _GLOBAL_GENERATORS)
    torch: Any = sys.modules.get("torch")
    kind = getattr(torch, "Generator", None)
    return isinstance(kind, type) and _is_kind(item, (kind,)) and item is not getattr(torch, "default_generator", None)


def _search(root: Any, seen: dict[int, Any]) -> list[Any]:
    """Return the generators, spaces and environments below `root`, the nearest first.

    It follows what the garbage collector follows, so it asks no object for anything. `seen` holds the objects that
    other searches met, by id, so that their ids stay theirs; this one's are added.
    """
    found: list[Any] = []
    waiting = deque([root])
    limit = len(seen) + MAX_OBJECTS
    while waiting and len(seen) < limit:
        item = waiting.popleft()
        if id(item) in seen or _is_kind(item, _OPAQUE):
            continue
        seen[id(item)] = item
        if _is_generator(item):
            found.append(item)
            continue
        if _is_kind(item, _HOLDERS) and not _is_kind(item, _WRAPPERS):
            found.append(item)
        for child in _children(item, seen):
            if len(waiting) >= MAX_OBJECTS:
                break
            waiting.append(child)
    return found


def _children(item: Any, seen: dict[int, Any]) -> Iterator[Any]:
    if type(item) is types.FunctionType:
        yield from (vars(item), item.__closure__, item.__defaults__, item.__kwdefaults__)
        yield from _named_globals(item)
        return
    yield from gc.get_referents(item)
    # Of classes, only generators, spaces and the functions' globals: the rest is much, and seldom draws.
    for owner in type(item).__mro__[:-1]:
        if id(owner) not in seen:
            seen[id(owner)] = owner
            for member in list(vars(owner).values()):
                function = _function_of(member)
                if function is not None:
                    yield from _named_globals(function)
                elif _is_generator(member) or _is_kind(member, _HOLDERS):
                    yield member


def _function_of(member: Any) -> types.FunctionType | None:
    if type(member) is property:
        member = member.fget
    elif type(member) is staticmethod or type(member) is classmethod:
        member = member.__func__
    return member if type(member) is types.FunctionType else None


def _named_globals(function: types.FunctionType) -> Iterator[Any]:
    """Yield the generators among the globals that a function's code names, and the functions of its own module."""
    known = function.__globals__
    for name in _names(function.__code__):
        value = known.get(name)
        is_near = type(value) is types.FunctionType and value.__module__ == function.__module__
        if is_near or _is_generator(value):
            yield value


def _names(code: types.CodeType) -> Iterator[str]:
    """Yield the names that code may look up, also inside its lambdas and comprehensions."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _generator_of(holder: Any) -> Any:
    return holder.np_random if _is_kind(holder, _HOLDERS) else holder


def _seed(generator: Any, root: int, number: int | str, stream: str) -> None:
    """Put a generator into the state that belongs to (root, number, stream)."""
    if isinstance(generator, np.random.Generator):
        _seed_bits(generator.bit_generator, root, number, stream)
    elif isinstance(generator, np.random.RandomState):
        # Not `seed`, which knows MT19937 alone: it may stand on any other bit generator.
        kind = getattr(np.random, cast("Any", generator.get_state(legacy=False))["bit_generator"])
        generator.set_state(kind(derive_seed(root, number, stream)).state)
    elif isinstance(generator, random.Random):
        generator.seed(derive_seed(root, number, stream))
    else:
        generator.manual_seed(derive_seed(root, number, stream))


def _seed_bits(bits: Any, root: int, number: int | str, stream: str) -> None:
    if type(bits) is not np.random.PCG64:
        bits.state = type(bits)(derive_seed(root, number, stream)).state
        return
    # The state of the one that gymnasium makes is 128 bits and an odd increment, taken from the hash itself: a fifth of
    # the cost of a SeedSequence, which is paid for every space at every episode.
    digest = seed_digest(root, number, stream, size=32)
    state, increment = int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:], "big") | 1
    bits.state = {"bit_generator": "PCG64", "state": {"state": state, "inc": increment}, "has_uint32": 0, "uinteger": 0}
