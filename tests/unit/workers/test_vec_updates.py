"""VecWorker: new policies, parameters and environments reach every row, one by one where there is one a row."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest
from gymnasium.wrappers import TimeLimit

from rollout_cli.chunk import concatenate
from rollout_cli.envs import NewEnvUpdate, SetTaskUpdate, as_env_source, describe_env
from rollout_cli.errors import EnvLoadError, PolicyLoadError
from rollout_cli.policies import policy_source
from rollout_cli.samplers import Episodes, EpisodesPerWorker, LocalSampler, MultiprocessingSampler
from rollout_cli.workers import VecWorker
from tests.support import envs, rows
from tests.unit.workers.making import SEED, assert_same_episodes, make_worker, run_numbers
from tests.unit.workers.making_vec import Row, make_vec, tags


def test_a_new_policy_in_the_middle_drops_what_runs() -> None:
    """After an update, no step of the old policy is left, and nothing of the new one's episodes is missing."""
    worker = make_vec([Row(tag, 4) for tag in range(2)])
    worker.assign(range(4))
    worker.advance(-1.0)
    worker.retract()
    worker.update_agent({"action": 1})
    chunk = run_numbers(worker, range(4))
    assert ([4] * 4, {1}) == (chunk.lengths.tolist(), set(chunk.actions[0].tolist()))


class GainPolicy(rows.AlonePolicy):
    """Takes parameters, and has no get_actions."""

    gain = 1

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        return self.gain, {}

    def set_param_values(self, params: dict[str, Any]) -> None:
        self.gain = params["gain"]


@pytest.mark.parametrize("source", [False, True])
def test_parameters_reach_every_row(source: bool) -> None:
    """Where each row has a copy of the policy, each copy takes the parameters, and keeps those it has."""
    worker = make_vec([Row(tag, 2) for tag in range(3)])
    if source:
        sys.modules.setdefault(__name__, sys.modules[GainPolicy.__module__])
    worker.update_agent(policy_source(f"{__name__}:GainPolicy") if source else GainPolicy(worker.env_spec))
    assert [1] * 6 == run_numbers(worker, range(3)).actions[0].tolist()
    worker.update_agent({"gain": 0})
    assert [0] * 6 == run_numbers(worker, range(3)).actions[0].tolist()
    worker.update_env(NewEnvUpdate(Row))
    assert {0} == set(run_numbers(worker, range(3)).actions[0].tolist())


class LockedPolicy(rows.AlonePolicy):
    """Cannot be copied."""

    def __init__(self, env_spec: Any) -> None:
        super().__init__(env_spec)
        self.lock = threading.Lock()


def test_a_policy_that_cannot_be_copied_is_refused() -> None:
    """Several rows need several copies of a policy that acts on one observation."""
    with pytest.raises(PolicyLoadError, match="LockedPolicy cannot be pickled") as caught:
        make_vec([Row(), Row()], LockedPolicy)
    assert "get_actions" in caught.value.hint


def test_one_environment_is_copied_for_each_row() -> None:
    """An environment that is given itself runs in the first row, and copies of it in the others."""
    env = Row()
    worker = VecWorker(seed=SEED, max_episode_length=None, worker_number=2, n_envs=3)
    worker.update_env(env)
    worker.update_agent(rows.TablePolicy(worker.env_spec))
    chunk = run_numbers(worker, range(6))
    assert 2 == env.resets
    assert_same_episodes(run_numbers(make_worker(Row(), rows.TablePolicy), range(6)), chunk)


def test_lists_have_one_entry_a_row() -> None:
    """A list of another length is refused."""
    worker = VecWorker(seed=SEED, max_episode_length=None, worker_number=2, n_envs=3)
    with pytest.raises(EnvLoadError, match="one environment a row has 3 entries, not 2"):
        worker.update_env([Row(), Row()])


@pytest.mark.parametrize("other", [envs.BoxEnv(), TimeLimit(envs.ChainEnv(), 5)])
def test_environments_that_differ_are_refused(other: Any) -> None:
    """All rows have the same spaces and limit."""
    worker = VecWorker(seed=SEED, max_episode_length=None, worker_number=2, n_envs=2)
    with pytest.raises(EnvLoadError, match="different spaces or limits"):
        worker.update_env([envs.ChainEnv(), other])


class TaskEnv(Row):
    """A task is which environment it is."""

    def set_task(self, task: int) -> None:
        self.tag = task


def test_updates_by_row() -> None:
    """A list of updates changes each row's environment by its own one; None leaves a worker as it is."""
    worker = make_vec([TaskEnv(), TaskEnv()])
    before = worker._slots[0].env
    worker.update_env([SetTaskUpdate(TaskEnv, 7), SetTaskUpdate(TaskEnv, 8)])
    worker.update_env(None)
    worker.update_agent(None)
    assert before is worker._slots[0].env
    assert {0: 7, 1: 8, 2: 7} == tags(run_numbers(worker, range(3)))


def test_new_spaces_need_a_policy_for_them() -> None:
    """With an environment of other spaces, the policy that follows is adapted to them."""
    worker = make_vec([Row(), Row()])
    run_numbers(worker, range(2))
    worker.update_env(as_env_source(envs.DictEnv))
    worker.update_agent(rows.TablePolicy(worker.env_spec))
    expected = run_numbers(make_worker(envs.DictEnv(), rows.TablePolicy), range(4))
    assert_same_episodes(expected, run_numbers(worker, range(4)))


# -- through the samplers ----------------------------------------------------------------------------------------------

SAMPLERS = [LocalSampler, MultiprocessingSampler]
OPTIONS: dict[str, Any] = {"n_workers": 2, "seed": 5, "worker_class": VecWorker, "worker_args": {"n_envs": 2}}


@pytest.mark.parametrize("sampler_class", SAMPLERS)
def test_lists_of_environments_a_worker_and_row(sampler_class: type[Any]) -> None:
    """With a list a worker, number i belongs to worker i % n_workers, and goes round its rows; updates do likewise."""
    made = [[TaskEnv(0), TaskEnv(1)], [TaskEnv(10), TaskEnv(11)]]
    expected = {number: 10 * (number % 2) + number // 2 % 2 for number in range(12)}
    tasks = [
        [SetTaskUpdate(TaskEnv, 20 + row) for row in range(2)],
        [SetTaskUpdate(TaskEnv, 30 + row) for row in (0, 1)],
    ]
    with sampler_class(rows.TablePolicy(describe_env(made[0][0])), made, **OPTIONS) as sampler:
        assert expected == tags(concatenate(list(sampler.stream(Episodes(0, 12)))))
        second = tags(concatenate(list(sampler.stream(Episodes(0, 8), env_update=tasks))))
    assert {number + 12: expected[number] + 20 for number in range(8)} == second


@pytest.mark.parametrize("sampler_class", SAMPLERS)
def test_exact_counts_episodes(sampler_class: type[Any]) -> None:
    """Each worker gives exactly so many episodes, though they are no multiple of its rows."""
    with sampler_class(rows.TablePolicy(describe_env(Row())), Row(), **OPTIONS) as sampler:
        chunk = sorted(sampler.stream(EpisodesPerWorker(5)), key=lambda part: int(part.numbers[0]))
    whole = concatenate(chunk)
    assert (list(range(10)), [0] * 5 + [1] * 5) == (whole.numbers.tolist(), whole.workers.tolist())
