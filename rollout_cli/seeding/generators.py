"""EpisodeSeeder: puts all generators that a policy or environment may use into an episode's own state.

A pickled policy with a generator of its own would otherwise explore alike in every worker.
"""

from __future__ import annotations

import contextlib
import gc
import random
import sys
import types
from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Any, cast

import gymnasium
import numpy as np

from rollout_cli.seeding.seeds import derive_seed, seed_digest, seed_globals

MAX_OBJECTS = 20_000
"""Objects looked at below a policy or environment: a replay buffer in a policy must not cost seconds."""


class EpisodeSeeder:
    """Seeds the global generators, and those found in one policy and one environment."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._watched: dict[str, Any] = {}
        self._first_holders: dict[str, list[Any]] = {}
        self._streams: list[tuple[str, Any]] = []

    def watch(self, *, policy: Any = None, env: Any = None) -> None:
        """Search for generators after a build, an update or the first reset; known ones keep their streams.

        A policy or environment takes the place of the one watched before; None leaves that one. What both
        hold counts as the environment's. Nothing changes but that a space makes the generator that its first
        draw would make.
        """
        visited: dict[int, Any] = {}
        streams: list[tuple[str, Any]] = []
        for name, item in (("env", env), ("policy", policy)):
            if item is not None and self._watched.get(name) is not item:
                self._watched[name] = item
                self._first_holders.pop(name, None)
            if name not in self._watched:
                continue
            holders = _search(self._watched[name], visited)
            # An environment may make a generator at its first reset. Such a late one has a name of its own,
            # since whether a worker has met it must not change the others' streams.
            first = self._first_holders.setdefault(name, holders)
            first_ids = set(map(id, first))
            later = [holder for holder in holders if id(holder) not in first_ids]
            named = [(f"{name}.{index}", holder) for index, holder in enumerate(first)]
            named += [(f"{name}.late.{index}", holder) for index, holder in enumerate(later)]
            streams = named + streams
        self._streams = streams

    def begin(self, number: int | str) -> None:
        """Seed global generators, then the policy's, then the environment's, for an episode (or `SETUP`)."""
        seed_globals(self._root, number)
        self.seed_found(number)

    def seed_found(self, number: int | str) -> None:
        """Seed the policy's generators, then the environment's, and leave the global ones."""
        for stream, holder in self._streams:
            # The user's own class may refuse a seed, or its space; the end-of-run check shows the difference.
            with contextlib.suppress(Exception):
                generator = holder.np_random if _is_kind(holder, _HOLDERS) else holder
                _seed(generator, self._root, number, stream)


_HOLDERS = (gymnasium.Space, gymnasium.Env, gymnasium.vector.VectorEnv)
_WRAPPERS = (gymnasium.Wrapper, gymnasium.vector.VectorWrapper)
_OPAQUE = (
    *(str, bytes, bytearray, int, float, complex, bool, type(None), np.ndarray, np.generic),
    # Modules and classes lead to everything that is loaded, frames to everything that runs.
    *(type, types.ModuleType, types.CodeType, types.FrameType, types.TracebackType),
    # The order of a set differs from one process to the next.
    *(set, frozenset),
)
_GLOBAL_GENERATOR_IDS = {id(cast("Any", draw).__self__) for draw in (random.random, np.random.rand)}


def _is_kind(item: Any, kinds: tuple[type, ...]) -> bool:
    # Never isinstance, which asks an object for its `__class__`: a proxy may answer by calling anything.
    return issubclass(type(item), kinds)


def _is_generator(item: Any) -> bool:
    if _is_kind(item, (np.random.Generator, np.random.RandomState, random.Random)):
        return not _is_kind(item, (random.SystemRandom,)) and id(item) not in _GLOBAL_GENERATOR_IDS
    torch: Any = sys.modules.get("torch")
    kind = getattr(torch, "Generator", None)
    return (
        isinstance(kind, type)
        and _is_kind(item, (kind,))
        and item is not getattr(torch, "default_generator", None)
    )


def _search(root: Any, visited: dict[int, Any]) -> list[Any]:
    """Return the generators below `root`, the nearest first; of spaces and environments, these themselves.

    It follows what the garbage collector follows, so it asks no object for anything. What it meets is kept in
    `visited`, by id, so that the ids stay theirs.
    """
    holders: list[Any] = []
    waiting = deque([root])
    spaces_of: dict[type, tuple[Any, ...]] = {}
    limit = len(visited) + MAX_OBJECTS
    while waiting and len(visited) < limit:
        item = waiting.popleft()
        if id(item) in visited or _is_kind(item, _OPAQUE):
            continue
        visited[id(item)] = item
        if _is_generator(item):
            holders.append(item)
            continue
        if _is_kind(item, _HOLDERS) and not _is_kind(item, _WRAPPERS):
            # It may make its generator anew, and so stands for it. A property of the user's class may raise
            # anything.
            with contextlib.suppress(Exception):
                if id(generator := item.np_random) not in visited:
                    visited[id(generator)] = generator
                    holders.append(item)
        if type(item) not in spaces_of:
            spaces_of[type(item)] = _class_spaces(type(item))
        waiting.extend(islice(_children(item, spaces_of[type(item)]), MAX_OBJECTS - len(waiting)))
    return holders


def _children(item: Any, class_spaces: tuple[Any, ...]) -> Iterable[Any]:
    if type(item) is types.FunctionType:  # Not its globals, which lead to everything that is loaded.
        return vars(item), item.__closure__, item.__defaults__, item.__kwdefaults__
    return (*gc.get_referents(item), *class_spaces)


def _class_spaces(kind: type) -> tuple[Any, ...]:
    """Return the spaces that are attributes of a class, as environments often have theirs."""
    return tuple(
        member
        for owner in kind.__mro__[:-1]
        for member in list(vars(owner).values())
        if _is_kind(member, (gymnasium.Space,))
    )


def _seed(generator: Any, root: int, number: int | str, stream: str) -> None:
    """Put a generator into the state that belongs to (root, number, stream)."""
    bits: Any = generator.bit_generator if isinstance(generator, np.random.Generator) else None
    if type(bits) is np.random.PCG64:
        # 128 bits and an odd increment, from the hash itself: a fifth of the cost of a SeedSequence, for
        # every space.
        digest = seed_digest(root, number, stream, size=32)
        state: Any = {
            "state": int.from_bytes(digest[:16], "big"),
            "inc": int.from_bytes(digest[16:], "big") | 1,
        }
        bits.state = {"bit_generator": "PCG64", "state": state, "has_uint32": 0, "uinteger": 0}
        return
    seed = derive_seed(root, number, stream)
    if bits is not None:
        bits.state = type(bits)(seed).state
    elif isinstance(generator, np.random.RandomState):
        # Not `seed`, which knows MT19937 alone: it may stand on any other bit generator.
        kind = getattr(np.random, cast("Any", generator.get_state(legacy=False))["bit_generator"])
        generator.set_state(kind(seed).state)
    elif isinstance(generator, random.Random):
        generator.seed(seed)
    else:
        generator.manual_seed(seed)
