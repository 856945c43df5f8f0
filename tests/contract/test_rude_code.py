"""User code that forks, changes its process or asks for the end of other children does no harm."""

from __future__ import annotations

import faulthandler
import os
import random
import re
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from rollout_cli.episode_batch import EpisodeBatch
from tests.contract.conftest import MakeSampler, running_workers
from tests.contract.dying import PROCESSES, OnceEnv, kill
from tests.contract.making import assert_same_batches, noisy, serial_batch
from tests.support.envs import ChainEnv


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
