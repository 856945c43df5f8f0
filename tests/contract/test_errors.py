"""Failures: the right error with the right story, what was finished first, nothing left running, and it works again."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from typing import Any

import psutil
import pytest

from rollout_cli.chunk import Chunk
from rollout_cli.envs import describe_env
from rollout_cli.errors import (
    EnvError,
    EnvLoadError,
    PolicyError,
    PolicyLoadError,
    RolloutError,
    UsageError,
)
from rollout_cli.samplers import Episodes, MinTimesteps, MultiprocessingSampler
from rollout_cli.seeding import derive_seed
from tests.contract.conftest import MakeSampler, running_workers
from tests.contract.making import noisy, numbers_of, serial, slow_env
from tests.support.envs import ChainEnv, FailingEnv, SleepyEnv
from tests.support.policies import FailingPolicy


def failing_policy(at_step: int) -> FailingPolicy:
    return FailingPolicy(describe_env(ChainEnv()), at_step)


CASES: dict[str, tuple[Any, Any, type[RolloutError], str]] = {
    "policy": (lambda: failing_policy(4), ChainEnv, PolicyError, "policy.get_action raised ValueError"),
    "reset": (lambda: noisy(ChainEnv()), lambda: FailingEnv("reset"), EnvError, "env.reset raised ValueError"),
    "step": (lambda: noisy(ChainEnv()), lambda: FailingEnv("step", 4), EnvError, "env.step raised ValueError"),
}


@pytest.mark.parametrize("name", CASES)
def test_errors_of_user_code(make_sampler: MakeSampler, name: str) -> None:
    """The error names worker, episode, seed and step in one line, and holds the user's traceback and a hint."""
    policy, env, kind, message = CASES[name]
    sampler = make_sampler(policy(), env())
    with pytest.raises(kind, match=f"^{message}") as caught:
        sampler.obtain_samples(0, 1000, None)
    where = re.search(r"\(worker [01], episode (\d+), seed (\d+), step (\d+)\)$", caught.value.message)
    assert where is not None
    number, seed, step = map(int, where.groups())
    assert (derive_seed(5, number, "env"), 0 if name == "reset" else 3) == (seed, step)
    assert "\n" not in caught.value.message
    assert caught.value.hint
    assert "ValueError: " in caught.value.details
    assert "rollout_cli/samplers" not in caught.value.details


@pytest.mark.parametrize("name", CASES)
def test_after_an_error_the_sampler_works_again(make_sampler: MakeSampler, name: str) -> None:
    """With a policy or environment that does not fail, the same sampler goes on, after what it had handed on."""
    policy, env, kind, _ = CASES[name]
    sampler = make_sampler(policy(), env())
    with pytest.raises(kind):
        sampler.obtain_samples(0, 1000, None)
    handed_on = sampler.next_number
    batch = sampler.obtain_samples(0, 50, noisy(ChainEnv()), ChainEnv())
    assert list(range(handed_on, handed_on + len(batch))) == batch.numbers.tolist()


def test_what_was_finished_comes_before_the_error(make_sampler: MakeSampler) -> None:
    """A stream hands on the episodes that ended in order before it raises."""
    sampler = make_sampler(noisy(ChainEnv()), FailingEnv("step", 9), n_workers=1, seed=3)
    first_failing = serial(Episodes(0, 100), ChainEnv(), seed=3).lengths.tolist().index(9)
    assert first_failing > 0
    chunks: list[Chunk] = []
    with pytest.raises(EnvError, match=f"episode {first_failing},"):
        take_all(sampler.stream(MinTimesteps(10_000)), chunks)
    assert list(range(first_failing)) == numbers_of(chunks)
    assert first_failing == sampler.next_number


def take_all(stream: Iterable[Chunk], into: list[Chunk]) -> None:
    """Move chunks until the stream ends or raises; what came before is kept."""
    iterator = iter(stream)
    while chunk := next(iterator, None):
        into.append(chunk)


class ClosingBadlyEnv(ChainEnv):
    """Raises when it is closed."""

    def close(self) -> None:
        raise ValueError("the door is stuck")


@pytest.mark.parametrize("backend", ["forkserver"], indirect=True)
def test_an_environment_that_cannot_be_closed(make_sampler: MakeSampler, capfd: pytest.CaptureFixture[str]) -> None:
    """It ends with its process all the same."""
    sampler = make_sampler(noisy(ChainEnv()), ClosingBadlyEnv())
    assert 20 <= sampler.obtain_samples(0, 20, None).lengths.sum() < 30
    sampler.shutdown_worker()
    assert [] == running_workers()


def failing_factory() -> Any:
    raise ValueError("the factory is closed")


def failing_policy_factory(env_spec: Any) -> Any:
    raise ValueError("the policy factory is closed")


@pytest.mark.parametrize("verb", ["obtain_samples", "wait_until_started"])
def test_an_environment_that_cannot_be_built(make_sampler: MakeSampler, verb: str) -> None:
    """The factory's own error is told, wherever the workers are first needed, and again when it is tried again."""
    sampler = make_sampler(lambda observation: 1, failing_factory)
    for _ in range(2):
        with pytest.raises(EnvLoadError, match="the factory is closed"):
            sampler.obtain_samples(0, 10, None) if verb == "obtain_samples" else sampler.wait_until_started()
    batch = sampler.obtain_samples(0, 10, None, ChainEnv())
    assert 0 == batch.numbers[0]


@pytest.mark.parametrize("agents", [object(), 5])
def test_a_policy_that_is_none(make_sampler: MakeSampler, agents: Any) -> None:
    """What offers nothing that a policy needs is refused, with what would be accepted."""
    with pytest.raises(PolicyLoadError) as caught:
        make_sampler(agents, ChainEnv()).obtain_samples(0, 10, None)
    assert caught.value.hint


class ChildStartingEnv(SleepyEnv):
    """Starts a process, as simulators do, and tells its number in the info of `reset`."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self._child: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self._child is None:
            self._child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        observation, info = super().reset(seed=seed, options=options)
        return observation, {**info, "child": self._child.pid}


@pytest.mark.parametrize("backend", ["forkserver"], indirect=True)
@pytest.mark.parametrize("killed", [False, True])
def test_what_an_environment_started_ends_with_its_worker(make_sampler: MakeSampler, killed: bool) -> None:
    """A simulator's process is not left behind, whether its worker is shut down or was killed."""
    sampler = make_sampler(noisy(ChainEnv()), ChildStartingEnv())
    batch = sampler.obtain_exact_episodes(1, None)
    children = [psutil.Process(int(pid)) for pid in batch.episode_infos["child"]]
    assert 2 == len(children)
    if killed:
        for worker in running_workers():
            worker.send_signal(signal.SIGKILL)
    sampler.shutdown_worker()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert [] == alive


@pytest.mark.parametrize("backend", ["forkserver"], indirect=True)
def test_workers_leave_interrupts_to_the_parent(make_sampler: MakeSampler) -> None:
    """Ctrl-C reaches every process of the terminal; workers go on, for the parent decides."""
    sampler = make_sampler(noisy(slow_env()), slow_env())
    sampler.wait_until_started()
    for worker in running_workers():
        worker.send_signal(signal.SIGINT)
    assert 50 <= sampler.obtain_samples(0, 50, None).lengths.sum() < 60


@pytest.mark.parametrize("backend", ["forkserver"], indirect=True)
def test_workers_say_what_they_are(make_sampler: MakeSampler) -> None:
    """In `ps` and `top` a worker is called by its number and environment."""
    sampler = make_sampler(noisy(ChainEnv()), ChainEnv())
    sampler.wait_until_started()
    sampler.obtain_exact_episodes(1, None)
    titles = sorted(" ".join(process.cmdline()) for process in running_workers())
    assert ["rollout-worker[0]", "rollout-worker[1]"] == [title.split()[0] for title in titles]
    assert all("ChainEnv" in title for title in titles)


def test_fork_is_refused_where_threads_are() -> None:
    """A process with threads cannot fork safely, and is told what to use instead."""
    release = threading.Event()
    thread = threading.Thread(target=release.wait)
    thread.start()
    try:
        with (
            MultiprocessingSampler(lambda observation: 1, ChainEnv(), n_workers=1, start_method="fork") as sampler,
            pytest.raises(UsageError, match="fork cannot be used in a process that has threads") as caught,
        ):
            sampler.obtain_samples(0, 10, None)
    finally:
        release.set()
        thread.join()
    assert "forkserver" in caught.value.hint
