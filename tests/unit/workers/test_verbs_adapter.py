"""VerbsAdapter: garage's verbs alone are enough to run episodes by number, under the rules of a run."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Discrete

import rollout_cli
from rollout_cli.errors import EnvError, InternalError, PolicyError, UserCodeError
from rollout_cli.workers.rules import EpisodeRules, OnInvalidAction
from rollout_cli.workers.verbs_adapter import VerbsAdapter
from tests.support.envs import ChainEnv, EndlessEnv
from tests.support.policies import GlobalNoisePolicy, LinearPolicy
from tests.support.workers import PlainVerbs, VerbsOnly
from tests.unit.workers.making import run_numbers
from tests.unit.workers.making_custom import SPEC, factory, make


@pytest.mark.parametrize("kind", [PlainVerbs, VerbsOnly])
def test_a_class_with_garages_verbs_gives_its_episodes(kind: type[Any]) -> None:
    """All it recorded comes through, under the numbers it was given, in order."""
    worker = make(kind)
    assert isinstance(worker, VerbsAdapter)
    worker.assign([4, 7, 5])
    worker.advance(float("inf"))
    assert [4, 5, 7] == worker.finished_numbers
    lengths = worker.finished_lengths
    assert sum(lengths) == worker.finished_rows
    chunk = worker.take()
    assert chunk is not None
    assert [4, 5, 7] == chunk.numbers.tolist()
    assert lengths == chunk.lengths.tolist()
    assert chunk.lengths.tolist() == chunk.episode_infos.to_arrays()["length"].tolist()
    positions = [position for length in lengths for position in range(1, length + 1)]
    assert positions == chunk.env_infos.to_arrays()["position"].tolist()
    assert positions == (chunk.observations[0][:, 0] + 1).tolist()
    assert chunk.n_steps == len(chunk.agent_infos.to_arrays()["place"])
    assert chunk.terminated.all()
    assert worker.take() is None


@pytest.mark.parametrize("kind", [PlainVerbs, VerbsOnly])
def test_the_global_generators_are_seeded_for_each_number(kind: type[Any]) -> None:
    """What a policy draws from numpy in an episode is the same again under the same number."""
    worker = make(kind, GlobalNoisePolicy(SPEC))
    first = [_noise(worker, number) for number in (3, 4)]
    again = [_noise(make(kind, GlobalNoisePolicy(SPEC)), number) for number in (4, 3)]
    assert first[::-1] == again
    assert first[0] != first[1]


def _noise(worker: Any, number: int) -> float:
    chunk = run_numbers(worker, [number])
    seen = np.float64(chunk.observations[0][0].astype(np.float64).sum())
    return round(float((chunk.agent_infos.to_arrays()["place"][0] - seen) % 1.0), 9)


@pytest.mark.parametrize("kind", [PlainVerbs, VerbsOnly])
def test_more_episodes_than_one_get_the_next_numbers(kind: type[Any]) -> None:
    """A worker that gives three episodes at once uses three numbers; what is left over waits for later ones."""
    worker = make(kind, worker_args={"episodes_at_once": 3})
    worker.assign(range(4))
    worker.advance(float("inf"))
    assert list(range(4)) == worker.take().numbers.tolist()
    worker.assign([4, 5])
    worker.advance(-1.0)
    assert [4, 5] == worker.take().numbers.tolist()
    assert not worker.has_work


def test_left_over_episodes_are_dropped_with_their_policy() -> None:
    """After an update nothing of the old policy comes any more."""
    worker = make(PlainVerbs, worker_args={"episodes_at_once": 3})
    run_numbers(worker, [0])
    worker.update_agent({"gain": 0.5})
    worker.assign([1])
    worker.advance(-1.0)
    chunk = worker.take()
    seen = chunk.observations[0].astype(np.float64).sum(axis=1)
    np.testing.assert_array_equal((np.mod(seen, 1.0) * 0.5) % 1.0, chunk.agent_infos.to_arrays()["place"])


def test_the_verbs_work_without_a_sampler() -> None:
    """`rollout` numbers from 0 on; step by step it is the same."""
    worker = make(PlainVerbs, worker_args={"episodes_at_once": 2})
    assert [[0, 1], [2, 3]] == [worker.rollout().numbers.tolist() for _ in range(2)]
    worker.start_episode()
    while not worker.step_episode():
        pass
    assert [4, 5] == worker.collect_episode().numbers.tolist()
    by_step = make(VerbsOnly)
    assert [[0], [1]] == [by_step.rollout().numbers.tolist() for _ in range(2)]


def test_giving_up_numbers() -> None:
    """A number above the ceiling is not run, and a running one is forgotten."""
    worker = make(VerbsOnly)
    worker.update_env(EndlessEnv())
    worker.assign([2, 9])
    worker.advance(-1.0)
    assert worker.running
    worker.retract(above=5)
    assert worker.has_work
    worker.retract(above=1)
    assert not worker.has_work


def test_other_spaces_are_refused() -> None:
    """A batch of another environment is none of ours."""

    class Elsewhere(PlainVerbs):
        def batch(self, terminated: bool, truncated: bool) -> Any:
            batch = super().batch(terminated, truncated)
            spec = rollout_cli.EnvSpec(batch.env_spec.observation_space, Discrete(5))
            return rollout_cli.EpisodeBatch.from_list(spec, batch.to_list())

    with pytest.raises(UserCodeError, match="Elsewhere gave episodes of other spaces"):
        make(Elsewhere).rollout()


def test_deterministic_is_asked_of_the_policy() -> None:
    """A class that cannot know of `deterministic` does not get it; the policy does."""

    class Moody(LinearPolicy):
        deterministic = False

    policy = Moody(SPEC)
    make(PlainVerbs, policy, worker_args={"deterministic": True}).rollout()
    assert policy.deterministic


def test_policy_and_environment_in_either_order() -> None:
    """The worker gets the policy once the spaces are known."""
    worker = factory(PlainVerbs)(0)
    worker.update_agent(LinearPolicy(SPEC))
    with pytest.raises(InternalError, match="no environment yet"):
        _ = worker.env_spec
    worker.update_env(ChainEnv())
    assert [0] == worker.rollout().numbers.tolist()


def test_shutdown_reaches_the_worker() -> None:
    """It closes what it has."""
    inner: list[PlainVerbs] = []

    class Kept(PlainVerbs):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            inner.append(self)

    worker = make(Kept)
    worker.shutdown()
    assert inner[0].closed


# -- rules -------------------------------------------------------------------------------------------------------------


def test_an_episode_without_an_end_fails_where_the_adapter_steps() -> None:
    """By the steps since an episode began; its number is known, and so is the way out."""
    worker = factory(VerbsOnly, rules=EpisodeRules(step_guard=40))(0)
    worker.update_env(EndlessEnv())
    worker.update_agent(LinearPolicy(SPEC))
    worker.assign([3])
    with pytest.raises(EnvError, match=r"it is 40 steps long \(worker 0, episode 3\)") as caught:
        worker.advance(math.inf)
    assert 3 == caught.value.episode
    assert "--episode-step-guard" in caught.value.hint


def test_steps_are_counted_anew_for_each_episode() -> None:
    """Many short ones are no long one."""
    worker = make(VerbsOnly, rules=EpisodeRules(step_guard=15))
    worker.assign(range(10))
    worker.advance(math.inf)
    assert list(range(10)) == worker.finished_numbers
    assert sum(worker.finished_lengths) > 15


@pytest.mark.parametrize("kind", [PlainVerbs, VerbsOnly])
@pytest.mark.parametrize("rule", ["error", "clip", "warn"])
def test_actions_are_checked_when_they_are_taken(kind: type[Any], rule: OnInvalidAction) -> None:
    """Moving them is not possible any more: then, an action outside of its space is an error too."""
    made = factory(kind, rules=EpisodeRules(invalid_action=rule))
    worker = made(0)
    worker.update_env(ChainEnv())
    worker.update_agent(lambda observation: 7)
    worker.assign([3])
    worker.advance(math.inf)
    chunk, error = made.take(worker)
    if rule == "warn":
        assert error is None
        assert chunk is not None
        assert {7} == set(chunk.actions[0].tolist())
    else:
        assert chunk is None
        assert isinstance(error, PolicyError)
        assert 3 == error.episode
