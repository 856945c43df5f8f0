"""Programs that record are killed at any time: no committed episode is lost, and the dataset continues."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np

import rollout_cli
from tests.helpers.processes import variables

EPISODES = 120
"""Of each dataset; the first 50 or so decide its columns."""

PROGRAM = """
import sys
from tests.soak.recorders import record

record(sys.argv[1])
"""


def record(path: str) -> None:
    """Record the episodes that the dataset lacks; print the last number that it has, and each that is committed."""
    env = rollout_cli.Recorder(
        gymnasium.make("CartPole-v1"), path, resume=True, flush_every=1e6, segment_bytes=20_000
    )
    with env:
        print(env.writer.next_number - 1, flush=True)
        for number in range(env.writer.next_number, EPISODES):
            env.reset(seed=number)
            rng = np.random.default_rng(number)
            has_ended = False
            while not has_ended:
                _, _, terminated, truncated, _ = env.step(int(rng.integers(2)))
                has_ended = terminated or truncated
            if number % 3 == 0:
                env.writer.flush()
                print(number, flush=True)


def kill_recorders(folder: Path, count: int, rng: random.Random) -> str:
    """Kill programs `count` times, each after a commit and a few more milliseconds, until their datasets are whole."""
    folder.mkdir(parents=True)
    _run(folder / "whole", None, rng)
    whole = rollout_cli.load(folder / "whole").to_episode_batch()
    kills = 0
    n_datasets = 0
    while kills < count:
        path = folder / str(n_datasets)
        n_datasets += 1
        last = -1
        is_whole = False
        while not is_whole:
            before = last
            first, last, is_whole = _run(path, rng.randint(1, 6), rng)
            assert first >= before, (
                f"kill {kills}: {before} was committed, and {first} is the last one stored"
            )
            kills += not is_whole
        again = rollout_cli.load(path).to_episode_batch()
        for name in (
            "lengths",
            "observations",
            "last_observations",
            "actions",
            "rewards",
            "seeds",
            "numbers",
        ):
            np.testing.assert_array_equal(getattr(whole, name), getattr(again, name), name)
        assert [] == rollout_cli.verify(path).faults
    return f"{kills} kills of programs that record, {n_datasets} datasets"


def _run(path: Path, n_commits: int | None, rng: random.Random) -> tuple[int, int, bool]:
    """Run the program, and kill it after so many commits.

    Returns the number of the last episode that it found, of the last that it committed, and whether it ended.
    """
    words = [sys.executable, "-c", PROGRAM, str(path)]
    printed = []
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=variables()) as program:
        assert program.stdout is not None
        for line in program.stdout:
            printed.append(int(line))
            if len(printed) - 1 == n_commits:
                try:
                    program.wait(rng.uniform(0, 0.05))
                except subprocess.TimeoutExpired:
                    program.send_signal(signal.SIGKILL)
                printed += map(int, program.stdout)
                break
    assert program.returncode in (0, -signal.SIGKILL), f"it ended with {program.returncode}"
    return printed[0], printed[-1], program.returncode == 0
