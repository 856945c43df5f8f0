"""The search for random generators below a policy or environment: what is looked into, and how far."""

from __future__ import annotations

import gc
import random
import sys
import types
from collections import deque
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, cast

import gymnasium
import numpy as np

from rollout_cli.episode_batch import EnvSpec

MAX_DEPTH = 4
"""How many attributes, list items and dictionary values deep a generator is looked for."""

MAX_OBJECTS = 20_000
"""Objects looked into below one policy or environment; a replay buffer held by a policy must not cost seconds."""

SPACE_GENERATOR = "_np_random"
"""Where a space or environment keeps its generator; None until it first draws."""

_OPAQUE = (str, bytes, int, float, complex, bool, type(None), np.ndarray, np.generic, type, types.ModuleType)
_GLOBAL_GENERATORS = (cast("Any", random.random).__self__, cast("Any", np.random.rand).__self__)

_Child = tuple[str, Any]


def is_generator(item: Any) -> bool:
    """Return whether `item` is a random generator that can be seeded, other than the global ones."""
    if isinstance(item, np.random.Generator | np.random.RandomState | random.Random):
        return not isinstance(item, random.SystemRandom) and not any(item is known for known in _GLOBAL_GENERATORS)
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(item, torch.Generator)


def search(roots: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the path and object of each generator and space below `roots`, each object once.

    What is near is found before what is far, so that a generator has its shortest path, and a container of very many
    objects hides nothing that is not deeper than they are.

    Args:
        roots: Objects by the name that begins their paths.
    """
    waiting = deque((name, root, 0) for name, root in roots.items())
    # Keeping the objects alive keeps their ids theirs.
    seen: dict[int, Any] = {}
    while waiting:
        path, item, depth = waiting.popleft()
        if isinstance(item, _OPAQUE) or id(item) in seen:
            continue
        seen[id(item)] = item
        if is_generator(item) or isinstance(item, gymnasium.Space):
            yield path, item
        if depth == MAX_DEPTH and not isinstance(item, gymnasium.Space):
            continue
        for suffix, child in _children(item):
            if _is_worth_it(child, len(seen) + len(waiting)):
                below = 0 if _begins_afresh(item, suffix) else depth + 1
                waiting.append((path + suffix, child, below))


def _is_worth_it(child: Any, n_objects: int) -> bool:
    if isinstance(child, _OPAQUE):
        return False
    return n_objects < MAX_OBJECTS or is_generator(child)


def _begins_afresh(item: Any, suffix: str) -> bool:
    """Return whether depth is counted anew: chains of wrappers and trees of spaces end by themselves."""
    return isinstance(item, gymnasium.Space) or (isinstance(item, gymnasium.Wrapper) and suffix == ".env")


def _children(item: Any) -> Iterator[_Child]:
    """Yield (path suffix, object) for what `item` holds."""
    if is_generator(item):
        return
    if isinstance(item, dict):
        yield from _dict_children(item)
    elif isinstance(item, list | tuple | deque):
        yield from ((f".{at}", child) for at, child in enumerate(item))
    elif isinstance(item, types.FunctionType):
        yield from _function_children(item)
    elif isinstance(item, types.MethodType | types.BuiltinMethodType):
        yield ".__self__", item.__self__
        yield ".__func__", getattr(item, "__func__", None)
    elif isinstance(item, gymnasium.Space):
        parts = _attributes(item)
        yield from (part for part in parts if isinstance(part[1], dict | list | tuple | gymnasium.Space))
    else:
        yield from _attributes(item)
        yield from _class_children(type(item))


def _dict_children(item: dict[Any, Any]) -> Iterator[_Child]:
    for at, (key, child) in enumerate(list(item.items())):
        # The text of other keys may hold an address, which would give each process another path.
        yield f".{key if isinstance(key, str | int | float | bool) else f'#{at}'}", child


def _attributes(item: Any) -> Iterator[_Child]:
    """Yield the values of `__dict__` and of slots, which is where a `partial` has its parts, too."""
    if hasattr(type(item), "__dict__"):
        # By name, so that two paths to one object are met in the same order in every process.
        parts = sorted(_instance_items(item))
        yield from ((f".{name}", value) for name, value in parts if not _is_lent(item, value))
    if isinstance(item, EnvSpec) or not _is_ours(item):
        # Slots hide what this package's own policies seed by themselves.
        yield from _slots(item)


def _instance_items(item: Any) -> list[_Child]:
    """Return the names and values of an instance's attributes.

    CPython keeps these inside the object until somebody asks for its `__dict__`; from then on every attribute costs it
    more, a twentieth of a small environment's step. So the names are taken from the code of the class, and `__dict__`
    is asked for only where they do not account for everything that the object holds.
    """
    named = [(name, getattr(item, name, None)) for name in _names_in_class(cast("Any", type(item)))]
    known = {id(value) for _, value in named}
    if hasattr(type(item), "__getattr__") or not all(id(held) in known for held in _held_by(item)):
        return list(getattr(item, "__dict__", {}).items())
    return named


def _held_by(item: Any) -> list[Any]:
    return [held for held in gc.get_referents(item) if not isinstance(held, _OPAQUE)]


@cache
def _names_in_class(owner: type) -> tuple[str, ...]:
    """Return the names in the code of a class's methods, and of its plain values, which an instance may replace."""
    names: dict[str, None] = {}
    computed: set[str] = set()
    for kind in owner.__mro__:
        for name, member in vars(kind).items():
            if hasattr(type(member), "__get__"):
                computed.add(name)
            elif not name.startswith("__"):
                names[name] = None
            function = _plain_function(member)
            if function is not None:
                names |= _names(function.__code__)
    return tuple(name for name in names if name not in computed)


def _slots(item: Any) -> Iterator[_Child]:
    for owner in type(item).__mro__:
        for name, member in list(vars(owner).items()):
            # A slot that was never set gives None.
            if isinstance(member, types.MemberDescriptorType):
                yield f".{name}", getattr(item, name, None)


def _is_ours(item: Any) -> bool:
    return type(item).__module__.partition(".")[0] == __name__.partition(".")[0]


def _is_lent(holder: Any, value: Any) -> bool:
    """Return whether `value` holds the environment's own spaces, which an adapter of ours was told of."""
    return isinstance(value, EnvSpec) and _is_ours(holder)


def _class_children(owner: type) -> Iterator[_Child]:
    """Yield generators that a class holds, or that its methods name among their module's globals."""
    for kind in owner.__mro__[:-1]:
        for name, value in list(vars(kind).items()):
            if is_generator(value):
                yield f".{name}", value
            function = _plain_function(value)
            if function is not None:
                yield from _method_globals(name, function)


def _plain_function(member: Any) -> types.FunctionType | None:
    inner = getattr(member, "fget", None) or getattr(member, "__func__", member)
    return inner if isinstance(inner, types.FunctionType) else None


def _method_globals(name: str, function: types.FunctionType) -> Iterator[_Child]:
    for key, value in _globals(function):
        # Functions of the same module are followed; all else that a library's module holds would lead too far.
        is_near = isinstance(value, types.FunctionType) and value.__module__ == function.__module__
        if is_near or is_generator(value):
            yield f".{name}.{key}", value


def _function_children(function: types.FunctionType) -> Iterator[_Child]:
    """A plain function carries state in attributes, its closure, its defaults, and the globals that its code names."""
    yield from ((f".{name}", value) for name, value in vars(function).items())
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f".{name}", cell.cell_contents
        except ValueError:
            continue  # The cell is still empty: the name is bound later.
    yield from ((f".{name}", value) for name, value in _globals(function))
    yield from ((f".default{at}", value) for at, value in enumerate(function.__defaults__ or ()))
    yield from ((f".{name}", value) for name, value in (function.__kwdefaults__ or {}).items())


def _globals(function: types.FunctionType) -> Iterator[_Child]:
    known = function.__globals__
    yield from ((name, known[name]) for name in _names(function.__code__) if name in known)


def _names(code: types.CodeType) -> dict[str, None]:
    """Return the names that code may look up, also inside its lambdas and comprehensions."""
    names = dict.fromkeys(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return names
