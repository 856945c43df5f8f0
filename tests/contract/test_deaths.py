"""Workers that die: they are started again, and the episodes are those of a run in which nobody died."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from rollout_cli.samplers import MinTimesteps, MultiprocessingSampler, Sampler
from rollout_cli.samplers.frames import FrameKind, frame_head
from rollout_cli.samplers.supervision import Supervision
from tests.contract.conftest import MakeSampler
from tests.contract.dying import ONE_KIND, PROCESSES, OnceEnv, kill, leave_at_once
from tests.contract.making import assert_same_batches, noisy, serial_batch, slow_env
from tests.contract.test_updates import AddToTask, gains, policy, rewards
from tests.support.envs import ChainEnv


def crash() -> None:
    ctypes.string_at(0)


def leave() -> None:
    sys.exit(3)


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
