"""LocalSampler.obtain_samples goes on with the fragments of its workers; whatever needs whole episodes refuses them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from rollout_cli.config import CollectConfig
from rollout_cli.envs import describe_env
from rollout_cli.episode_batch import EpisodeBatch
from rollout_cli.errors import EnvError, UsageError
from rollout_cli.samplers import EpisodesPerWorker, LocalSampler, MinTimesteps, MultiprocessingSampler
from rollout_cli.workers import FragmentWorker, WorkerFactory
from tests.support.envs import ChainEnv, EndlessEnv, FailingEnv
from tests.support.policies import GaragePolicy, GlobalNoisePolicy, LinearPolicy
from tests.unit.workers.making import SEED
from tests.unit.workers.making_fragments import CountingPolicy, by_number, make, rollouts


def sampler(**options: Any) -> LocalSampler:
    policy = LinearPolicy(describe_env(ChainEnv()))
    options = {"n_workers": 2, "worker_args": {"n_envs": 3, "timesteps_per_call": 4}, **options}
    return LocalSampler(policy, ChainEnv(), seed=SEED, worker_class=FragmentWorker, **options)


def test_obtain_samples_gives_whole_rollouts_and_goes_on() -> None:
    """Each call gives the fewest rollouts with enough steps, and the next one continues the episodes of the last."""
    with sampler() as source:
        batches = [source.obtain_samples(itr, 20, None) for itr in range(6)]
    assert [24] * 6 == [len(batch.rewards) for batch in batches]
    assert 6 * 24 == source.total_env_steps
    assert 1 + max(int(batch.numbers.max()) for batch in batches) == source.next_number
    expected = by_number(rollouts(make(), 12))
    actual = by_number(batches)
    assert {number: _rewards(parts) for number, parts in expected.items()} == {
        number: _rewards(parts) for number, parts in actual.items()
    }


def _rewards(parts: Iterable[EpisodeBatch]) -> list[float]:
    return [reward for part in parts for reward in part.rewards.tolist()]


def test_updates_reach_the_worker() -> None:
    """Parameters of a call hold for its steps, and a new environment is stepped from then on."""
    policy = CountingPolicy(describe_env(EndlessEnv()))
    with LocalSampler(policy, EndlessEnv(), seed=0, n_workers=1, worker_class=FragmentWorker) as source:
        assert 1.0 == source.obtain_samples(0, 1, None).agent_infos["gain"][0]
        assert 4.0 == source.obtain_samples(1, 1, {"gain": 4.0}).agent_infos["gain"][0]
        batch = source.obtain_samples(2, 1, None, ChainEnv())
    assert not batch.first_steps.any()
    assert 8 == batch.numbers.min()


def test_workers_with_policies_of_their_own_take_turns() -> None:
    """With a list of policies, worker w runs the numbers that are w modulo the number of workers."""
    spec = describe_env(EndlessEnv())
    policies = [GaragePolicy(spec), GaragePolicy(spec)]
    options: dict[str, Any] = {"worker_args": {"n_envs": 2, "timesteps_per_call": 1}}
    with LocalSampler(policies, EndlessEnv(), seed=0, n_workers=2, worker_class=FragmentWorker, **options) as source:
        batches = [source.obtain_samples(itr, 2, None) for itr in range(4)]
    assert [[0, 2], [1, 3], [0, 2], [1, 3]] == [batch.numbers.tolist() for batch in batches]


def test_after_a_shutdown_no_number_is_used_again() -> None:
    """New workers begin new episodes, above all earlier ones."""
    with sampler() as source:
        source.obtain_samples(0, 12, None)
        used = source.next_number
        source.shutdown_worker()
        batch = source.obtain_samples(1, 12, None)
    assert batch.numbers.min() >= used
    assert not batch.first_steps.any()


def test_the_callers_generators_stay_as_they_are() -> None:
    """What the caller draws does not depend on the sampling."""
    np.random.seed(3)
    expected = np.random.random(3).tolist()
    np.random.seed(3)
    with LocalSampler(
        GlobalNoisePolicy(describe_env(ChainEnv())), ChainEnv(), n_workers=1, worker_class=FragmentWorker
    ) as source:
        actual = []
        for itr in range(3):
            source.obtain_samples(itr, 10, {"gain": 0.5})
            actual.append(float(np.random.random()))
    assert expected == actual


def test_after_an_error_new_episodes_begin() -> None:
    """The error tells where it happened; what ran then is given up, and the sampler works on."""
    policy = LinearPolicy(describe_env(ChainEnv()))
    with LocalSampler(policy, FailingEnv("step", 9), seed=0, n_workers=1, worker_class=FragmentWorker) as source:
        used: set[int] = set()
        with pytest.raises(EnvError, match=r"^env\.step raised ValueError") as caught:
            used.update(_numbers_until_it_fails(source))
        assert "step 9 is broken" in caught.value.details
        batch = source.obtain_samples(0, 8, None)
    assert not batch.first_steps.any()
    assert used.isdisjoint(batch.numbers.tolist())


def _numbers_until_it_fails(source: LocalSampler) -> Iterable[int]:
    while True:
        yield from source.obtain_samples(0, 8, None).numbers.tolist()


@pytest.mark.parametrize("steps", [0, -1])
def test_samples_are_at_least_one(steps: int) -> None:
    """As for whole episodes."""
    with sampler() as source, pytest.raises(ValueError, match="must be at least 1"):
        source.obtain_samples(0, steps, None)


def test_elsewhere_it_is_refused_by_name() -> None:
    """Whatever needs whole episodes says so before anything runs, and what to use."""
    policy, where = (
        LinearPolicy(describe_env(ChainEnv())),
        "FragmentWorker gives parts of episodes, which {} cannot use",
    )
    factory = WorkerFactory(n_workers=1, worker_class=FragmentWorker)
    with pytest.raises(UsageError, match=where.format("MultiprocessingSampler")) as caught:
        MultiprocessingSampler(policy, ChainEnv(), worker_factory=factory)
    assert "LocalSampler.obtain_samples" in caught.value.hint
    with sampler() as source:
        with pytest.raises(UsageError, match=where.format("obtain_exact_episodes")):
            source.obtain_exact_episodes(1, None)
        for plan in (MinTimesteps(1), EpisodesPerWorker(1)):
            with pytest.raises(UsageError, match=where.format("a stream of whole episodes")):
                next(source.stream(plan))


@pytest.mark.parametrize("kind", ["multiprocessing", "local"])
def test_a_dataset_refuses_it(kind: Any, tmp_path: Any) -> None:
    """`--worker-class` with it ends before a folder is made."""
    from rollout_cli.collect import collect

    config = CollectConfig(
        timesteps=5, workers=1, sampler=kind, worker_class="rollout_cli.workers:FragmentWorker", output=tmp_path / "out"
    )
    with pytest.raises(UsageError, match="FragmentWorker gives parts of episodes, which a dataset cannot use"):
        collect(config)
    assert not (tmp_path / "out").exists()
