"""A random generator is seeded by its path and the episode, whatever its kind and whatever it drew before."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from hashlib import blake2b
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rollout_cli._generator_search import is_generator
from rollout_cli.generators import FoundGenerator, GeneratorSet
from rollout_cli.seeding import SETUP, derive_seed
from tests.unit.holders import Holder, rng

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


def test_every_generator_has_its_own_stream() -> None:
    """Two generators of one policy draw different numbers."""
    policy = Holder(one=rng(), two=rng())
    GeneratorSet({"policy": policy}).seed(0, 0)
    one, two = (vars(policy)[name].random() for name in ("one", "two"))
    assert one != two
