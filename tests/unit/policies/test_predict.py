"""Objects with predict(observation, state, episode_start, deterministic)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rollout_cli.episode_batch import EnvSpec
from rollout_cli.errors import PolicyError, PolicyLoadError
from rollout_cli.policies import adapt_policy
from tests.support.policies import PredictPolicy

ENV_SPEC = EnvSpec(spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Discrete(10))
OBSERVATION = np.zeros(3, np.float32)


def test_the_state_is_kept_and_reset_clears_it() -> None:
    """The action depends on the steps since the last reset: the second episode repeats the first."""
    policy = adapt_policy(PredictPolicy(ENV_SPEC), ENV_SPEC)
    episodes = []
    for _ in range(2):
        policy.reset()
        episodes.append([policy.get_action(OBSERVATION)[0] for _ in range(4)])
    assert [3, 7, 1, 4] == episodes[0]
    assert episodes[0] == episodes[1]
    assert all(type(action) is np.int64 for action in episodes[0])


def test_episode_start_is_true_in_the_first_step_alone() -> None:
    """Predict sees no state and a true episode_start first, then the state it gave and a false one."""
    model = PredictPolicy(ENV_SPEC)
    policy = adapt_policy(model, ENV_SPEC)
    policy.reset()
    policy.get_action(OBSERVATION)
    policy.get_action(OBSERVATION)
    assert (None, [True], False) == (model.calls[0][0], model.calls[0][1].tolist(), model.calls[0][2])
    assert ([1], [False], False) == (model.calls[1][0].tolist(), model.calls[1][1].tolist(), model.calls[1][2])


def test_an_object_may_keep_what_it_was_given() -> None:
    """The mask that predict got in one step is not changed for the next."""
    kept = []

    class Keeping:
        def predict(self, observation: Any, episode_start: Any) -> Any:
            kept.append(episode_start)
            return np.int64(0), None

    policy = adapt_policy(Keeping(), ENV_SPEC)
    policy.reset()
    for _ in range(3):
        policy.get_action(OBSERVATION)
    assert [[True], [False], [False]] == [start.tolist() for start in kept]


def test_rows_are_reset_by_mask() -> None:
    """In a batch, only the rows of the mask begin anew."""
    policy = adapt_policy(PredictPolicy(ENV_SPEC), ENV_SPEC)
    observations = np.zeros((2, 3), np.float32)
    policy.reset(np.ones(2, bool))
    assert [3, 3] == policy.get_actions(observations)[0].tolist()
    policy.reset(np.array([False, True]))
    assert [7, 3] == policy.get_actions(observations)[0].tolist()
    assert [1, 7] == policy.get_actions(observations)[0].tolist()


def test_deterministic_is_passed_on() -> None:
    """Predict is told whether it is to be deterministic."""
    model = PredictPolicy(ENV_SPEC)
    policy = adapt_policy(model, ENV_SPEC, deterministic=True)
    policy.get_action(OBSERVATION)
    assert model.calls[0][2] is True


class Bare:
    """Its predict knows none of the keywords."""

    def __init__(self, result: Any) -> None:
        self.result = result

    def predict(self, observation: Any) -> Any:
        return self.result


def test_a_predict_without_keywords() -> None:
    """Only what the method takes is given; it cannot be deterministic then."""
    assert (2, {}) == adapt_policy(Bare((2, None)), ENV_SPEC).get_action(OBSERVATION)
    with pytest.raises(PolicyLoadError, match="no deterministic mode"):
        adapt_policy(Bare((2, None)), ENV_SPEC, deterministic=True)


def test_a_predict_that_gives_no_pair() -> None:
    """What is not (action, state) is an error that says so."""
    with pytest.raises(PolicyError, match=r"gave int, not \(action, state\)"):
        adapt_policy(Bare(2), ENV_SPEC).get_action(OBSERVATION)


def test_parameters_by_the_verbs_that_there_are() -> None:
    """get_parameters and set_parameters are used; without any verb only an empty set is taken."""

    class Model(PredictPolicy):
        def __init__(self, env_spec: EnvSpec) -> None:
            super().__init__(env_spec)
            self.parameters: Any = {"policy": 1}

        def get_parameters(self) -> Any:
            return self.parameters

        def set_parameters(self, params: Any) -> None:
            self.parameters = params

    model = Model(ENV_SPEC)
    policy = adapt_policy(model, ENV_SPEC)
    assert {"policy": 1} == policy.get_param_values()
    policy.set_param_values({"policy": 2})
    assert {"policy": 2} == model.parameters
    plain = adapt_policy(PredictPolicy(ENV_SPEC), ENV_SPEC)
    plain.set_param_values(plain.get_param_values())
    with pytest.raises(PolicyError, match="no parameters"):
        plain.set_param_values({"policy": 2})
