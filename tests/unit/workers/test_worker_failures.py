"""What a worker says when a policy or environment fails, and that it goes on afterwards."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from rollout_cli.errors import EnvError, EnvLoadError, PolicyError, RolloutError
from rollout_cli.policies import adapt_policy
from rollout_cli.seeding import derive_seed
from rollout_cli.workers.env_slot import placed
from rollout_cli.workers.rules import EpisodeRules
from tests.support import envs, policies
from tests.unit.workers.making import SEED, make_worker, run_numbers

# -- failures ----------------------------------------------------------------------------------------------------------


class BadObservationEnv(envs.ChainEnv):
    """Gives an observation of another shape at position `at`."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self._at = at

    def draw_length(self) -> int:
        return 3

    def observe(self) -> Any:
        return np.zeros(2, np.float32) if self._position == self._at else super().observe()


class OddRewardEnv(envs.ChainEnv):
    """Gives a text as its reward."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, _, terminated, truncated, info = super().step(action)
        return observation, "much", terminated, truncated, info


class OddStepEnv(envs.ChainEnv):
    """Gives something else in place of one part of what a step gives."""

    def __init__(self, at: int, value: Any) -> None:
        super().__init__()
        self._at, self._value = at, value

    def step(self, action: Any) -> Any:
        parts = list(super().step(action))
        parts[self._at] = self._value
        return tuple(parts)


class OldStepEnv(envs.ChainEnv):
    """Has gym's old `step`."""

    def step(self, action: Any) -> Any:
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, info


class OldResetEnv(envs.ChainEnv):
    """Has gym's old `reset`."""

    def reset(self, **_: Any) -> Any:
        return super().reset(**_)[0]


class EndlessEnv(envs.ChainEnv):
    """Never ends."""

    def step(self, action: Any) -> Any:
        observation, reward, _, _, info = super().step(action)
        return observation, reward, False, False, info


class OutsidePolicy(policies.GaragePolicy):
    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        return 7, {}


class FailingResetPolicy(policies.GaragePolicy):
    def reset(self, do_resets: Any = None) -> None:
        raise ValueError("no reset")


class FailingSeedPolicy(policies.GaragePolicy):
    def seed(self, seed: int) -> None:
        raise ValueError("no seed")


class TooManyActionsPolicy(policies.GaragePolicy):
    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        return np.array([1, 1]), {}


class NoInfoPolicy(policies.GaragePolicy):
    def get_action(self, observation: Any) -> Any:
        return 1


class TextPredictor:
    """Has Stable-Baselines3's method, which gives something else."""

    def predict(self, *_: Any, **__: Any) -> str:
        return "left"


FAILURES: list[tuple[Any, Any, type[RolloutError], str, int]] = [
    (envs.FailingEnv("reset"), policies.LinearPolicy, EnvError, "env.reset raised ValueError: the reset is broken", 0),
    (envs.FailingEnv("step", 1), policies.LinearPolicy, EnvError, "env.step raised ValueError: step 1 is broken", 0),
    (
        OddRewardEnv(),
        policies.LinearPolicy,
        EnvError,
        "the reward is no number: str 'much'",
        0,
    ),
    (
        BadObservationEnv(0),
        policies.LinearPolicy,
        EnvError,
        r"the observation is not of its space: got float32\(2,\)",
        0,
    ),
    (
        BadObservationEnv(1),
        policies.LinearPolicy,
        EnvError,
        r"the observation is not of its space: got float32\(2,\)",
        1,
    ),
    (
        BadObservationEnv(3),
        policies.LinearPolicy,
        EnvError,
        r"the last observation is not of its space: got float32",
        3,
    ),
    (
        envs.ChainEnv(),
        lambda spec: policies.FailingPolicy(spec, 1),
        PolicyError,
        "policy.get_action raised ValueError",
        0,
    ),
    (envs.ChainEnv(), FailingResetPolicy, PolicyError, "policy.reset raised ValueError: no reset", 0),
    (envs.ChainEnv(), FailingSeedPolicy, PolicyError, "policy.seed raised ValueError: no seed", 0),
    (OddStepEnv(1, None), policies.LinearPolicy, EnvError, "the reward is no number: NoneType None", 0),
    (OddStepEnv(1, "1.5"), policies.LinearPolicy, EnvError, "the reward is no number: str '1.5'", 0),
    (OddStepEnv(1, np.zeros(2)), policies.LinearPolicy, EnvError, "the reward is no number: ndarray", 0),
    (OddStepEnv(2, "no"), policies.LinearPolicy, EnvError, "terminated is no bool: str 'no'", 1),
    (OddStepEnv(3, 0.5), policies.LinearPolicy, EnvError, "truncated is no bool: float 0.5", 1),
    (
        OddStepEnv(4, [1]),
        policies.LinearPolicy,
        EnvError,
        "env.step raised TypeError: an info is a mapping, not list",
        0,
    ),
    (OldStepEnv(), policies.LinearPolicy, EnvError, r"env.step did not give \(observation, reward, terminated, tru", 0),
    (OldResetEnv(), policies.LinearPolicy, EnvError, r"env.reset did not give \(observation, info\)", 0),
    (envs.ChainEnv(), OutsidePolicy, PolicyError, r"the policy gave a bad action: got 7, expected a number of D", 0),
    (envs.ChainEnv(), TooManyActionsPolicy, PolicyError, r"the policy gave a bad action: got int64\(2,\), expected", 0),
    (envs.ChainEnv(), NoInfoPolicy, PolicyError, "policy.get_action raised TypeError", 0),
    (
        envs.ChainEnv(),
        lambda spec: adapt_policy(TextPredictor(), spec),
        PolicyError,
        r"TextPredictor.predict gave str, not \(action, state\)",
        0,
    ),
]


@pytest.mark.parametrize(("env", "policy", "kind", "message", "step"), FAILURES)
def test_failures_name_what_and_where(env: Any, policy: Any, kind: type[RolloutError], message: str, step: int) -> None:
    """The error's class says whose fault it is; its one line names worker, episode, seed and step."""
    seed = derive_seed(SEED, 6, "env")
    with pytest.raises(kind, match=rf"^{message}.* \(worker 2, episode 6, seed {seed}, step {step}\)$") as caught:
        run_numbers(make_worker(env, policy), [6])
    assert caught.value.hint
    assert "\n" not in caught.value.message


def test_an_episode_without_an_end_fails() -> None:
    """After as many steps as are allowed, and with the way out."""
    worker = make_worker(EndlessEnv(), policies.LinearPolicy, rules=EpisodeRules(step_guard=300))
    with pytest.raises(EnvError, match=r"the episode has no end: it is 300 steps long \(worker 2, episode 6") as caught:
        run_numbers(worker, [6])
    assert "--max-episode-length" in caught.value.hint


@pytest.mark.parametrize("flag", [np.True_, 1, np.int64(1)])
def test_what_is_as_good_as_a_bool_is_one(flag: Any) -> None:
    """A bool of numpy's, and a one."""
    chunk = run_numbers(make_worker(OddStepEnv(2, flag), policies.LinearPolicy), [6])
    assert ([1], [True]) == (chunk.lengths.tolist(), chunk.terminated.tolist())


def test_a_reward_may_be_an_array_of_one_number() -> None:
    """Many an environment gives such."""
    chunk = run_numbers(make_worker(OddStepEnv(1, np.array([2.5])), policies.LinearPolicy), [6])
    assert {2.5} == set(chunk.rewards.tolist())


def test_an_error_gets_its_place_once() -> None:
    """An adapter's error is told where it happened; one that knows its place, or has none, keeps its words."""
    error = placed(PolicyError("no pair", hint="return one", details="the story"), "worker 2, episode 6")
    assert ("no pair (worker 2, episode 6)", "return one", "the story") == (error.message, error.hint, error.details)
    assert error.message == placed(error, "worker 2, episode 7").message
    assert "no model" == placed(EnvLoadError("no model"), "worker 2, episode 6").message


def test_after_a_failure_the_worker_goes_on() -> None:
    """The failed episode leaves nothing behind; those finished before it stay."""
    worker = make_worker(envs.ChainEnv(), lambda spec: policies.FailingPolicy(spec, 4))
    worker.assign(range(20))
    with pytest.raises(PolicyError):
        worker.advance(math.inf)
    before = list(worker.finished_numbers)
    worker.retract()
    worker.update_agent(lambda observation: 1)
    chunk = run_numbers(worker, [30])
    assert [*before, 30] == chunk.numbers.tolist()
    assert len(chunk.rewards) == chunk.lengths.sum()
