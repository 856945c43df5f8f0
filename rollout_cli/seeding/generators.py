"""EpisodeSeeder, which seeds all random generators of a policy and an environment for each episode.

Without it, a pickled policy with its own generator would explore identically in every worker.
"""

from __future__ import annotations

import contextlib
import gc
import random
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, cast

import gymnasium
import numpy as np

from rollout_cli.seeding.seeds import derive_seed, seed_digest, seed_globals

MAX_OBJECTS = 20_000
"""The maximum number of objects searched in a policy or environment; a replay buffer must not take seconds."""


class SeededElsewhere:
    """An object whose generators are in another process; the search treats it as one generator."""

    def seed_found(self, root: int, number: int | str) -> None:
        """Seed its generators there, as `EpisodeSeeder.seed_found` does."""
        raise NotImplementedError


class EpisodeSeeder:
    """Seeds the global generators, and the generators found in one policy and one environment."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._watched: dict[str, Any] = {}
        self._first_holders: dict[str, list[Any]] = {}
        self._streams: list[tuple[str, Any]] = []

    def watch(self, *, policy: Any = None, env: Any = None) -> None:
        """Search for generators after a build, an update or the first reset; known generators keep their streams.

        A policy or environment replaces the previous one; None keeps it. A generator that both share counts as
        the environment's. The search has one side effect: a space creates its generator.
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
            # An environment may create a generator at its first reset. Late generators have separate names:
            # the streams of the others must not depend on whether a worker has found a late one.
            first = self._first_holders.setdefault(name, holders)
            first_ids = set(map(id, first))
            later = [holder for holder in holders if id(holder) not in first_ids]
            named = [(f"{name}.{index}", holder) for index, holder in enumerate(first)]
            named += [(f"{name}.late.{index}", holder) for index, holder in enumerate(later)]
            streams = named + streams
        self._streams = streams

    def begin(self, number: int | str) -> None:
        """Seed the global generators, then the policy's, then the environment's, for an episode or `SETUP`."""
        seed_globals(self._root, number)
        self.seed_found(number)

    def seed_found(self, number: int | str) -> None:
        """Seed the policy's generators, then the environment's, but not the global generators."""
        for stream, holder in self._streams:
            # A user's class may raise when it is seeded; the reproducibility check then shows the difference.
            with contextlib.suppress(Exception):
                generator = holder.np_random if _is_kind(holder, _HOLDERS) else holder
                _seed(generator, self._root, number, stream)


_HOLDERS = (gymnasium.Space, gymnasium.Env, gymnasium.vector.VectorEnv)
_WRAPPERS = (gymnasium.Wrapper, gymnasium.vector.VectorWrapper)
_OPAQUE = (
    *(str, bytes, bytearray, int, float, complex, bool, type(None), np.ndarray, np.generic),
    # Modules and classes refer to all loaded code, frames to all running code.
    *(type, types.ModuleType, types.CodeType, types.FrameType, types.TracebackType),
    # The order of a set differs between processes.
    *(set, frozenset),
)
_GLOBAL_GENERATOR_IDS = {id(cast("Any", draw).__self__) for draw in (random.random, np.random.rand)}


def _is_kind(item: Any, kinds: tuple[type, ...]) -> bool:
    # Never isinstance, which reads an object's `__class__`: in a proxy that may call any code.
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
    """Return the generators that `root` refers to, nearest first; spaces and environments stand for theirs.

    The search uses the garbage collector's references and calls no methods of the objects. `visited` keeps
    them alive, by id, because the id of a deleted object could be reused.
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
        if _is_generator(item) or _is_kind(item, (SeededElsewhere,)):
            holders.append(item)
            continue
        if _is_kind(item, _HOLDERS) and not _is_kind(item, _WRAPPERS):
            # A space or environment may replace its generator, so the holder is kept, not the generator. A
            # property of a user's class may raise any error.
            with contextlib.suppress(Exception):
                if id(generator := item.np_random) not in visited:
                    visited[id(generator)] = generator
                    holders.append(item)
        if type(item) not in spaces_of:
            spaces_of[type(item)] = _class_spaces(type(item))
        waiting.extend(islice(_children(item, spaces_of[type(item)]), MAX_OBJECTS - len(waiting)))
    return holders


def _children(item: Any, class_spaces: tuple[Any, ...]) -> Iterable[Any]:
    if type(item) is types.FunctionType:  # Without its globals, which refer to all loaded code.
        return vars(item), item.__closure__, item.__defaults__, item.__kwdefaults__
    return (*_referents(item), *class_spaces)


def _referents(item: Any) -> Iterator[Any]:
    """Yield the objects that `item` refers to, with its attributes in place of its `__dict__`.

    Python creates an instance's `__dict__` when it is first read, e.g. by pickle. The order of the search must
    not depend on whether that has happened.
    """
    referents = gc.get_referents(item)
    own = None
    if dict in map(type, referents):  # Otherwise reading it would create it, and slow down the user's code.
        with contextlib.suppress(AttributeError):
            own = object.__getattribute__(item, "__dict__")
    for referent in referents:
        if own is not None and referent is own:
            yield from own.values()
        else:
            yield referent


def _class_spaces(kind: type) -> tuple[Any, ...]:
    """Return the spaces that are attributes of a class, which is common for environments."""
    return tuple(
        member
        for owner in kind.__mro__[:-1]
        for member in list(vars(owner).values())
        if _is_kind(member, (gymnasium.Space,))
    )


def _seed(generator: Any, root: int, number: int | str, stream: str) -> None:
    """Set the state of a generator, a function of (root, number, stream)."""
    if isinstance(generator, SeededElsewhere):
        generator.seed_found(root, number)
        return
    bits: Any = generator.bit_generator if isinstance(generator, np.random.Generator) else None
    if type(bits) is np.random.PCG64:
        # 128 bits of state and an odd increment from the hash cost a fifth of a SeedSequence, per space.
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
        # Not by `seed`, which supports only MT19937: a RandomState may use another bit generator.
        kind = getattr(np.random, cast("Any", generator.get_state(legacy=False))["bit_generator"])
        generator.set_state(kind(seed).state)
    elif isinstance(generator, random.Random):
        generator.seed(seed)
    else:
        generator.manual_seed(seed)
