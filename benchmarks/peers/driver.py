"""The common code of the drivers. A driver collects, saves, and prints one line of JSON: steps, seconds, version."""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.policies import BALANCING

Array = npt.NDArray[Any]
ENV_ID = "CartPole-v1"


class Clock:
    """Times the body of a `with` statement: steps and saving, without imports and the start of processes."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._started


def chooser(policy: str) -> Callable[[Array], Array]:
    """Return the policy for batches: float32 (n, 4) to int64 (n,)."""
    if policy == "linear":
        return lambda observations: np.asarray(observations @ BALANCING > 0, np.int64)
    rng = np.random.default_rng()
    return lambda observations: rng.integers(2, size=len(observations))


Collect = Callable[[str, int, Path, Clock], int]
"""Collects at least a number of steps with a policy, saves them in a folder, and returns the actual number."""


def read(mode: Callable[[str, int, Clock], int], kind: str, steps: int, output: Path, clock: Clock) -> int:
    """Run a mode that reads episodes of a kind; `output` is unused."""
    del output
    return mode(kind, steps, clock)


def main(package: str, modes: Mapping[str, Collect]) -> None:
    """Run the mode on the command line: `MODE POLICY STEPS OUTPUT`."""
    mode, policy, steps, output = sys.argv[1:5]
    Path(output).mkdir(parents=True, exist_ok=True)
    clock = Clock()
    taken = modes[mode](policy, int(steps), Path(output), clock)
    version = f"{package} {importlib.metadata.version(package)}"
    print(json.dumps({"steps": taken, "seconds": clock.seconds, "version": version}))
