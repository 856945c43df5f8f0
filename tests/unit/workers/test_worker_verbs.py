"""DefaultWorker's verbs: in their order, out of it, and its updates."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest

from rollout_cli.envs import NewEnvUpdate
from rollout_cli.errors import InternalError
from rollout_cli.workers import DefaultWorker
from tests.support import envs, policies
from tests.unit.workers.making import make_worker, run_numbers

# -- garage's verbs ----------------------------------------------------------------------------------------------------


def test_rollout_gives_one_episode_after_another() -> None:
    """Without assigned numbers, `rollout` runs 0, 1, 2, …, each batch one episode."""
    worker = make_worker(envs.ChainEnv())
    batches = [worker.rollout() for _ in range(3)]
    assert [[0], [1], [2]] == [batch.numbers.tolist() for batch in batches]
    expected = run_numbers(make_worker(envs.ChainEnv()), range(3))
    assert expected.rewards.tolist() == [reward for batch in batches for reward in batch.rewards.tolist()]


def test_assigned_numbers_come_first_and_lowest_first() -> None:
    """`start_episode` begins the lowest assigned number, and goes on after the last one."""
    worker = make_worker(envs.ChainEnv())
    worker.assign([9, 4])
    assert [4, 9, 10] == [int(worker.rollout().numbers[0]) for _ in range(3)]


def test_stepping_by_hand() -> None:
    """`step_episode` takes one step and says when the episode has ended; episodes wait until they are collected."""
    worker = make_worker(envs.SleepyEnv(seconds=0.0, length=3))
    ended = []
    for _ in range(2):
        worker.start_episode()
        ended.append([worker.step_episode() for _ in range(3)])
    assert [[False, False, True]] * 2 == ended
    batch = worker.collect_episode()
    assert ([0, 1], [3, 3]) == (batch.numbers.tolist(), batch.lengths.tolist())


def test_starting_again_drops_the_running_episode() -> None:
    """An episode that was begun and left leaves nothing behind."""
    worker = make_worker(envs.SleepyEnv(seconds=0.0, length=3))
    worker.start_episode()
    worker.step_episode()
    batch = worker.rollout()
    assert ([1], [3]) == (batch.numbers.tolist(), batch.lengths.tolist())


def test_advance_takes_at_least_one_step() -> None:
    """With a deadline that has passed, one step is taken; with one far away, all assigned episodes are run."""
    worker = make_worker(envs.SleepyEnv(seconds=0.0, length=3))
    worker.assign([0, 1])
    worker.advance(-1.0)
    assert (True, []) == (worker.running, worker.finished_numbers)
    worker.advance(math.inf)
    assert (False, [0, 1], 6) == (worker.has_work, worker.finished_numbers, worker.finished_rows)


def test_retracting_gives_up_what_is_above() -> None:
    """Waiting and running numbers above a ceiling are dropped, what is finished stays; without a ceiling, all go."""
    worker = make_worker(envs.SleepyEnv(seconds=0.0, length=3))
    worker.assign([2, 5, 7])
    worker.advance(-1.0)
    worker.retract(above=5)
    assert (True, True) == (worker.running, worker.has_work)
    worker.advance(math.inf)
    assert [2, 5] == worker.finished_numbers
    worker.assign([8, 9])
    worker.advance(-1.0)
    worker.retract()
    assert (False, False, [2, 5]) == (worker.running, worker.has_work, worker.finished_numbers)


def test_a_running_episode_above_the_ceiling_is_dropped() -> None:
    """The episode that runs is no exception."""
    worker = make_worker(envs.SleepyEnv(seconds=0.0, length=3))
    worker.assign([4])
    worker.advance(-1.0)
    worker.retract(above=3)
    assert (False, False) == (worker.running, worker.has_work)


@pytest.mark.parametrize("verb", ["step_episode", "collect_episode"])
def test_verbs_out_of_order_are_refused(verb: str) -> None:
    """Stepping or collecting without an episode says so."""
    worker = make_worker(envs.ChainEnv())
    with pytest.raises(InternalError, match=f"{verb} was called with no"):
        getattr(worker, verb)()


def test_a_worker_without_policy_or_environment_says_so() -> None:
    """Starting before the updates names what is missing."""
    worker = DefaultWorker(seed=0, max_episode_length=None, worker_number=0)
    with pytest.raises(InternalError, match="update_env"):
        _ = worker.env_spec
    worker.update_env(envs.ChainEnv())
    with pytest.raises(InternalError, match="update_agent"):
        worker.start_episode()


def test_pickling_is_refused_and_names_the_factory() -> None:
    """A worker holds what belongs to its process; its factory is what crosses the border."""
    with pytest.raises(InternalError, match="DefaultWorker cannot be pickled") as caught:
        pickle.dumps(make_worker(envs.ChainEnv()))
    assert "WorkerFactory" in caught.value.hint


# -- updates -----------------------------------------------------------------------------------------------------------


def test_parameters_reach_the_policy() -> None:
    """A dict is parameters for the policy that is there; None changes nothing."""
    worker = make_worker(envs.ChainEnv())
    before = run_numbers(worker, [0])
    worker.update_agent({"gain": 0.5})
    worker.update_agent(None)
    after = run_numbers(worker, [0])
    places = [[row["place"] for row in chunk.agent_infos.to_dicts()] for chunk in (before, after)]
    assert places[0] != places[1]


def test_parameters_without_a_policy_are_refused() -> None:
    """There is nothing to set them on."""
    worker = DefaultWorker(seed=0, max_episode_length=None, worker_number=0)
    worker.update_env(envs.ChainEnv())
    with pytest.raises(InternalError, match="no policy"):
        worker.update_agent({"gain": 1.0})


class ClosingEnv(envs.ChainEnv):
    """Notes that it was closed."""

    closed = False

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("update", [envs.ChainEnv, lambda: NewEnvUpdate(envs.ChainEnv)])
def test_a_replaced_environment_is_closed(update: Any) -> None:
    """Whether by a whole environment or by an update, what is replaced is closed, and the running episode forgotten."""
    env = ClosingEnv()
    worker = make_worker(env)
    worker.start_episode()
    worker.update_env(update())
    assert (True, False) == (env.closed, worker.running)


def test_shutting_down_closes_the_environment() -> None:
    """Nothing stays open behind a worker, however often it is shut down."""
    env = ClosingEnv()
    worker = make_worker(env)
    worker.shutdown()
    worker.shutdown()
    assert env.closed


def test_other_spaces_need_the_finished_episodes_taken() -> None:
    """Episodes of two environments with different spaces cannot share columns."""
    worker = make_worker(envs.ChainEnv())
    worker.start_episode()
    while not worker.step_episode():
        pass
    with pytest.raises(InternalError, match="before the finished episodes were taken"):
        worker.update_env(envs.TupleEnv())


def test_other_spaces_are_recorded_from_then_on() -> None:
    """After the episodes were taken, an environment with other spaces takes over, policy included."""
    worker = make_worker(envs.ChainEnv(), lambda spec: lambda observation: 1)
    run_numbers(worker, [0])
    worker.update_env(envs.MultiBinaryEnv())
    worker.update_agent(lambda observation: np.zeros(4, np.int8))
    assert (np.dtype(np.int8), (2, 2)) == (
        run_numbers(worker, [0]).observations[0].dtype,
        run_numbers(worker, [1]).observations[0].shape[1:],
    )


def test_facts_name_the_user_s_own_classes() -> None:
    """What a dataset records of policy and environment is their classes."""
    facts = make_worker(envs.ChainEnv()).facts()
    assert ("tests.support.policies.LinearPolicy", "tests.support.envs.ChainEnv") == (
        facts["policy_class"],
        facts["env"]["class"],
    )


def test_deterministic_reaches_the_policy() -> None:
    """A policy with a deterministic mode is asked for it."""
    made: list[policies.PredictPolicy] = []

    def make(spec: Any) -> policies.PredictPolicy:
        made.append(policies.PredictPolicy(spec))
        return made[-1]

    run_numbers(make_worker(envs.ChainEnv(), make, deterministic=True), [0])
    assert {True} == {deterministic for _, _, deterministic in made[0].calls}
