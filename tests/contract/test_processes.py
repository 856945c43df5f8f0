"""Workers under other parents: forked ones, and those whose parent dies or forgets them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from gymnasium.spaces import Discrete

from rollout_cli.chunk import concatenate
from rollout_cli.samplers import Episodes, MinTimesteps, MultiprocessingSampler
from tests.contract.making import noisy, serial, slow_env
from tests.support.envs import ChainEnv

ROOT = Path(__file__).parents[2]


def start(script: str, *, start_new_session: bool = False) -> subprocess.Popen[str]:
    """Start one of the scripts in a process of its own, or also in a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "tests.contract.scripts", script],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=start_new_session,
    )


def gone(pids: list[int]) -> bool:
    """Return whether these processes end within ten seconds."""
    alive = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    return not psutil.wait_procs(alive, timeout=10)[1]


def own_threads(pid: int) -> list[str]:
    """Return the threads of a process, but for one that Arrow's memory has wherever Arrow is imported."""
    names = [path.read_text().strip() for path in Path(f"/proc/{pid}/task").glob("*/comm")]
    return [name for name in names if name != "jemalloc_bg_thd"]


def test_forked_workers_give_the_same_episodes() -> None:
    """Over fork: the serial run's episodes from all workers, exact ones, a death that is told, and work after it."""
    output, errors = start("fork").communicate(timeout=60)
    assert "" == errors
    found = json.loads(output)
    expected = serial(MinTimesteps(200), slow_env())
    assert (expected.numbers.tolist(), expected.rewards.tolist()) == (found["numbers"], found["rewards"])
    assert [0, 1, 2] == found["workers"]
    after = len(expected.numbers)
    assert list(range(after, after + 6)) == found["exact"]
    assert "killed its worker 3 times" in found["message"]
    assert 30 <= found["again"] < 40


@pytest.mark.parametrize(("script", "threads"), [("wait", 1), ("child", 1), ("threads", 2)])
def test_workers_end_when_their_parent_is_killed(script: str, threads: int) -> None:
    """A parent that is killed cannot say goodbye; its workers end all the same, in the middle of an episode.

    So does what their environments started. No thread waits for that, as one would slow the others down, but where the
    system does not tell.
    """
    parent = start(script)
    assert parent.stdout is not None
    pids = json.loads(parent.stdout.readline())
    assert threads == len(own_threads(pids[0]))
    assert all(psutil.pid_exists(pid) for pid in pids)
    parent.send_signal(signal.SIGKILL)
    parent.communicate(timeout=10)
    assert gone(pids)


def test_a_worker_ends_whose_parent_ended_before_it_was_watched() -> None:
    """There is nothing left then that the system could tell."""
    worker = start("gone", start_new_session=True)
    worker.communicate(timeout=30)
    assert -signal.SIGKILL == worker.returncode


def test_workers_end_when_their_parent_just_leaves() -> None:
    """A program that ends without shutting its sampler down ends at once, quietly, and so do its workers."""
    parent = start("leave")
    output, errors = parent.communicate(timeout=30)
    assert (0, "") == (parent.returncode, errors)
    assert gone(json.loads(output))


def rings() -> set[str]:
    """Return the rings that any process of ours has mapped: inode and name."""
    found = set()
    for pid in psutil.pids():
        with contextlib.suppress(OSError):  # It ended, or is none of ours.
            found |= mapped_rings(pid)
    return found


def mapped_rings(pid: int) -> set[str]:
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {line.split(maxsplit=4)[4] for line in lines if "rollout-ring" in line}


def test_no_shared_memory_is_left_when_everybody_is_killed() -> None:
    """A worker and the parent are killed with their rings in use: there never was a name, and no memory stays."""
    parent = start("share")
    assert parent.stdout is not None
    pids = json.loads(parent.stdout.readline())
    used = set.union(*map(mapped_rings, [parent.pid, *pids]))
    for pid in (pids[0], parent.pid):
        os.kill(pid, signal.SIGKILL)
    _, errors = parent.communicate(timeout=10)
    assert gone(pids)
    assert "" == errors
    assert used
    assert not used & rings()
    assert all(ring.endswith("/memfd:rollout-ring (deleted)") for ring in used)


def test_descriptors_and_shared_memory_stay_as_few() -> None:
    """After fifty samplers, each of which used shared memory, a process holds what it held after the first one."""
    output, errors = start("cycles").communicate(timeout=120)
    assert "" == errors
    first, last = json.loads(output)
    assert (2, 0) == (first[0], first[1])
    assert first == last


@pytest.mark.parametrize("script", ["wait"])
def test_workers_end_with_a_terminated_parent(script: str) -> None:
    """The usual signal to end has the same effect as any other death."""
    parent = start(script)
    assert parent.stdout is not None
    pids = json.loads(parent.stdout.readline())
    parent.terminate()
    parent.communicate(timeout=10)
    assert gone(pids)


class AskingEnv(ChainEnv):
    """Tells in its infos what answers it when it asks its space of the action, and what the answer is."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        asked = self.action_space.contains
        info = {"asked": asked.__func__.__module__, "answer": asked(action)}  # type: ignore[attr-defined]
        return (*super().step(action)[:4], info)


def test_a_workers_process_answers_for_discrete_spaces_itself() -> None:
    """There, and not in the caller's process, an environment's check of an action takes our shorter way."""
    with MultiprocessingSampler(noisy(AskingEnv()), AskingEnv(), seed=5, n_workers=1) as sampler:
        chunk = concatenate(list(sampler.stream(Episodes(0, 2))))
    infos = chunk.env_infos.to_dicts()
    assert [{"asked": "rollout_cli.fast_contains", "answer": True}] * chunk.n_steps == infos
    assert "gymnasium.spaces.discrete" == Discrete.contains.__module__
