"""FragmentWorker: policies and environments change in the middle of episodes, and what a policy draws goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rollout_cli.envs import describe_env
from rollout_cli.episode_batch import EnvSpec
from rollout_cli.workers import FragmentWorker
from tests.support.envs import ChainEnv, EndlessEnv
from tests.support.policies import GaragePolicy, GlobalNoisePolicy, OwnGeneratorPolicy
from tests.unit.workers.making import make_worker, run_numbers
from tests.unit.workers.making_fragments import CountingPolicy, make, rollouts, whole_episodes


class DrawingPolicy(GaragePolicy):
    """Tells what it draws from a generator, in its info."""

    def __init__(self, env_spec: EnvSpec, draw: Callable[[], float] | None = None) -> None:
        super().__init__(env_spec)
        self.rng = np.random.default_rng(0)

    def place(self, observation: Any, row: int) -> float:
        return float(self.rng.random())


class GlobalDrawingPolicy(DrawingPolicy):
    """Draws from numpy's global generator."""

    def place(self, observation: Any, row: int) -> float:
        return float(np.random.random())


class OneByOne:
    """Acts on one observation at a time, and has parameters."""

    drawing: type[GaragePolicy] = GlobalDrawingPolicy

    def __init__(self, env_spec: EnvSpec) -> None:
        self._policy = self.drawing(env_spec)

    def get_action(self, observation: Any) -> Any:
        return self._policy.get_action(observation)

    def set_param_values(self, params: Any) -> None:
        self._policy.set_param_values(params)


class OneByOneAlone(OneByOne):
    """The same with a generator of its own."""

    drawing = DrawingPolicy


@pytest.mark.parametrize("policy", [DrawingPolicy, GlobalDrawingPolicy, OneByOne, OneByOneAlone])
@pytest.mark.parametrize("parameters", [False, True])
def test_each_call_draws_anew_though_the_policy_is_sent_again(policy: Any, parameters: bool) -> None:
    """An update in the middle of episodes does not put what the policy draws from back to where it was before."""
    worker = make(EndlessEnv, policy, n_envs=2, timesteps_per_call=3)
    draws = []
    for _ in range(6):
        draws += worker.rollout().agent_infos["place"].tolist()
        worker.update_agent({"gain": 1.0} if parameters else policy(describe_env(EndlessEnv())))
    assert 36 == len(set(draws))


@pytest.mark.parametrize("policy", [DrawingPolicy, GlobalDrawingPolicy, OneByOne])
def test_the_same_calls_give_the_same_fragments(policy: Any) -> None:
    """Two workers of one seed draw alike, and one of another seed does not, whatever came before in the process."""
    runs = []
    for seed in (1, 1, 2):
        np.random.random(7)
        worker = FragmentWorker(seed=seed, max_episode_length=None, worker_number=0, n_envs=2, timesteps_per_call=2)
        worker.update_env(ChainEnv())
        worker.update_agent(policy(describe_env(ChainEnv())))
        places = []
        for _ in range(5):
            places += worker.rollout().agent_infos["place"].tolist()
            worker.update_agent({"gain": 0.5})
        runs.append(places)
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


@pytest.mark.parametrize("policy", [GlobalNoisePolicy, OwnGeneratorPolicy])
def test_a_policy_that_acts_one_by_one_and_draws_is_that_of_a_default_worker(policy: Any) -> None:
    """Where each row has a policy of its own, what it draws follows from the episode's number, from the first on."""

    class Alone:
        def __init__(self, env_spec: EnvSpec) -> None:
            self.inner = policy(env_spec)

        def get_action(self, observation: Any) -> Any:
            return self.inner.get_action(observation)

    found = whole_episodes(rollouts(make(policy=Alone), 10))
    numbers = sorted(found)
    chunk = run_numbers(make_worker(ChainEnv(), Alone), numbers)
    actions = np.concatenate([part.actions for number in numbers for part in found[number]])
    assert chunk.actions[0].tolist() == actions.tolist()


def test_parameters_reach_a_running_episode_and_leave_its_state() -> None:
    """After the update the episode goes on under the new parameters; the policy still knows how many steps it took."""
    worker = make(EndlessEnv, CountingPolicy, n_envs=2, timesteps_per_call=2)
    before = worker.rollout()
    worker.update_agent({"gain": 3.0})
    after = worker.rollout()
    assert [[1, 2, 1, 2], [3, 4, 3, 4]] == [batch.agent_infos["count"].tolist() for batch in (before, after)]
    assert [1.0, 3.0] == [float(batch.agent_infos["gain"][0]) for batch in (before, after)]
    assert [2, 2] == after.first_steps.tolist()


def test_a_new_policy_takes_over_and_is_reset() -> None:
    """The episodes go on; the policy, which has seen nothing of them, is reset in all rows first."""
    worker = make(EndlessEnv, CountingPolicy, n_envs=2, timesteps_per_call=2)
    worker.rollout()
    worker.update_agent(CountingPolicy(describe_env(EndlessEnv())))
    after = worker.rollout()
    assert [1, 2, 1, 2] == after.agent_infos["count"].tolist()
    assert [2, 2] == after.first_steps.tolist()


def test_a_new_environment_begins_new_episodes() -> None:
    """What ran in the old one is given up; no number is used again."""
    worker = make(EndlessEnv, n_envs=2)
    assert [0, 1] == worker.rollout().numbers.tolist()
    worker.update_env([EndlessEnv(), EndlessEnv()])
    batch = worker.rollout()
    assert ([2, 3], [0, 0]) == (batch.numbers.tolist(), batch.first_steps.tolist())
