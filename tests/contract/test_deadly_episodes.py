"""Episodes that kill worker after worker are named or skipped, and a call ends once its restarts are used up."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest

from rollout_cli.errors import WorkerError
from rollout_cli.samplers.supervision import Supervision
from rollout_cli.seeding import derive_seed
from rollout_cli.workers import VecWorker
from tests.contract.conftest import MakeSampler, running_workers
from tests.contract.dying import ONE_KIND, PROCESSES, ExitingEnv, kill, leave_at_once
from tests.contract.making import noisy, serial_batch
from tests.support.envs import ChainEnv, KillingEnv


@PROCESSES
@pytest.mark.parametrize("do", [kill, leave_at_once])
def test_an_episode_that_kills_its_worker_three_times_is_named(make_sampler: MakeSampler, do: Any) -> None:
    """The call ends with its number and seed, and how each death happened; the sampler works again."""
    sampler = make_sampler(noisy(ChainEnv()), KillingEnv(5) if do is kill else ExitingEnv())
    with pytest.raises(WorkerError) as caught:
        sampler.obtain_samples(0, 1000, None)
    how = "was killed by SIGKILL" if do is kill else "ended with exit code 7"
    found = re.fullmatch(
        rf"episode (\d+) \(seed (\d+)\) killed its worker 3 times: worker [01] {how} while it ran episode (\d+)",
        caught.value.message,
    )
    assert found is not None
    assert found[1] == found[3]
    assert derive_seed(5, int(found[1]), "env") == int(found[2])
    assert 3 <= len(re.findall(f"^worker [01] {how}", caught.value.details, re.MULTILINE))
    assert caught.value.hint
    assert [] == running_workers()
    assert 50 <= sampler.obtain_samples(0, 50, None, ChainEnv()).lengths.sum() < 60


class DeadlyEnv(ChainEnv):
    """Kills its process in the episodes with the given seeds.

    Args:
        seeds: Of `reset`.
    """

    def __init__(self, seeds: set[int]) -> None:
        super().__init__()
        self._seeds = seeds
        self._deadly = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._deadly = seed in self._seeds
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._deadly:
            kill()
        return super().step(action)


@ONE_KIND
@pytest.mark.parametrize("n_envs", [1, 4])
def test_killers_are_skipped_where_that_is_asked_for(make_sampler: MakeSampler, n_envs: int) -> None:
    """Exactly the deadly episodes are left out, also where several ran in their worker; the others are as ever."""
    killers = {3, 10}
    env = DeadlyEnv({derive_seed(5, number, "env") for number in killers})
    options: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": n_envs}} if n_envs > 1 else {}
    rules = Supervision(on_worker_death="skip")
    sampler = make_sampler(lambda observation: 1, env, supervision=rules, **options)
    sampler.tell = lambda text: None
    batch = sampler.obtain_samples(0, 100, None)
    assert killers == set(sampler.skipped)
    assert all("killed its worker 3 times" in reason for reason in sampler.skipped.values())
    numbers = batch.numbers.tolist()
    assert [number for number in range(numbers[-1] + 1) if number not in killers] == numbers
    whole = serial_batch(150, ChainEnv(), lambda observation: 1)
    lengths = dict(zip(whole.numbers.tolist(), whole.lengths.tolist(), strict=True))
    assert [lengths[number] for number in numbers] == batch.lengths.tolist()
    assert 100 <= batch.lengths.sum() < 109


@ONE_KIND
@pytest.mark.parametrize("allowed", [0, 1])
def test_past_the_budget_the_call_ends(make_sampler: MakeSampler, allowed: int) -> None:
    """The error says how each death happened."""
    sampler = make_sampler(noisy(ChainEnv()), ExitingEnv(), supervision=Supervision(max_worker_restarts=allowed))
    sampler.tell = lambda text: None
    after = " after 1 restart" if allowed else ""
    with pytest.raises(
        WorkerError, match=rf"^worker [01] ended with exit code 7 while it ran episode \d+{after}$"
    ) as caught:
        sampler.obtain_samples(0, 1000, None)
    assert allowed * 2 == len(re.findall("ended with exit code 7 while it ran episode", caught.value.details))
    assert "--max-worker-restarts" in caught.value.hint
    assert [] == running_workers()


def dying_factory() -> Any:
    os._exit(9)


class DyingPolicyFactory:
    """A policy that ends the process as it is unpickled."""

    def __reduce__(self) -> Any:
        return os._exit, (9,)

    def __call__(self, observation: Any) -> Any:
        return 1


@ONE_KIND
@pytest.mark.parametrize("what", ["environment", "policy"])
@pytest.mark.parametrize("verb", ["obtain_samples", "wait_until_started"])
def test_a_worker_that_cannot_be_built_without_dying(make_sampler: MakeSampler, what: str, verb: str) -> None:
    """After three times it is given up, and the error says so."""
    agent, env = (DyingPolicyFactory(), ChainEnv()) if what == "policy" else (noisy(ChainEnv()), dying_factory)
    sampler = make_sampler(agent, env)
    sampler.tell = lambda text: None
    with pytest.raises(WorkerError, match=r"^worker [01] died 3 times before it was ready: .* ended with exit code 9"):
        sampler.obtain_samples(0, 10, None) if verb == "obtain_samples" else sampler.wait_until_started()
    assert [] == running_workers()
