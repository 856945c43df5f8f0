"""The cases of a learner's loop: `python -m benchmarks 'loop-*'`, `update-cost`, and the counts `rows-*`.

What the counts count is exact, so one round is enough, on any machine.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from benchmarks.cases import Case, Figure, Say, ratio
from benchmarks.measure import Side, Spread, run
from benchmarks.policies import Array, BatchedLinear
from rollout_cli import LocalSampler, MultiprocessingSampler, Sampler, VecWorker

N_CALLS = 5
"""Calls of a sampler, in sequence, of which steps are counted."""

CARTPOLE = "CartPole-v1"


class Counter:
    """Counts in a file of its own, which outlives its process. A copy counts in another file."""

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
    """Return the sum of all counters of a folder."""
    return sum(int(np.fromfile(path, np.int64)[0]) for path in folder.iterdir())


class RandomPolicy:
    """Pushes left or right at random, each row from a generator of its own."""

    def __init__(self) -> None:
        self._generators: list[np.random.Generator] = []

    def seed_rows(self, mask: Array, seeds: Array) -> None:
        """Seed the rows that start an episode."""
        self._generators = self._generators or [np.random.default_rng(0)] * len(mask)
        for row in np.flatnonzero(mask):
            self._generators[row] = np.random.default_rng(int(seeds[row]))

    def get_actions(self, observations: Array) -> tuple[Array, dict[str, Any]]:
        """Choose n actions, int64 (n,)."""
        del observations
        return np.array([generator.integers(2) for generator in self._generators]), {}


class CallCounter:
    """A batched policy around another one; it counts the vector steps of its worker."""

    def __init__(self, policy: Any, counter: Counter) -> None:
        self._policy, self._counter = policy, counter
        if hasattr(policy, "seed_rows"):
            self.seed_rows = policy.seed_rows

    def get_actions(self, observations: Array) -> tuple[Array, dict[str, Any]]:
        """Return the policy's actions."""
        self._counter.add()
        actions: tuple[Array, dict[str, Any]] = self._policy.get_actions(observations)
        return actions


class StepCounter(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Counts the steps of an environment."""

    def __init__(self, env: gymnasium.Env[Any, Any], counter: Counter) -> None:
        super().__init__(env)
        self._counter = counter

    def step(self, action: Any) -> Any:
        """Step the environment."""
        self._counter.add()
        return self.env.step(action)


@dataclass(frozen=True, slots=True)
class Rows:
    """A sampler of CartPole: its class, workers and rows."""

    kind: type[Sampler]
    n_workers: int
    n_envs: int

    def __str__(self) -> str:
        if self.kind is LocalSampler:
            return f"LocalSampler, {self.n_envs} rows"
        return f"{self.n_workers} processes of {self.n_envs} rows"

    def collect(self, policy: Any, n_steps: int, n_calls: int) -> Counts:
        """Return what so many calls of `n_steps` steps return and run."""
        with tempfile.TemporaryDirectory() as calls, tempfile.TemporaryDirectory() as steps:
            sampler = self.kind(
                CallCounter(policy, Counter(Path(calls))),
                StepCounter(gymnasium.make(CARTPOLE), Counter(Path(steps))),
                n_workers=self.n_workers,
                worker_class=VecWorker,
                worker_args={"n_envs": self.n_envs},
                seed=0,
            )
            with sampler:
                returned = [len(sampler.obtain_samples(itr, n_steps, None).rewards) for itr in range(n_calls)]
            return Counts(sum(returned), counted(Path(steps)), counted(Path(calls)) * self.n_envs)


@dataclass(frozen=True, slots=True)
class Counts:
    """Steps that were returned; steps that were run; and steps for which there were rows."""

    returned: int
    run: int
    room: int


def rows_busy(pairs: int, seconds: float, say: Say) -> list[Figure]:
    """Count the share of the rows' steps that are returned: 22-step episodes of CartPole, 8,192 steps a call."""
    del seconds
    figures = []
    for rows in (Rows(LocalSampler, 1, 16), Rows(MultiprocessingSampler, 2, 8)):
        for n_calls in (1, N_CALLS):
            found = [rows.collect(RandomPolicy(), 8192, n_calls) for _ in range(pairs)]
            spread = Spread.of(counts.returned / counts.room for counts in found)
            what = f"kept rows a vector step / rows, CartPole, random, calls of 8,192 steps: {rows}"
            detail = f"{found[0].returned:,} of {found[0].room:,}"
            say(f"  {rows}, {n_calls} calls: {spread}")
            figures.append(Figure(f"{what}, {n_calls} calls", "", spread, "", ">= 0.90", detail))
    return figures


def rows_returned(pairs: int, seconds: float, say: Say) -> list[Figure]:
    """Count the share of the run steps that are returned: 500-step episodes of CartPole, 2,000 steps a call."""
    del seconds
    figures = []
    kinds = ((LocalSampler, 1), (MultiprocessingSampler, 2))
    for rows in (Rows(kind, n_workers, n_envs) for kind, n_workers in kinds for n_envs in (8, 16, 32)):
        found = [rows.collect(BatchedLinear(), 2000, N_CALLS) for _ in range(pairs)]
        spread = Spread.of(counts.returned / counts.run for counts in found)
        what = (
            f"returned steps / run steps, CartPole, 500-step episodes, {N_CALLS} calls of 2,000 steps: {rows}"
        )
        say(f"  {rows}: {spread}")
        figures.append(Figure(what, "", spread, detail=f"{found[0].returned:,} of {found[0].run:,}"))
    return figures


def _command(*words: object) -> list[str]:
    return [sys.executable, "-m", "benchmarks.learner_loops", *map(str, words)]


def loop(kind: str, env_id: str, name: str) -> Side:
    """Return a side of `benchmarks.learner_loops`."""
    return Side(name, lambda steps, _: _command(kind, env_id, steps), self_timed=True)


def against_loops(kind: str, title: str, env_id: str, bound: str) -> Case:
    """Return a case: a sampler's rate over that of a loop with SyncVectorEnv, and that of Stable-Baselines3."""
    short = env_id.partition("-")[0].lower()
    others = {
        loop("sync_vector", env_id, "SyncVectorEnv x16, one process"): bound,
        loop("sb3", env_id, "Stable-Baselines3, PPO.collect_rollouts x16"): "",
    }
    what = f"{env_id}, 2,048 steps an iteration with new parameters, torch MLP: {title}"
    return ratio(f"loop-{kind}-{short}", what, loop(kind, env_id, title), others)


def _update_cost(kind: str, title: str, bound: str) -> Callable[[int, float, Say], list[Figure]]:
    def measure(pairs: int, seconds: float, say: Say) -> list[Figure]:
        rounds = []
        for turn in range(1, pairs + 1):
            times = run(_command("update", kind, seconds)).document
            medians = {name: statistics.median(values) * 1e3 for name, values in times.items()}
            rounds.append(medians)
            say(f"  {turn}/{pairs} {title}: " + ", ".join(f"{n} {ms:.1f} ms" for n, ms in medians.items()))
        return [_update_figure(title, update, rounds, bound) for update in ("state_dict", "module")]

    return measure


def _update_figure(title: str, update: str, rounds: Sequence[dict[str, float]], bound: str) -> Figure:
    extra = Spread.of(medians[update] - medians["none"] for medians in rounds)
    factor = Spread.of(medians[update] / medians["none"] for medians in rounds)
    plain, updated = (Spread.of(medians[name] for medians in rounds).median for name in ("none", update))
    what = f"a call of 20 steps of CartPole with a new {update}: {title}"
    detail = f"{updated:.1f} against {plain:.1f} ms, a factor of {factor}"
    return Figure(what, "no update", extra, "ms more", bound, detail)


LOCAL, PROCESSES = "LocalSampler x16", "MultiprocessingSampler, two workers x8"

LEARNER: tuple[Case, ...] = (
    Case("rows-busy", rows_busy),
    Case("rows-returned", rows_returned),
    against_loops("local", LOCAL, CARTPOLE, ">= 0.70"),
    against_loops("local", LOCAL, "HalfCheetah-v5", ">= 0.85"),
    against_loops("processes", PROCESSES, CARTPOLE, ">= 1.2"),
    against_loops("processes", PROCESSES, "HalfCheetah-v5", ">= 1.5"),
    Case("update-cost-local", _update_cost("local", LOCAL, "<= 5")),
    Case("update-cost-processes", _update_cost("processes", PROCESSES, "<= 8")),
)
