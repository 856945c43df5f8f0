"""Counts the steps that a CartPole sampler runs and returns.

`python -m benchmarks.row_counts POLICY SAMPLER WORKERS ROWS STEPS CALLS` creates a sampler, calls its
`obtain_samples` for STEPS steps CALLS times in sequence, and prints a JSON document. POLICY is `random` or `linear`,
SAMPLER `local` or `processes`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from benchmarks.policies import Array, BatchedLinear
from rollout_cli import LocalSampler, MultiprocessingSampler, Sampler, VecWorker
from rollout_cli.policies.random import RandomPolicy


class Counter:
    """A counter in a file, which survives its process. A copy of the counter uses another file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count: Array | None = None

    def add(self) -> None:
        """Count one more."""
        if self._count is None:
            with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
                self._count = np.memmap(file.name, np.int64, "w+", shape=(1,))
        self._count[0] += 1

    def __getstate__(self) -> dict[str, Any]:
        return {"_folder": self._folder, "_count": None}


def counted(folder: Path) -> int:
    """Return the sum of all counters in a folder."""
    return sum(int(np.fromfile(path, np.int64)[0]) for path in folder.iterdir())


class CountedRandom(RandomPolicy):
    """The policy `random`, which counts the vector steps of its worker."""

    def __init__(self, counter: Counter) -> None:
        super().__init__(gymnasium.make("CartPole-v1").action_space)
        self._counter = counter

    def get_actions(self, observations: Array) -> tuple[Array, dict[str, Any]]:
        """Return n actions, int64 (n,)."""
        self._counter.add()
        return super().get_actions(observations)


class CountedLinear(BatchedLinear):
    """A linear policy, which counts the vector steps of its worker."""

    def __init__(self, counter: Counter) -> None:
        super().__init__()
        self._counter = counter

    def get_actions(self, observations: Array) -> tuple[Array, dict[str, Any]]:
        """Return n actions, int64 (n,)."""
        self._counter.add()
        return super().get_actions(observations)


class StepCounter(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Counts the steps of an environment."""

    def __init__(self, env: gymnasium.Env[Any, Any], counter: Counter) -> None:
        super().__init__(env)
        self._counter = counter

    def step(self, action: Any) -> Any:
        """Step the environment."""
        self._counter.add()
        return self.env.step(action)


SAMPLERS: dict[str, type[Sampler]] = {"local": LocalSampler, "processes": MultiprocessingSampler}
POLICIES: dict[str, Callable[[Counter], Any]] = {"random": CountedRandom, "linear": CountedLinear}


def count(
    policy: str, kind: str, *, n_workers: int, n_envs: int, n_steps: int, n_calls: int
) -> dict[str, int]:
    """Return the numbers of returned steps, of run steps, and of row steps, which include idle rows."""
    with tempfile.TemporaryDirectory() as calls, tempfile.TemporaryDirectory() as steps:
        sampler = SAMPLERS[kind](
            POLICIES[policy](Counter(Path(calls))),
            StepCounter(gymnasium.make("CartPole-v1"), Counter(Path(steps))),
            n_workers=n_workers,
            worker_class=VecWorker,
            worker_args={"n_envs": n_envs},
            seed=0,
        )
        with sampler:
            returned = sum(len(sampler.obtain_samples(itr, n_steps, None).rewards) for itr in range(n_calls))
        return {
            "returned": returned,
            "run": counted(Path(steps)),
            "row_steps": counted(Path(calls)) * n_envs,
        }


def main(arguments: list[str]) -> None:
    """Count, and print the counts."""
    policy, kind = arguments[:2]
    n_workers, n_envs, n_steps, n_calls = map(int, arguments[2:])
    counts = count(policy, kind, n_workers=n_workers, n_envs=n_envs, n_steps=n_steps, n_calls=n_calls)
    json.dump(counts, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
