"""What the drivers of the peers share. A driver runs in its peer's own environment and prints one line of JSON."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.policies import BALANCING

Array = npt.NDArray[Any]

ENV_ID = "CartPole-v1"

Settings = Mapping[str, int]
"""How a peer goes about it: how many environments it steps at once, and what else it can be told."""

ENOUGH_SECONDS = 0.3
"""A run of a sweep that is shorter than this is taken as a guess of how long the next should be."""


class Clock:
    """Times what is done inside a `with`: the steps and the saving; imports and the start of processes stay outside."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._started


@dataclass(frozen=True, slots=True)
class Task:
    """What a driver is to do.

    Attributes:
        policy: `random` or `linear`.
        steps: How many steps to take, at least.
        output: A folder to save to, which is there.
        settings: How.
        clock: Runs while steps are taken and saved.
    """

    policy: str
    steps: int
    output: Path
    settings: Settings
    clock: Clock = field(default_factory=Clock)

    @property
    def n_envs(self) -> int:
        """Return how many environments to step at once."""
        return self.settings["envs"]

    def chooser(self) -> Callable[[Array], Array]:
        """Return the policy for batches: float32 (n, 4) to int64 (n,)."""
        if self.policy == "linear":
            return choose_linear
        rng = np.random.default_rng()
        return lambda observations: rng.integers(2, size=len(observations))


def choose_linear(observations: Array) -> Array:
    """Balance a batch of poles."""
    return np.asarray(observations @ BALANCING > 0, np.int64)


@dataclass(frozen=True, slots=True)
class Mode:
    """One way in which a peer collects.

    Attributes:
        collect: Does a task; returns how many steps it took.
        best: The settings that `sweep` found best.
        tried: The settings that `sweep` tries.
        read: Reads what a task saved in a folder: rows by column. None where nothing is saved.
    """

    collect: Callable[[Task], int]
    best: Settings
    tried: Sequence[Settings] = ()
    read: Callable[[Path], dict[str, int]] | None = None


def main(package: str, modes: Mapping[str, Mode]) -> None:
    """Do what the command line asks for.

    A collection prints `steps`, `seconds` (from its first step to the end of its saving), `saved_bytes` and `version`,
    and with `--check` the `rows` of each column that it saved, read back. A sweep prints `rates`, pairs of settings and
    steps a second.
    """
    arguments = _parser(modes).parse_args()
    mode = modes[arguments.mode]
    if arguments.sweep:
        document: dict[str, Any] = {"best": mode.best, "rates": _sweep(mode, arguments.policy, arguments.sweep)}
    else:
        document = _collect(mode, Task(arguments.policy, arguments.steps, arguments.output, mode.best))
        if arguments.check:
            document["rows"] = mode.read(arguments.output) if mode.read else None
    print(json.dumps({**document, "version": f"{package} {importlib.metadata.version(package)}"}))
    sys.stdout.flush()


def _parser(modes: Mapping[str, Mode]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=modes, required=True)
    parser.add_argument("--policy", choices=("random", "linear"), default="random")
    work = parser.add_mutually_exclusive_group(required=True)
    work.add_argument("--steps", type=int)
    work.add_argument("--sweep", type=float, metavar="SECONDS")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--check", action="store_true")
    return parser


def _collect(mode: Mode, task: Task) -> dict[str, Any]:
    task.output.mkdir(parents=True, exist_ok=True)
    steps = mode.collect(task)
    saved = sum(path.stat().st_size for path in task.output.rglob("*") if path.is_file())
    return {"steps": steps, "seconds": task.clock.seconds, "saved_bytes": saved}


def _sweep(mode: Mode, policy: str, seconds: float) -> list[tuple[Settings, float]]:
    """Run each setting for about so many seconds, and return the steps a second of each."""
    rates = []
    steps = 2000
    for settings in mode.tried:
        while True:
            with tempfile.TemporaryDirectory() as folder:
                done = _collect(mode, Task(policy, steps, Path(folder) / "out", settings))
            rate = done["steps"] / done["seconds"]
            steps = max(1, round(rate * seconds))
            if done["seconds"] >= min(ENOUGH_SECONDS, seconds / 2):
                break
        rates.append((settings, rate))
    return rates
