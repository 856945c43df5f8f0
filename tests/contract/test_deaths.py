"""Workers that die: they are started again, and the episodes are those of a run in which nobody died."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import random
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from rollout_cli.episode_batch import EpisodeBatch
from rollout_cli.errors import WorkerError
from rollout_cli.samplers import MinTimesteps, MultiprocessingSampler, Sampler
from rollout_cli.samplers.frames import FrameKind, frame_head
from rollout_cli.samplers.supervision import Supervision
from rollout_cli.seeding import derive_seed
from rollout_cli.workers import VecWorker
from tests.contract.conftest import MakeSampler, running_workers
from tests.contract.making import assert_same_batches, noisy, serial_batch, slow_env
from tests.contract.test_updates import AddToTask, gains, policy, rewards
from tests.support.envs import ChainEnv, KillingEnv

PROCESSES = pytest.mark.parametrize("backend", ["forkserver", "spawn", "ring"], indirect=True)
ONE_KIND = pytest.mark.parametrize("backend", ["forkserver"], indirect=True)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def crash() -> None:
    ctypes.string_at(0)


def leave() -> None:
    sys.exit(3)


def leave_at_once() -> None:
    os._exit(7)


def write_to_sockets(data: bytes) -> None:
    """Write into every socket that the process has, as code does that writes to a descriptor that is not its own."""
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # It is gone, or is no socket.
            if str(entry.readlink()).startswith("socket:"):
                os.write(int(entry.name), data)


def write_bytes() -> None:
    write_to_sockets(b"hello world, this is no message at all")


def send_nonsense() -> None:
    """Send a message that is whole, but none that a worker sends."""
    write_to_sockets(frame_head(FrameKind.MESSAGE, 8) + b"nonsense")


def send_half_a_message() -> None:
    write_to_sockets(frame_head(FrameKind.MESSAGE, 1000) + b"half of it")
    os._exit(1)


class OnceEnv(ChainEnv):
    """Does something the first time that an episode gets to its sixth step; it leaves a file as a sign of that.

    Args:
        do: What.
        sign: The file.
    """

    def __init__(self, do: Callable[[], None], sign: Path) -> None:
        super().__init__()
        self._do, self._sign = do, sign

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._position == 5 and not self._sign.exists():
            self._sign.touch()
            self._do()
        return super().step(action)


WAYS: dict[str, tuple[Callable[[], None], str]] = {
    "killed": (kill, "was killed by SIGKILL while it ran episode"),
    "segfault": (crash, r"was killed by SIGSEGV in string_at \(.*ctypes.*, line \d+\) while it ran episode"),
    "exit": (leave, "ended with exit code 3 while it ran episode"),
    "exit at once": (leave_at_once, "ended with exit code 7 while it ran episode"),
    "bytes": (write_bytes, "sent what is no message"),
    "nonsense": (send_nonsense, "sent what is no message"),
    "half a message": (send_half_a_message, "ended with exit code 1 while it ran episode"),
}


@PROCESSES
@pytest.mark.parametrize("way", WAYS)
def test_a_run_survives_the_death_of_a_worker(make_sampler: MakeSampler, way: str, tmp_path: Path) -> None:
    """However a worker dies, its episodes run again and are what they would have been; one line tells of it."""
    do, told = WAYS[way]
    sampler = make_sampler(noisy(ChainEnv()), OnceEnv(do, tmp_path / "sign"))
    tales: list[str] = []
    sampler.tell = tales.append
    batch = sampler.obtain_samples(0, 300, None)
    assert (tmp_path / "sign").exists()
    assert_same_batches(serial_batch(300, ChainEnv()), batch)
    assert 1 == len(tales)
    assert re.match(rf"worker [01] {told}", tales[0])
    assert "; it is started again (1 of 10)" in tales[0]
    assert isinstance(sampler, MultiprocessingSampler)
    assert 2 == len(sampler._the_pool().pids)


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


class ExitingEnv(ChainEnv):
    """Ends its process as a crash in native code does, with an exit code."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        os._exit(7)


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


@ONE_KIND
@pytest.mark.parametrize("moment", ["between calls", "in a call", "while starting"])
def test_a_worker_that_is_killed_from_outside(make_sampler: MakeSampler, moment: str) -> None:
    """Whenever it happens, the call that needs the worker gets the same episodes."""
    sampler = make_sampler(noisy(slow_env()), slow_env())
    sampler.tell = lambda text: None
    assert isinstance(sampler, MultiprocessingSampler)
    if moment == "between calls":
        sampler.obtain_samples(0, 30, None)
    base = sampler.next_number
    sampler.start_worker()
    stream = sampler.stream(MinTimesteps(400))
    chunks = [next(stream)] if moment == "in a call" else []
    victim = psutil.Process(sampler._the_pool().pids[1])
    victim.kill()
    if moment == "between calls":
        psutil.wait_procs([victim], timeout=10)
    chunks += stream
    numbers = [int(number) for chunk in chunks for number in chunk.numbers]
    assert list(range(base, base + len(numbers))) == numbers
    assert 1 == sampler._supervisor._restarts
    if base == 0:
        expected = serial_batch(400, slow_env())
        assert expected.rewards.tolist() == [reward for chunk in chunks for reward in chunk.rewards.tolist()]


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


class TaskOnceEnv(OnceEnv):
    """Rewards are its task."""

    task = 0.0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, _, *rest = super().step(action)
        return observation, self.task, *rest


@ONE_KIND
def test_a_restarted_worker_is_where_the_others_are(make_sampler: MakeSampler, tmp_path: Path) -> None:
    """It gets the last policy, the parameters after it and every update of the environment, then this call's."""
    sign = tmp_path / "sign"
    sign.touch()
    sampler = make_sampler(policy(), TaskOnceEnv(kill, sign))
    sampler.tell = lambda text: None
    sampler.obtain_exact_episodes(2, policy(2.0), AddToTask(1.0))
    sign.unlink()
    batch = sampler.obtain_exact_episodes(20, {"gain": 3.0}, AddToTask(0.5))
    assert sign.exists()
    assert ({3.0}, {1.5}) == (gains(batch), set(rewards(batch)))
    batch = sampler.obtain_exact_episodes(2, None)
    assert ({3.0}, {1.5}) == (gains(batch), set(rewards(batch)))


def resources(sampler: Sampler) -> tuple[int, int]:
    """Return how many descriptors this process has, and how many mappings of shared memory."""
    return len(list(Path("/proc/self/fd").iterdir())), Path("/proc/self/maps").read_text().count("memfd:rollout")


@pytest.mark.parametrize("backend", ["ring"], indirect=True)
def test_nothing_of_a_dead_worker_is_kept(make_sampler: MakeSampler, tmp_path: Path) -> None:
    """Descriptors and shared memory are given back, and what its environment started ends with it."""
    sampler = make_sampler(noisy(ChainEnv()), ChainEnv(), supervision=Supervision(max_worker_restarts=100))
    sampler.tell = lambda text: None
    assert isinstance(sampler, MultiprocessingSampler)
    found = []
    for _ in range(8):
        sampler.obtain_exact_episodes(3, None)
        found.append(resources(sampler))
        psutil.Process(sampler._the_pool().pids[0]).kill()
    assert {found[0]} == set(found)


class ForkingEnv(OnceEnv):
    """Has a forked child that holds on to whatever the worker has open, and then dies."""

    def __init__(self, sign: Path) -> None:
        super().__init__(self.fork_and_die, sign)

    def fork_and_die(self) -> None:
        if os.fork() == 0:
            signal.pause()
        kill()


@PROCESSES
def test_a_death_is_noticed_though_a_child_of_the_worker_lives_on(make_sampler: MakeSampler, tmp_path: Path) -> None:
    """A child holds the worker's end of every pipe open; it is killed with its worker's group."""
    sampler = make_sampler(noisy(ChainEnv()), ForkingEnv(tmp_path / "sign"))
    sampler.tell = lambda text: None
    before = set(psutil.pids())
    assert_same_batches(serial_batch(300, ChainEnv()), sampler.obtain_samples(0, 300, None))
    sampler.shutdown_worker()
    ours = [process for process in psutil.Process().children(recursive=True) if process.pid not in before]
    assert not [process for process in ours if "rollout-worker" in process.name()]


class RudeEnv(ChainEnv):
    """Changes what belongs to its process: handlers of signals, the working folder, the generators, standard output."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.chdir("/")
        observation, info = super().reset(seed=seed, options=options)
        random.seed(0)
        np.random.seed(0)
        sys.stdout.write("rude words\n")
        faulthandler.disable()
        return observation, info


@pytest.mark.parametrize("backend", ["spawn"], indirect=True)
def test_rude_environments_do_no_harm(make_sampler: MakeSampler, capfd: pytest.CaptureFixture[str]) -> None:
    """The episodes are as ever, and what user code prints goes to standard error."""
    sampler = make_sampler(lambda observation: 1, RudeEnv())
    batch = sampler.obtain_samples(0, 200, None)
    sampler.obtain_samples(1, 20, None, RudeEnv())
    assert_same_batches(serial_batch(200, ChainEnv(), lambda observation: 1), batch)
    sampler.shutdown_worker()
    shown = capfd.readouterr()
    assert "" == shown.out
    assert "rude words" in shown.err


@pytest.mark.parametrize("backend", ["spawn"], indirect=True)
def test_other_code_may_ask_for_the_end_of_any_child(make_sampler: MakeSampler) -> None:
    """As a handler of SIGCHLD may do: how the worker ended is not known then, and nothing else is lost."""
    sampler = make_sampler(noisy(ChainEnv()), ChainEnv())
    tales: list[str] = []
    sampler.tell = tales.append
    expected = serial_batch(400, ChainEnv())
    batches = [sampler.obtain_samples(0, 200, None)]
    kill_and_reap(running_workers()[0])
    batches.append(sampler.obtain_samples(1, 400 - int(batches[0].lengths.sum()), None))
    assert_same_batches(expected, EpisodeBatch.concatenate(*batches))
    (tale,) = tales
    assert re.fullmatch(
        r"worker \d ended, and how is not known: other code has asked for it.*; it is started again.*", tale
    )
    for worker in running_workers():
        kill_and_reap(worker)
    sampler.shutdown_worker()


def kill_and_reap(worker: psutil.Process) -> None:
    worker.kill()
    os.waitpid(worker.pid, 0)
