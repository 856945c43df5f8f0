"""Random generators are found where policies and environments keep them, and seeded by path."""

from __future__ import annotations

import gc
import random
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from rollout_cli._generator_search import MAX_DEPTH, MAX_OBJECTS, is_generator, search
from rollout_cli.episode_batch import EnvSpec
from rollout_cli.generators import FoundGenerator, GeneratorSet
from rollout_cli.seeding import SETUP, derive_seed

module_rng = np.random.default_rng(0)
helper_rng = np.random.default_rng(0)
FIRST_RNG, SECOND_RNG = np.random.default_rng(0), np.random.default_rng(0)


def rng() -> np.random.Generator:
    return np.random.default_rng()


def paths_below(item: Any) -> list[str]:
    return GeneratorSet({"policy": item}).paths


class Holder:
    """An object with attributes."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


# -- seeding one generator ------------------------------------------------------------------------------------------

KINDS: dict[str, Callable[[], tuple[Any, Callable[[], Any]]]] = {}


def kind(make: Callable[[], tuple[Any, Callable[[], Any]]]) -> Callable[[], tuple[Any, Callable[[], Any]]]:
    KINDS[make.__name__] = make
    return make


@kind
def pcg64() -> tuple[Any, Callable[[], Any]]:
    made = np.random.default_rng()
    # Drawing one 32-bit number leaves half a draw for the next time, which a new episode must not see.
    return made, lambda: (made.integers(2**31, dtype=np.int32), made.random(), made.standard_normal())


@kind
def pcg64dxsm() -> tuple[Any, Callable[[], Any]]:
    made = np.random.Generator(np.random.PCG64DXSM())
    return made, lambda: (made.integers(2**31, dtype=np.int32), made.random())


@kind
def philox() -> tuple[Any, Callable[[], Any]]:
    made = np.random.Generator(np.random.Philox())
    return made, lambda: (made.integers(2**31, dtype=np.int32), made.random())


@kind
def random_state() -> tuple[Any, Callable[[], Any]]:
    made = np.random.RandomState()
    # An odd number of gaussians leaves one for the next time.
    return made, lambda: (made.standard_normal(), made.random_sample())


@kind
def random_state_of_pcg64() -> tuple[Any, Callable[[], Any]]:
    made = np.random.RandomState(np.random.PCG64())
    return made, lambda: (made.standard_normal(), made.random_sample())


@kind
def python_random() -> tuple[Any, Callable[[], Any]]:
    made = random.Random()
    return made, lambda: (made.gauss(), made.random())


@pytest.mark.parametrize("name", KINDS)
def test_a_generator_follows_its_path_and_episode(name: str) -> None:
    """Whatever was drawn before, the same root, number and path give the same draws; any other gives others."""
    generator, draw = KINDS[name]()
    seen = []
    for path, root, number in (("a", 0, 5), ("a", 0, 5), ("a", 0, 6), ("a", 1, 5), ("b", 0, 5), ("a", 0, SETUP)):
        FoundGenerator(path, generator).seed(root, number)
        seen.append(draw())
    assert seen[0] == seen[1]
    assert 5 == len(set(seen))


@pytest.mark.parametrize("bits", [np.random.PCG64, np.random.PCG64DXSM])
def test_the_state_is_the_hash_itself(bits: Any) -> None:
    """A PCG64 gets 128 bits of state and an odd increment from the hash of its path, and no half-used draw."""
    generator = np.random.Generator(bits())
    generator.integers(2**31, dtype=np.int32)
    FoundGenerator("policy.own", generator).seed(7, 3)
    digest = blake2b(b"7/3/policy.own", digest_size=32).digest()
    state = {"state": int.from_bytes(digest[:16], "big"), "inc": int.from_bytes(digest[16:], "big") | 1}
    assert {
        "bit_generator": bits.__name__,
        "state": state,
        "has_uint32": 0,
        "uinteger": 0,
    } == generator.bit_generator.state


def test_other_generators_get_the_seed_of_their_path() -> None:
    """Old numpy generators take the upper 32 of its 63 bits, and Python's take it whole."""
    old, python = np.random.RandomState(), random.Random()
    for generator in (old, python):
        FoundGenerator("a", generator).seed(7, 3)
    seed = derive_seed(7, 3, "a")
    assert np.random.RandomState(seed // 2**31).random_sample() == old.random_sample()
    assert random.Random(seed).random() == python.random()


def test_a_generator_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets the seed of its path, where torch is loaded."""

    class Generator:
        seeds: list[int]

        def __init__(self) -> None:
            self.seeds = []

        def manual_seed(self, seed: int) -> None:
            self.seeds.append(seed)

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(Generator=Generator))
    policy = Holder(noise=Generator())
    found = GeneratorSet({"policy": policy})
    assert ["policy.noise"] == found.paths
    for number in (1, 1, 2):
        found.seed(0, number)
    first, again, other = policy.noise.seeds  # type: ignore[attr-defined]
    assert first == again != other


def test_what_is_no_generator_of_its_own() -> None:
    """The global generators are seeded by themselves, and the system's cannot be seeded."""
    for item in (random.random.__self__, np.random.rand.__self__, random.SystemRandom(), np.random, 3):  # type: ignore[attr-defined]
        assert not is_generator(item)


# -- where they are found -------------------------------------------------------------------------------------------


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


def test_every_generator_has_its_own_stream() -> None:
    """Two generators of one policy draw different numbers."""
    policy = Holder(one=rng(), two=rng())
    GeneratorSet({"policy": policy}).seed(0, 0)
    one, two = (vars(policy)[name].random() for name in ("one", "two"))
    assert one != two


def test_an_env_spec_of_the_users_own() -> None:
    """The spaces that a policy was made with draw for the policy."""
    space = spaces.Discrete(3, seed=0)
    policy = Holder(env_spec=EnvSpec(spaces.Box(-1, 1), space))
    assert ["policy.env_spec.action_space"] == paths_below(policy)


# -- spaces ---------------------------------------------------------------------------------------------------------


def test_a_space_that_never_draws_is_not_seeded() -> None:
    """It has no generator; looking at it makes none."""
    space = spaces.Discrete(1000)
    found = GeneratorSet({"policy": Holder(space=space)})
    assert ([], False) == (found.paths, found.woken())
    assert space._np_random is None


def test_a_space_that_wakes() -> None:
    """Once it has drawn it is reported once, and seeded from then on."""
    space = spaces.Discrete(10**6)
    found = GeneratorSet({"policy": Holder(space=space)})
    space.sample()
    assert (True, False) == (found.woken(), found.woken())
    assert ["policy.space"] == found.paths
    draws = []
    for number in (3, 3, 4):
        found.seed(0, number)
        draws.append(int(space.sample()))
    assert draws[0] == draws[1] != draws[2]


def test_a_space_that_was_seeded_is_known_at_once() -> None:
    """A space given a seed has drawn already, as far as anyone can tell."""
    assert ["policy.space"] == paths_below(Holder(space=spaces.Discrete(3, seed=0)))


def test_the_parts_of_a_space_wake_too() -> None:
    """A Dict space draws from its parts' generators, however deep they lie."""
    inner: Any = spaces.Discrete(10**6)
    for _ in range(5):
        inner = spaces.Dict({"part": spaces.Tuple([inner])})
    found = GeneratorSet({"policy": Holder(space=inner)})
    inner.sample()
    assert found.woken()
    assert "policy.space" + ".spaces.part.spaces.0" * 5 in found.paths
    draws = []
    for number in (3, 3, 4):
        found.seed(0, number)
        draws.append(repr(inner.sample()))
    assert draws[0] == draws[1] != draws[2]


# -- environments ---------------------------------------------------------------------------------------------------


class Env(gymnasium.Env[Any, Any]):
    """Draws its observations from its own generator."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 1, ())
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.np_random.random(), {}


class DeafEnv(Env):
    """Ignores the seeds it is given."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return super().reset()


class Noisy(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper with a generator."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.noise = rng()


def test_a_long_chain_of_wrappers() -> None:
    """Each wrapper's generators and the environment's own are found, however long the chain; depth begins anew."""
    env: gymnasium.Env[Any, Any] = Env()
    for _ in range(7):
        env = Noisy(env)
    chain = ["env" + ".env" * at for at in range(8)]
    assert {*(f"{at}.noise" for at in chain[:-1]), f"{chain[-1]}._np_random"} == set(GeneratorSet({"env": env}).paths)


def test_depth_counts_from_each_wrapper() -> None:
    """A wrapper's attributes are looked into as deep as those of any object, not deeper."""
    inner = Noisy(Env())
    vars(inner).update(near=[[[rng()]]], far=[[[[rng()]]]])
    found = GeneratorSet({"env": Noisy(inner)}).paths
    assert "env.env.near.0.0.0" in found
    assert not any("far" in path for path in found)


def test_an_environment_that_makes_its_generator_in_reset() -> None:
    """Where `reset(seed=...)` makes the generator anew, it is not seeded a second time, and that is no news."""
    env = Noisy(Env())
    found = GeneratorSet({"env": env})
    assert "env.env._np_random" in found.paths
    for episode in range(3):
        env.reset(seed=episode)
        assert not found.look_again()
        assert ["env.noise"] == found.paths


def test_an_environment_that_ignores_seeds() -> None:
    """Its generator stays the same object, and is seeded before each reset, so that its episodes repeat."""
    env = DeafEnv()
    found = GeneratorSet({"env": env})
    seen = []
    for number in (3, 3, 4):
        found.seed(0, number)
        seen.append(env.reset(seed=1)[0])
        assert not found.look_again()
        assert ["env._np_random"] == found.paths
    assert seen[0] == seen[1] != seen[2]


def test_an_environment_makes_its_generator_when_looked_at() -> None:
    """The one that it would make lazily has a seed that nobody knows; so it is made, and seeded."""
    env = DeafEnv()
    assert env._np_random is None
    GeneratorSet({"env": env})
    assert env._np_random is not None


def test_a_generator_made_lazily_is_news() -> None:
    """Looking again tells of it once; one that takes another's place is seeded, but no news."""
    policy = Holder(own=rng())
    found = GeneratorSet({"policy": policy})
    assert not found.look_again()
    vars(policy)["late"] = rng()
    assert (True, False) == (found.look_again(), found.look_again())
    vars(policy)["own"] = rng()
    assert not found.look_again()
    found.seed(0, 0)
    own = vars(policy)["own"].random()
    found.seed(0, 0)
    assert own == vars(policy)["own"].random()


def test_a_search_leaves_attributes_where_the_interpreter_keeps_them() -> None:
    """No `__dict__` is made of an environment whose class names all it holds: its steps stay as fast as before."""
    env = gymnasium.make("CartPole-v1")
    assert not [held for held in gc.get_referents(env.unwrapped) if isinstance(held, dict) and "gravity" in held]
    assert ["env.env.env.env._np_random"] == GeneratorSet({"env": env}).paths
    assert not [held for held in gc.get_referents(env.unwrapped) if isinstance(held, dict) and "gravity" in held]


def test_an_attribute_that_no_code_of_the_class_names_is_found() -> None:
    """A generator that somebody else put into an object is found all the same."""
    env = gymnasium.make("CartPole-v1")
    vars(env.unwrapped)["put_here"] = np.random.default_rng(0)
    assert "env.env.env.env.put_here" in GeneratorSet({"env": env}).paths
