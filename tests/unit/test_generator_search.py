"""Random generators are found where policies keep them, each by a path of its own, and the search is bounded."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_cli._generator_search import MAX_DEPTH, MAX_OBJECTS, search
from rollout_cli.generators import GeneratorSet
from tests.unit.holders import Holder, paths_below, rng

module_rng = np.random.default_rng(0)
helper_rng = np.random.default_rng(0)
FIRST_RNG, SECOND_RNG = np.random.default_rng(0), np.random.default_rng(0)


@dataclass
class Plain:
    own: np.random.Generator = field(default_factory=rng)


@dataclass(slots=True)
class Slotted:
    own: np.random.Generator = field(default_factory=rng)


class Mangled:
    __slots__ = ("__own", "never_set")

    def __init__(self) -> None:
        self.__own = rng()


class OnTheClass:
    shared = rng()


class InMethods:
    """Draws from generators of its module, one through a function, one in a comprehension."""

    def get_action(self, observation: Any) -> Any:
        return [module_rng.random() for _ in range(2)]

    @staticmethod
    def helped() -> Any:
        return helper()


class InAProperty:
    @property
    def draw(self) -> float:
        return module_rng.random()


class InAClassMethod:
    @classmethod
    def draw(cls) -> float:
        return module_rng.random()


def helper() -> Any:
    return helper_rng.random()


def plain_function(observation: Any) -> Any:
    return helper()


def closure() -> Callable[[], Any]:
    own = rng()
    return lambda: own.random() + 1


def with_defaults(observation: Any, own: Any = FIRST_RNG, *, other: Any = SECOND_RNG) -> Any:
    return own, other


def with_attribute(observation: Any) -> Any:
    return vars(with_attribute)["own"].random()


vars(with_attribute)["own"] = rng()


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (rng(), [""]),
        (Plain(), [".own"]),
        (Slotted(), [".own"]),
        (Mangled(), ["._Mangled__own"]),
        (Holder(a=[rng(), {"b": (rng(),)}]), [".a.0", ".a.1.b.0"]),
        (Holder(a={1: rng(), 2.5: rng(), (1,): rng()}), [".a.1", ".a.2.5", ".a.#2"]),
        (Holder(a=deque([rng()])), [".a.0"]),
        (Holder(a={1: rng(), "1": rng()}), [".a.1", ".a.1'"]),
        (OnTheClass(), [".shared"]),
        (InMethods(), [".get_action.module_rng", ".helped.helper.helper_rng"]),
        (InAProperty(), [".draw.module_rng"]),
        (InAClassMethod(), [".draw.module_rng"]),
        (plain_function, [".helper.helper_rng"]),
        (lambda: module_rng.random() + 1, [".module_rng"]),
        (closure(), [".own"]),
        (with_defaults, [".default0", ".other"]),
        (with_attribute, [".own"]),
        (partial(with_defaults, rng(), other=rng()), [".func.default0", ".func.other", ".args.0", ".keywords.other"]),
        (Holder(a=Plain().own.random), [".a.__self__"]),
        (Holder(a=random.Random(0).random), [".a.__self__"]),
        (InMethods().get_action, [".__self__.get_action.module_rng", ".__self__.helped.helper.helper_rng"]),
        (Holder(choose=random.choice, draw=np.random.rand), []),
        (Holder(text="x", array=np.zeros(3, object), kind=Plain, module=np.random), []),
    ],
)
def test_where_generators_are_found(item: Any, expected: list[str]) -> None:
    """In attributes, slots, containers, classes, methods, functions and what those name: each by a path of its own."""
    assert [f"policy{path}" for path in expected] == paths_below(item)


def test_an_empty_cell_is_passed_over() -> None:
    """A function may name what is bound later."""

    def act() -> Any:
        return later, module_rng

    assert ["policy.module_rng"] == paths_below(act)
    later = rng()
    assert ["policy.later", "policy.module_rng"] == paths_below(act)


def test_cycles_end() -> None:
    """Objects that hold each other are looked into once."""
    one, two = Holder(own=rng()), Holder(own=rng())
    vars(one).update(other=two, me=one)
    vars(two).update(other=one)
    assert ["policy.own", "policy.other.own"] == paths_below(one)


def test_a_shared_generator_has_one_path() -> None:
    """It is seeded once, by its shortest path, whoever holds it."""
    shared = rng()
    policy, env = Holder(deep=[[shared]], near=shared), Holder(own=shared)
    assert ["policy.near"] == GeneratorSet({"policy": policy, "env": env}).paths


@pytest.mark.parametrize(("levels", "found"), [(MAX_DEPTH, 1), (MAX_DEPTH + 1, 0)])
def test_depth(levels: int, found: int) -> None:
    """A generator is found so many attributes or items deep, and no deeper."""
    item: Any = rng()
    for _ in range(levels):
        item = [item]
    assert found == len(paths_below(item))


def test_many_objects_do_not_hide_a_generator() -> None:
    """A replay buffer uses up the search, but not for generators that lie no deeper than its items."""
    buffer = [(1, 2.0) for _ in range(2 * MAX_OBJECTS)]
    policy = Holder(buffer=buffer, own=rng(), sampler=Holder(own=rng()))
    assert ["policy.own", "policy.sampler.own"] == paths_below(policy)


def test_the_search_is_bounded() -> None:
    """Of very many containers only so many are opened, so that a search costs no seconds."""
    crowd: list[list[Any]] = [[0] for _ in range(MAX_OBJECTS)]
    crowd[10].append(rng())
    crowd[-1].append(rng())
    assert ["policy.10.1"] == paths_below(crowd)


@given(st.recursive(st.builds(rng) | st.integers(), lambda part: st.lists(part, max_size=3), max_leaves=8))
def test_every_generator_within_reach_is_found(item: Any) -> None:
    """Nested lists of any form give exactly the generators down to the depth, each once."""
    assert sorted(map(id, _reachable(item, 0))) == sorted(id(found) for _, found in search({"policy": item}))


def _reachable(item: Any, depth: int) -> list[Any]:
    if isinstance(item, list):
        return [found for part in item if depth < MAX_DEPTH for found in _reachable(part, depth + 1)]
    return [item] if isinstance(item, np.random.Generator) else []
