"""What makes the worker fast changes nothing: arrays that others hold, wrappers taken off, generators that sleep."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rollout_cli import fast_reset
from rollout_cli.envs import as_env_source, describe_env
from rollout_cli.workers import DefaultWorker
from tests.support import envs, policies
from tests.unit.workers.making import SEED, assert_same_episodes, make_worker, run_numbers

# -- who else holds an observation -------------------------------------------------------------------------------------


class HoldingEnv(envs.ChainEnv):
    """Keeps hold of the observation that it gave, in one of several ways, and writes over it in the next step."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self._way = way
        self._held: Any = None

    def observe(self) -> Any:
        if self._held is not None:
            self._held[...] = -7
        fresh = super().observe()
        if self._way == "itself":
            self._held = given = fresh
        elif self._way == "a view of it":
            given = fresh
            self._held = given[1:]
        elif self._way == "a buffer that it views":
            self._held = fresh
            given = fresh[:]
        elif self._way == "memory of no array":
            memory = bytearray(fresh.tobytes())
            given = np.frombuffer(memory, np.float32)
            self._held = np.frombuffer(memory, np.float32)
        else:
            given, self._held = fresh, None
        return given


WAYS = ("nothing", "itself", "a view of it", "a buffer that it views", "memory of no array")


@pytest.mark.parametrize("policy", [policies.LinearPolicy, policies.EditingPolicy])
@pytest.mark.parametrize("way", WAYS)
def test_whatever_the_environment_holds(way: str, policy: Any) -> None:
    """However an environment keeps hold of what it gave, and whether the policy edits it, the episodes are the same."""
    expected = run_numbers(make_worker(envs.ChainEnv()), range(10))
    assert_same_episodes(expected, run_numbers(make_worker(HoldingEnv(way), policy), range(10)))


class InfoHoldingEnv(envs.ChainEnv):
    """Puts the observation itself into the info, too."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {"seen": observation}


def test_an_observation_that_is_also_an_info_keeps_its_value_there() -> None:
    """A policy that overwrites its observation does not overwrite the info that holds it."""
    chunk = run_numbers(make_worker(InfoHoldingEnv(), policies.EditingPolicy), range(5))
    seen = np.stack([row["seen"] for row in chunk.env_infos.to_dicts()])
    starts = np.cumsum(chunk.lengths) - chunk.lengths
    inside = np.delete(np.arange(chunk.n_steps), starts)
    assert seen[inside - 1].tolist() == chunk.observations[0][inside].tolist()
    assert seen[starts + chunk.lengths - 1].tolist() == chunk.last_observations[0].tolist()


class RememberingPolicy(policies.GaragePolicy):
    """Keeps every observation that it was given, and overwrites the one before."""

    def __init__(self, spec: Any) -> None:
        super().__init__(spec)
        self.given: list[Any] = []

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        if self.given:
            self.given[-1][...] = 9
        self.given.append(observation)
        return super().get_action(observation)


def test_what_the_policy_keeps_is_its_own() -> None:
    """Each observation that a policy holds on to is another array, whatever it does to it later."""
    made: list[RememberingPolicy] = []

    def make(spec: Any) -> RememberingPolicy:
        made.append(RememberingPolicy(spec))
        return made[-1]

    expected = run_numbers(make_worker(envs.ReusedBufferEnv()), range(6))
    assert_same_episodes(expected, run_numbers(make_worker(envs.ReusedBufferEnv(), make), range(6)))
    assert len(made[0].given) == len({id(observation) for observation in made[0].given})


def test_steps_taken_one_by_one_are_the_same_steps() -> None:
    """Looking up from an episode after every step changes nothing in it."""
    expected = make_worker(HoldingEnv("itself"), policies.EditingPolicy)
    expected.assign(range(6))
    expected.advance(float("inf"))
    whole = expected.take()
    assert whole is not None
    assert_same_episodes(whole, run_numbers(make_worker(HoldingEnv("itself"), policies.EditingPolicy), range(6)))


class TypeChangingEnv(envs.ChainEnv):
    """Gives float64 observations in every second step, which mean the same."""

    def observe(self) -> Any:
        observation = super().observe()
        return observation.astype(np.float64) if self._position % 2 else observation


def test_observations_may_change_to_a_type_that_casts() -> None:
    """In the middle of an episode too, what can be cast is recorded in the space's type."""
    expected = run_numbers(make_worker(envs.ChainEnv()), range(8))
    assert_same_episodes(expected, run_numbers(make_worker(TypeChangingEnv()), range(8)))


# -- wrappers taken off ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "Taxi-v4"])
@pytest.mark.parametrize("limit", [None, 13, 1000])
def test_an_environment_made_by_its_id_is_the_wrapped_one(env_id: str, limit: int | None) -> None:
    """Episodes of an environment built by id are those of the same environment with all of gymnasium's wrappers."""
    wrapped = run_numbers(make_worker(gymnasium.make(env_id), _sampling, max_episode_length=limit), range(4))
    worker = DefaultWorker(seed=SEED, max_episode_length=limit, worker_number=2)
    worker.update_env(as_env_source(env_id))
    worker.update_agent(_sampling(worker.env_spec))
    assert_same_episodes(wrapped, run_numbers(worker, range(4)))
    worker.shutdown()


def _sampling(spec: Any) -> Any:
    return policies.GlobalNoisePolicy(spec)


# -- generators that sleep ---------------------------------------------------------------------------------------------


class SeldomDrawingEnv(envs.ChainEnv):
    """Draws from a global generator, in some episodes only, chosen by their seeds.

    Args:
        draw: Draws one number from 0 to 1.
    """

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self._draw = draw
        self._draws = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._draws = (seed or 0) % 4 == 0
        return super().reset(seed=seed, options=options)

    def observe(self) -> Any:
        observation = super().observe()
        observation[2] = self._draw() if self._draws else 0.5
        return observation


def draw_624_numbers() -> float:
    """Draw a whole block of the generator, after which it stands where it stood."""
    return float(np.random.randint(0, 2**32, size=624, dtype=np.uint32)[0]) / 2**32


@pytest.mark.parametrize(
    "draw",
    [random.random, np.random.random, random.gauss, np.random.standard_normal, draw_624_numbers],
    ids=lambda draw: str(draw.__name__),
)
def test_a_global_generator_that_is_seldom_drawn_from(draw: Callable[[], float]) -> None:
    """Each episode is the same alone and after all others, whether it is the first to draw or one of many."""
    together = run_numbers(make_worker(SeldomDrawingEnv(draw)), range(16))
    drawing = [at for at in range(16) if together.observations[0][int(together.lengths[:at].sum()), 2] != 0.5]
    assert len(drawing) >= 2
    for number in (0, *drawing):
        alone = run_numbers(make_worker(SeldomDrawingEnv(draw)), [number])
        assert_same_episodes(together.episodes(number, number + 1), alone)


def test_other_draws_between_the_episodes_change_nothing() -> None:
    """Who else draws from the global generators, or seeds them, between two episodes cannot be seen in them."""
    undisturbed = run_numbers(make_worker(SeldomDrawingEnv(random.random)), range(16))
    worker = make_worker(SeldomDrawingEnv(random.random))
    chunks = []
    for number in range(16):
        random.seed(number)
        np.random.random(number)
        chunks.append(run_numbers(worker, [number]))
    for number, chunk in enumerate(chunks):
        assert_same_episodes(undisturbed.episodes(number, number + 1), chunk)


# -- prepared seeds ----------------------------------------------------------------------------------------------------


@pytest.fixture
def prepared_resets() -> Iterator[None]:
    """Let resets use prepared seeds, as in a worker's process."""
    assert fast_reset.install()
    yield
    fast_reset.uninstall()


class SpawningEnv(envs.ChainEnv):
    """Draws its noise from children of its generator, spawned twice."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(seed=seed, options=options)
        children = [*self.np_random.spawn(2), *self.np_random.spawn(2)]
        return observation, {**info, "children": [child.random() for child in children]}


@pytest.mark.parametrize("env", [envs.ChainEnv, SpawningEnv])
def test_prepared_seeds_give_the_same_generators(env: type[Any], prepared_resets: None) -> None:
    """Episodes whose seeds were hashed together are those whose seeds were not, children of generators included."""
    together = run_numbers(make_worker(env()), range(8))
    fast_reset.uninstall()
    assert_same_episodes(together, run_numbers(make_worker(env()), range(8)))


def test_spawned_children_are_all_different(prepared_resets: None) -> None:
    """A generator from a prepared seed counts the children it has had."""
    worker = make_worker(SpawningEnv())
    chunk = run_numbers(worker, range(4))
    children = [child for info in chunk.episode_infos.to_dicts() for child in info["children"]]
    assert 16 == len(children) == len(set(children))


def test_spaces_of_wrapped_and_unwrapped_are_one() -> None:
    """What is known of an environment does not depend on how it was given."""
    worker = DefaultWorker(seed=0, max_episode_length=None, worker_number=0)
    worker.update_env(as_env_source("CartPole-v1"))
    assert describe_env(gymnasium.make("CartPole-v1")) == worker.env_spec
    assert isinstance(worker.env_spec.action_space, spaces.Discrete)
    worker.shutdown()
