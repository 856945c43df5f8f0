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
        "env.step raised ValueError: could not convert string to float",
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
