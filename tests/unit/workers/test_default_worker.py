"""DefaultWorker: an episode is what its number says, recorded as it was, with the right end."""

from __future__ import annotations

import math
import sys
import types
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rollout_cli.seeding import derive_seed
from tests.support import envs, policies
from tests.support.generators import StandInGenerator
from tests.unit.workers.making import SEED, assert_same_episodes, make_worker, run_numbers

# -- how episodes end --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ends", "flags"), [("terminated", (True, False)), ("truncated", (False, True)), ("both", (True, True))]
)
def test_the_last_observation_is_what_followed_the_last_step(ends: envs.Ending, flags: tuple[bool, bool]) -> None:
    """However an episode ends, its flags are kept, and the last observation is the one after the end."""
    chunk = run_numbers(make_worker(envs.ChainEnv(ends)), range(8))
    assert {flags} == set(zip(chunk.terminated.tolist(), chunk.truncated.tolist(), strict=True))
    assert (
        chunk.lengths.tolist() == chunk.last_observations[0][:, 0].tolist() == chunk.last_observations[0][:, 1].tolist()
    )


def test_the_limit_truncates_and_says_so() -> None:
    """An episode that reaches `max_episode_length` is truncated there, with the observation that followed."""
    chunk = run_numbers(make_worker(envs.EndlessEnv(), max_episode_length=6), range(3))
    assert [6, 6, 6] == chunk.lengths.tolist() == chunk.last_observations[0][:, 0].tolist()
    assert ([False] * 3, [True] * 3) == (chunk.terminated.tolist(), chunk.truncated.tolist())


def test_an_end_at_the_limit_is_both() -> None:
    """An episode that terminates in the very step that the limit cuts at has both flags."""
    env = envs.SleepyEnv(seconds=0.0, length=5)
    chunk = run_numbers(make_worker(env, max_episode_length=5), range(2))
    assert ([True, True], [True, True], [5, 5]) == (
        chunk.terminated.tolist(),
        chunk.truncated.tolist(),
        chunk.lengths.tolist(),
    )


@pytest.mark.parametrize("limit", [None, math.inf, 10])
def test_without_a_limit_in_reach_episodes_end_by_themselves(limit: float | None) -> None:
    """None, infinity, and more steps than any episode has change nothing."""
    expected = run_numbers(make_worker(envs.ChainEnv()), range(5))
    assert_same_episodes(expected, run_numbers(make_worker(envs.ChainEnv(), max_episode_length=limit), range(5)))


def test_inside_an_episode_each_observation_follows_the_one_before() -> None:
    """Row t + 1 holds what the environment gave after row t's action."""
    chunk = run_numbers(make_worker(envs.ChainEnv()), range(6))
    positions = [list(range(length)) for length in chunk.lengths.tolist()]
    assert [place for episode in positions for place in episode] == chunk.observations[0][:, 0].tolist()
    assert chunk.env_infos.to_dicts() == [{"position": place + 1} for episode in positions for place in episode]


def test_rewards_are_those_of_the_recorded_actions() -> None:
    """Each row's reward answers that row's action."""
    chunk = run_numbers(make_worker(envs.ChainEnv(), policies.GlobalNoisePolicy), range(6))
    assert {0, 1} == set(chunk.actions[0].tolist())
    assert [1.0 if action == 1 else 0.5 for action in chunk.actions[0]] == chunk.rewards.tolist()


# -- what others do to their arrays ------------------------------------------------------------------------------------


def test_a_reused_observation_buffer_changes_nothing() -> None:
    """An environment that writes each observation over the last one gives the same episodes as one that does not."""
    expected = run_numbers(make_worker(envs.ChainEnv()), range(8))
    assert_same_episodes(expected, run_numbers(make_worker(envs.ReusedBufferEnv()), range(8)))


@pytest.mark.parametrize("env", [envs.ChainEnv, envs.ReusedBufferEnv, envs.DictEnv])
def test_a_policy_that_edits_its_observation_changes_nothing(env: type[Any]) -> None:
    """A policy that overwrites what it was given gives the same episodes as one that does not."""
    expected = run_numbers(make_worker(env()), range(8))
    assert_same_episodes(expected, run_numbers(make_worker(env(), policies.EditingPolicy), range(8)))


# -- one number, one episode -------------------------------------------------------------------------------------------


class LazyGeneratorPolicy(policies.GaragePolicy):
    """Makes its generator, from the operating system's entropy, in its first step."""

    rng: np.random.Generator | None = None

    def place(self, observation: Any, row: int) -> float:
        self.rng = self.rng or np.random.default_rng()
        return float(self.rng.random())


class SamplingPolicy(policies.GaragePolicy):
    """Draws from the action space, which makes its generator when it first does."""

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        return self.action_space.sample(), {}


class SamplingEnv(envs.ChainEnv):
    """Draws from a space of its own in each third episode only."""

    def __init__(self) -> None:
        super().__init__()
        self.noise = spaces.Discrete(1000)
        self._draws = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._draws = (seed or 0) % 3 == 0
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated, truncated, {**info, "noise": self.noise.sample() if self._draws else -1}


KINDS: list[tuple[type[Any], type[Any]]] = [
    (envs.ChainEnv, policies.LinearPolicy),
    (envs.ChainEnv, policies.GlobalNoisePolicy),
    (envs.ChainEnv, policies.OwnGeneratorPolicy),
    (envs.ChainEnv, policies.RecurrentPolicy),
    (envs.ChainEnv, LazyGeneratorPolicy),
    (envs.ChainEnv, SamplingPolicy),
    (SamplingEnv, policies.LinearPolicy),
    (envs.DictEnv, policies.OwnGeneratorPolicy),
]


@pytest.mark.parametrize(("env", "policy"), KINDS, ids=lambda kind: kind.__name__)
def test_a_number_is_the_same_episode_whatever_ran_before(env: type[Any], policy: type[Any]) -> None:
    """Each of the first episodes is the same, alone in a new worker, or after all the others."""
    together = run_numbers(make_worker(env(), policy), range(12))
    for number in (0, 3, 11):
        alone = run_numbers(make_worker(env(), policy), [number])
        assert_same_episodes(together.episodes(number, number + 1), alone)


def test_episodes_differ_from_each_other() -> None:
    """Different numbers draw differently: environment, own generator and global generator."""
    for policy in (policies.GlobalNoisePolicy, policies.OwnGeneratorPolicy):
        chunk = run_numbers(make_worker(envs.ChainEnv(), policy), range(20))
        places = [row["place"] for row in chunk.agent_infos.to_dicts()]
        assert len(places) == len(set(places))
        assert 20 == len(set(chunk.seeds.tolist()))


def test_the_seed_of_a_number_is_what_reset_gets() -> None:
    """The recorded seed is the one that `env.reset` was given, a function of root seed and number."""
    chunk = run_numbers(make_worker(envs.ChainEnv()), [0, 41])
    assert [derive_seed(SEED, 0, "env"), derive_seed(SEED, 41, "env")] == chunk.seeds.tolist()


class CountingResets(envs.ChainEnv):
    """Counts its resets."""

    resets = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.resets += 1
        return super().reset(seed=seed, options=options)


def test_only_an_episode_with_a_new_generator_is_run_again() -> None:
    """With a generator that appears in the first episode there is one reset more than episodes; otherwise none more."""
    resets = {}
    for policy in (policies.OwnGeneratorPolicy, LazyGeneratorPolicy):
        env = CountingResets()
        run_numbers(make_worker(env, policy), range(5))
        resets[policy.__name__] = env.resets
    assert {"OwnGeneratorPolicy": 5, "LazyGeneratorPolicy": 6} == resets


class TorchImportingPolicy(policies.GaragePolicy):
    """Imports torch in its first step, as code that imports inside of functions does, and draws from it."""

    def place(self, observation: Any, row: int) -> float:
        torch = types.SimpleNamespace(default_generator=StandInGenerator(), Generator=StandInGenerator)
        return float(sys.modules.setdefault("torch", torch).default_generator.draw())  # type: ignore[arg-type]


def test_an_episode_that_imports_torch_is_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's generator cannot be seeded before torch is there: the first episode equals the one of a later worker."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    try:
        first = run_numbers(make_worker(envs.ChainEnv(), TorchImportingPolicy), [3])
        assert_same_episodes(first, run_numbers(make_worker(envs.ChainEnv(), TorchImportingPolicy), [3]))
    finally:
        sys.modules.pop("torch", None)
