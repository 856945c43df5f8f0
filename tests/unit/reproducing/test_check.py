"""Running episodes again with the run's own sampler, which notices nothing of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rollout_cli.config import CollectConfig
from rollout_cli.reproducing.check import ReproductionCheck, run_again
from rollout_cli.samplers import LocalSampler, MinTimesteps, MultiprocessingSampler, Sampler
from rollout_cli.workers import VecWorker
from tests.support.envs import ChainEnv
from tests.support.slow import chain

LINEAR = "tests.support.policies:LinearPolicy"
MAKERS: list[Callable[..., Sampler]] = [LocalSampler, MultiprocessingSampler]


@pytest.mark.parametrize("kind", MAKERS)
def test_numbers_and_totals_stay(kind: Callable[..., Sampler]) -> None:
    """After the check, the next call begins and counts where it would have without."""
    config = CollectConfig(timesteps=2_000)
    with kind(LINEAR, ChainEnv, n_workers=2, seed=3) as sampler:
        check = ReproductionCheck(config, sampler)
        for _ in check.watched(sampler.stream(MinTimesteps(2_000), base=0)):
            pass
        before = (sampler.next_number, sampler.total_env_steps)
        assert "checked" == check.verdict({})["status"]
        assert before == (sampler.next_number, sampler.total_env_steps)
        batch = sampler.obtain_samples(0, 10, None)
        assert before[0] == batch.numbers[0]


@pytest.mark.parametrize("kind", MAKERS)
def test_one_episode_is_run_again(kind: Callable[..., Sampler]) -> None:
    """It is that one, and no other runs."""
    with kind(LINEAR, chain, n_workers=3, seed=3) as sampler:
        first = sampler.obtain_samples(0, 200, None).split()[7]
        again = run_again(sampler, 7)
    assert again is not None
    assert [7] == again.numbers.tolist()
    np.testing.assert_array_equal(first.observations, again.observations[0])


@pytest.mark.parametrize("kind", MAKERS)
def test_what_was_stopped_is_not_checked(kind: Callable[..., Sampler]) -> None:
    """A run that is asked to end while it checks has no verdict."""
    with kind(LINEAR, ChainEnv, n_workers=1, seed=3) as sampler:
        check = ReproductionCheck(CollectConfig(timesteps=2_000), sampler)
        for _ in check.watched(sampler.stream(MinTimesteps(2_000), base=0)):
            pass
        sampler.request_stop()
        verdict = check.verdict({})
    assert ("unchecked", True) == (verdict["status"], "was ended" in verdict["reason"])


def test_a_run_without_episodes_is_not_checked() -> None:
    """Such as one that goes on with a dataset that lacks none."""
    with LocalSampler(LINEAR, ChainEnv, n_workers=1, seed=3) as sampler:
        verdict = ReproductionCheck(CollectConfig(timesteps=2_000), sampler).verdict({})
    assert ("unchecked", "no episode was run") == (verdict["status"], verdict["reason"])


def test_what_is_known_needs_no_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of arrival, and what a worker told, are reasons enough: nothing is run again."""
    monkeypatch.setattr("rollout_cli.reproducing.check.run_again", _never)
    arguments: dict[str, Any] = {"n_workers": 1, "seed": 3, "worker_class": VecWorker}
    with LocalSampler("tests.support.policies:GlobalNoisePolicy", ChainEnv, **arguments) as sampler:
        for config in (CollectConfig(timesteps=900, order="arrival"), CollectConfig(timesteps=900)):
            check = ReproductionCheck(config, sampler)
            for _ in check.watched(sampler.stream(MinTimesteps(900), base=0)):
                pass
            verdict = check.verdict({})
            assert "failed" == verdict["status"]
            assert ("kept as they ended" in verdict["reason"]) == (config.order == "arrival")


def _never(*_: Any) -> None:
    raise AssertionError("an episode was run again")
