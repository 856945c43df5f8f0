"""What the drivers of the peers share. A driver runs in its peer's own environment and prints one line of JSON."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.policies import BALANCING

Array = npt.NDArray[Any]

ENV_ID = "CartPole-v1"


@dataclass(frozen=True, slots=True)
class Task:
    """What a driver is to do.

    Attributes:
        policy: `random` or `linear`.
        steps: How many steps to take, at least.
        output: A folder to save to, which is there.
        n_envs: How many environments to step at once; None for what was found best for this peer.
    """

    policy: str
    steps: int
    output: Path
    n_envs: int | None

    def envs(self, best: int) -> int:
        """Return how many environments to step at once; `best` unless the command line says another number."""
        return self.n_envs or best

    def chooser(self) -> Callable[[Array], Array]:
        """Return the policy for batches: float32 (n, 4) to int64 (n,)."""
        if self.policy == "linear":
            return choose_linear
        rng = np.random.default_rng()
        return lambda observations: rng.integers(2, size=len(observations))


def choose_linear(observations: Array) -> Array:
    """Balance a batch of poles."""
    return np.asarray(observations @ BALANCING > 0, np.int64)


Collect = Callable[[Task], int]
"""Does a task; returns how many steps it took."""


def main(package: str, modes: Mapping[str, Collect]) -> None:
    """Do what the command line asks for, and print `steps`, `seconds`, `saved_bytes` and `version`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=modes, required=True)
    parser.add_argument("--policy", choices=("random", "linear"), default="random")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--envs", type=int)
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    task = Task(arguments.policy, arguments.steps, arguments.output, arguments.envs)
    started = time.perf_counter()
    steps = modes[arguments.mode](task)
    print(
        json.dumps(
            {
                "steps": steps,
                "seconds": time.perf_counter() - started,
                "saved_bytes": sum(path.stat().st_size for path in task.output.rglob("*") if path.is_file()),
                "version": f"{package} {importlib.metadata.version(package)}",
            }
        )
    )
    sys.stdout.flush()
