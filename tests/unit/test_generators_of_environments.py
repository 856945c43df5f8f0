"""Generators of spaces and environments are found whenever they are made, and seeded from then on."""

from __future__ import annotations

import gc
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rollout_cli.episode_batch import EnvSpec
from rollout_cli.generators import GeneratorSet
from tests.unit.holders import Holder, paths_below, rng

# -- spaces ---------------------------------------------------------------------------------------------------------


def test_an_env_spec_of_the_users_own() -> None:
    """The spaces that a policy was made with draw for the policy."""
    space = spaces.Discrete(3, seed=0)
    policy = Holder(env_spec=EnvSpec(spaces.Box(-1, 1), space))
    assert ["policy.env_spec.action_space"] == paths_below(policy)


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
