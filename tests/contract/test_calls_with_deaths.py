"""Calls that update policy and environment, with workers killed before, in and between them: nothing is lost.

Each kill comes at a certain point of the work rather than of time: in an episode, in an update, or while nothing runs.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollout_cli.envs import EnvUpdate, describe_env
from rollout_cli.episode_batch import EpisodeBatch
from rollout_cli.samplers import LocalSampler, MultiprocessingSampler, Sampler
from rollout_cli.samplers.supervision import Supervision
from rollout_cli.seeding import derive_seed
from rollout_cli.workers import VecWorker
from tests.contract.conftest import MakeSampler
from tests.contract.making import assert_same_batches
from tests.support.envs import ChainEnv
from tests.support.policies import GaragePolicy

SEED = 5
Obtain = Callable[[Sampler, int, Any, Any], EpisodeBatch]


def killed_once(sign: Path) -> None:
    """Kill the process, unless it was done before: then the sign is there."""
    try:
        sign.touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


class DeadlyTaskEnv(ChainEnv):
    """Adds its task to every reward; in the second step of some episodes it kills its process, once for each.

    Args:
        signs: By the seed of such an episode, the file that says that it was done.
    """

    def __init__(self, signs: dict[int, Path]) -> None:
        super().__init__()
        self.task = 0.0
        self._signs = signs
        self._sign: Path | None = None

    def draw_length(self) -> int:
        return 2 + super().draw_length()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._sign = self._signs.get(seed or 0)
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._sign is not None and self._position == 1:
            killed_once(self._sign)
        observation, reward, *rest = super().step(action)
        return observation, reward + self.task, *rest


class AddToTask(EnvUpdate):
    """Builds on the environment before it; the first worker that applies it is killed, where there is a sign for that.

    Args:
        amount: What is added.
        sign: The file that says that the worker was killed; None where it is not.
    """

    def __init__(self, amount: float, sign: Path | None = None) -> None:
        self._amount, self._sign = amount, sign

    def __call__(self, old_env: Any = None) -> Any:
        env: Any = super().__call__(old_env)
        if self._sign is not None:
            killed_once(self._sign)
        env.unwrapped.task += self._amount
        return env


def policy(gain: float) -> GaragePolicy:
    made = GaragePolicy(describe_env(ChainEnv()))
    made.gain = gain
    return made


def calls(in_update: Path | None = None) -> list[tuple[Any, Any]]:
    """Return the updates of three calls: parameters, a whole policy, and lists with one a worker."""
    return [
        ({"gain": 0.5}, AddToTask(1.0)),
        (policy(3.0), AddToTask(0.25, in_update)),
        ([{"gain": 0.7}, {"gain": 0.9}], [AddToTask(2.0), AddToTask(8.0)]),
    ]


def samples(sampler: Sampler, call: int, agent: Any, env: Any) -> EpisodeBatch:
    return sampler.obtain_samples(call, 120, agent, env)


def exact(sampler: Sampler, call: int, agent: Any, env: Any) -> EpisodeBatch:
    del call
    return sampler.obtain_exact_episodes(6, agent, env)


def kill_from_outside(sampler: MultiprocessingSampler, worker: int) -> None:
    """Kill a worker that has nothing to do; it is gone when this returns."""
    pid = sampler._the_pool().pids[worker]
    # Its exit code is for its parent alone, so nothing here may wait for it as a parent does.
    ended = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGKILL)
        readable, _, _ = select.select([ended], [], [], 30)
    finally:
        os.close(ended)
    assert [ended] == readable


@pytest.mark.parametrize("backend", ["forkserver", "spawn"], indirect=True)
@pytest.mark.parametrize("obtain", [samples, exact])
@pytest.mark.parametrize("n_envs", [1, 3])
def test_deaths_at_any_moment_change_no_call(
    make_sampler: MakeSampler, obtain: Obtain, n_envs: int, tmp_path: Path
) -> None:
    """Seven kills in three calls: the batches are, bit for bit, those of three calls in which nobody died."""
    options: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": n_envs}} if n_envs > 1 else {}
    with LocalSampler(policy(1.0), DeadlyTaskEnv({}), n_workers=2, seed=SEED, **options) as undisturbed:
        expected = [obtain(undisturbed, call, *updates) for call, updates in enumerate(calls())]

    deadly = [int(batch.numbers[len(batch) // 2]) for batch in expected]
    signs = {derive_seed(SEED, number, "env"): tmp_path / f"episode-{number}" for number in deadly}
    rules = Supervision(max_worker_restarts=7)
    sampler = make_sampler(policy(1.0), DeadlyTaskEnv(signs), supervision=rules, **options)
    assert isinstance(sampler, MultiprocessingSampler)
    told: list[str] = []
    sampler.tell = told.append
    sampler.start_worker()
    for call, updates in enumerate(calls(tmp_path / "update")):
        kill_from_outside(sampler, call % 2)
        assert_same_batches(expected[call], obtain(sampler, call, *updates))
        assert (tmp_path / f"episode-{deadly[call]}").exists()
    assert (tmp_path / "update").exists()
    assert 7 == len(told)
    assert all("was killed by SIGKILL" in text for text in told)
    assert 3 == sum(f"while it ran episode{'s' if n_envs > 1 else ''} " in text for text in told)
    assert {} == sampler.skipped
