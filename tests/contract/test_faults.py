"""Episodes that fail or take too long: they end the call, are run again, or are left out, over every backend."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from rollout_cli.errors import EnvError, PolicyError, WorkerError
from rollout_cli.samplers import Sampler, Supervision
from rollout_cli.seeding import derive_seed
from rollout_cli.workers import VecWorker
from tests.contract.conftest import MakeSampler, running_workers
from tests.contract.making import assert_same_batches, noisy, serial_batch
from tests.support.envs import ChainEnv
from tests.support.policies import GaragePolicy

ONE_KIND = pytest.mark.parametrize("backend", ["forkserver"], indirect=True)
FAILING = {0, 3, 4, 10}


def one(observation: Any) -> int:
    return 1


def seeds(*numbers: int) -> set[int]:
    return {derive_seed(5, number, "env") for number in numbers}


class SeededFaultEnv(ChainEnv):
    """Does something in the first step of some episodes, as often as it can leave a file as a sign of that.

    Args:
        seeds: Of the resets of these episodes.
        signs: A folder for the signs; None where it does it each time.
        times: How often, in each episode.
    """

    def __init__(self, seeds: set[int], signs: Path | None = None, times: int = 1) -> None:
        super().__init__()
        self._seeds, self._signs, self._times = seeds, signs, times
        self._seed = 0
        self._spoilt = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self._spoilt:
            raise RuntimeError("an environment that has failed is of no use any more")
        self._seed = seed or 0
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._seed in self._seeds and self._position == 0 and self._is_time():
            self.fault()
        return super().step(action)

    def _is_time(self) -> bool:
        if self._signs is None:
            return True
        signs = [self._signs / f"{self._seed}-{time}" for time in range(self._times)]
        missing = next((sign for sign in signs if not sign.exists()), None)
        if missing is not None:
            missing.touch()
        return missing is not None

    def fault(self) -> None:
        self._spoilt = True
        raise ValueError("something is broken")


class NanEnv(SeededFaultEnv):
    """Gives a reward that is no number, which nobody sees before the episode has ended."""

    def __init__(self, seeds: set[int], signs: Path | None = None, times: int = 1) -> None:
        super().__init__(seeds, signs, times)
        self._is_wrong = False

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        wrong, self._is_wrong = self._is_wrong, False
        return observation, float("nan") if wrong else reward, terminated, truncated, info

    def fault(self) -> None:
        self._is_wrong = True


class SleepingEnv(SeededFaultEnv):
    """Its step never returns, and takes no notice of any signal that can be taken notice of."""

    def fault(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        time.sleep(600)


class CrawlingEnv(SeededFaultEnv):
    """Takes ever more steps, none of which takes long."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._seed in self._seeds:
            time.sleep(0.01)
            self._position = 0
        return super().step(action)

    def fault(self) -> None:
        pass


def vectorised(n_envs: int) -> dict[str, Any]:
    return {"worker_class": VecWorker, "worker_args": {"n_envs": n_envs}} if n_envs > 1 else {}


def listened_to(sampler: Sampler) -> list[str]:
    """Return the list of what a sampler tells from now on."""
    told: list[str] = []
    sampler.tell = told.append
    return told


REASONS = {
    SeededFaultEnv: "env.step raised ValueError: something is broken",
    NanEnv: "the reward is not a number (nan)",
}
each_fault = pytest.mark.parametrize("kind", REASONS)


@each_fault
@pytest.mark.parametrize("n_envs", [1, 4])
def test_episodes_that_fail_are_run_again(
    make_sampler: MakeSampler, n_envs: int, kind: type[SeededFaultEnv], tmp_path: Path
) -> None:
    """In a worker that is built anew they give what they would have given; each failure is told."""
    env = kind(seeds(*FAILING), tmp_path, times=3)
    sampler = make_sampler(one, env, supervision=Supervision(on_env_error="retry"), **vectorised(n_envs))
    told = listened_to(sampler)
    batch = sampler.obtain_samples(0, 200, None)
    assert_same_batches(serial_batch(200, ChainEnv(), one), batch)
    # Of several episodes in one chunk that are not sound, the first one is told.
    assert 3 * len(FAILING) == len(told) or (kind is NanEnv and 3 <= len(told) < 3 * len(FAILING))
    assert all(REASONS[kind] in text for text in told)
    assert "(3 of 3)" in " ".join(told)
    assert {} == sampler.skipped


@each_fault
def test_after_three_times_more_the_error_is_told(make_sampler: MakeSampler, kind: type[SeededFaultEnv]) -> None:
    """An episode that always fails ends the call, after what was finished before it."""
    rules = Supervision(on_env_error="retry")
    sampler = make_sampler(one, kind(seeds(3)), supervision=rules, n_workers=1, seed=5)
    listened_to(sampler)
    with pytest.raises(EnvError, match=rf"{re.escape(REASONS[kind])} \(worker 0, episode 3") as caught:
        sampler.obtain_samples(0, 200, None)
    assert "episode 3 failed 4 times" in caught.value.hint
    assert 3 == sampler.next_number


@each_fault
@pytest.mark.parametrize("n_envs", [1, 4])
@pytest.mark.parametrize("verb", ["samples", "exact"])
def test_episodes_that_fail_are_skipped(
    make_sampler: MakeSampler, n_envs: int, verb: str, kind: type[SeededFaultEnv]
) -> None:
    """Exactly these are missing, and are named with their reasons; they count as no steps."""
    env = kind(seeds(*FAILING))
    sampler = make_sampler(one, env, supervision=Supervision(on_env_error="skip"), **vectorised(n_envs))
    told = listened_to(sampler)
    batch = sampler.obtain_samples(0, 200, None) if verb == "samples" else sampler.obtain_exact_episodes(11, None)
    assert FAILING == set(sampler.skipped)
    assert len(told) >= len(FAILING)
    assert all(REASONS[kind] in reason for reason in sampler.skipped.values())
    whole = serial_batch(400, ChainEnv(), one)
    lengths = dict(zip(whole.numbers.tolist(), whole.lengths.tolist(), strict=True))
    numbers = batch.numbers.tolist()
    assert [lengths[number] for number in numbers] == batch.lengths.tolist()
    if verb == "exact":
        assert [number for number in range(22) if number not in FAILING] == numbers
        assert 22 == sampler.next_number
    else:
        assert [number for number in range(numbers[-1] + 1) if number not in FAILING] == numbers
        assert 200 <= batch.lengths.sum() < 209


class PickyPolicy(GaragePolicy):
    """Raises where it sees an episode of a certain length, of any row."""

    length = 9

    def get_actions(self, observations: Any) -> Any:
        if (observations[:, 1] == self.length).any():
            raise ValueError("not that one")
        return super().get_actions(observations)


@ONE_KIND
def test_where_all_rows_may_have_been_the_reason_each_is_run_alone(make_sampler: MakeSampler) -> None:
    """A policy for all rows fails for one of them: exactly such episodes are skipped."""
    policy = noisy(ChainEnv(), PickyPolicy)
    sampler = make_sampler(policy, ChainEnv(), supervision=Supervision(on_env_error="skip"), **vectorised(3))
    listened_to(sampler)
    sampler.obtain_exact_episodes(10, None)
    whole = serial_batch(300, ChainEnv(), one)
    lengths = dict(zip(whole.numbers.tolist(), whole.lengths.tolist(), strict=True))
    assert {number for number in range(20) if lengths[number] == PickyPolicy.length} == set(sampler.skipped)


def test_a_policy_that_always_raises_ends_the_run(make_sampler: MakeSampler) -> None:
    """Where nothing but skipped episodes comes, the call fails in the end."""

    def broken(observation: Any) -> int:
        raise ValueError("no action today")

    sampler = make_sampler(broken, ChainEnv(), supervision=Supervision(on_env_error="skip"))
    listened_to(sampler)
    with pytest.raises(PolicyError, match=r"100 episodes in a row had to be skipped; the last one: .*no action today"):
        sampler.obtain_samples(0, 100, None)


@ONE_KIND
def test_a_step_that_never_returns_ends_its_worker(make_sampler: MakeSampler, tmp_path: Path) -> None:
    """It is treated as a death: the episode runs again in a new process."""
    env = SleepingEnv(seeds(3), tmp_path)
    sampler = make_sampler(one, env, supervision=Supervision(step_timeout=1.0))
    told = listened_to(sampler)
    assert_same_batches(serial_batch(200, ChainEnv(), one), sampler.obtain_samples(0, 200, None))
    assert 1 == len(told)
    assert "was killed, since a step took longer than 1 s, while it ran episode 3; it is started again" in told[0]


@ONE_KIND
def test_a_step_that_never_returns_is_named_in_the_end(make_sampler: MakeSampler) -> None:
    """After three times the episode is named, as any that kills its worker."""
    sampler = make_sampler(one, SleepingEnv(seeds(3)), supervision=Supervision(step_timeout=0.3))
    listened_to(sampler)
    with pytest.raises(WorkerError, match=r"^episode 3 \(seed \d+\) killed its worker 3 times: .*longer than 0.3 s"):
        sampler.obtain_samples(0, 200, None)
    assert [] == running_workers()


@ONE_KIND
@pytest.mark.parametrize("env", [CrawlingEnv, SleepingEnv])
@pytest.mark.parametrize("n_envs", [1, 4])
def test_an_episode_that_takes_too_long(make_sampler: MakeSampler, env: Any, n_envs: int) -> None:
    """Whether it takes ever more steps or never returns from one, it is treated as one that failed."""
    rules = Supervision(on_env_error="skip", episode_timeout=0.5, max_worker_restarts=0)
    sampler = make_sampler(one, env(seeds(3, 6)), supervision=rules, **vectorised(n_envs))
    listened_to(sampler)
    sampler.obtain_exact_episodes(8, None)
    assert {3, 6} == set(sampler.skipped)
    assert all("took longer than 0.5 s" in reason for reason in sampler.skipped.values())


@ONE_KIND
def test_an_episode_that_takes_too_long_is_an_error(make_sampler: MakeSampler) -> None:
    """By default it ends the call, and says what to do."""
    sampler = make_sampler(one, CrawlingEnv(seeds(3)), supervision=Supervision(episode_timeout=0.3))
    with pytest.raises(EnvError, match=r"^episode 3 \(seed \d+\) took longer than 0.3 s in worker \d$") as caught:
        sampler.obtain_samples(0, 200, None)
    assert "--max-episode-length" in caught.value.hint
