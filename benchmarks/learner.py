"""The cases of learners' loops: `python -m benchmarks 'loop-*' 'update-*' 'rows-*'`.

The `rows-*` cases count steps, so they do not need an idle machine, and one round is enough.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.cases import Case, Figure, Say, ratio
from benchmarks.measure import Side, Spread, run

CARTPOLE = "CartPole-v1"
N_CALLS = 10
"""Calls of one sampler, in sequence, of which steps are counted."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A sampler of CartPole: its kind, workers and rows."""

    kind: str
    n_workers: int
    n_envs: int

    def __str__(self) -> str:
        if self.kind == "local":
            return f"LocalSampler, {self.n_envs} rows"
        return f"{self.n_workers} processes of {self.n_envs} rows"

    def counts(self, policy: str, n_steps: int, n_calls: int) -> Mapping[str, int]:
        """Return the counts of `benchmarks.row_counts`."""
        words = (policy, self.kind, self.n_workers, self.n_envs, n_steps, n_calls)
        return run(_command("row_counts", *words)).document


def rows_busy(pairs: int, seconds: float, say: Say) -> list[Figure]:
    """Count the rows per vector step whose step is returned: 22-step episodes, 8,192 steps per call."""
    del seconds
    figures = []
    for rows in (Rows("local", 1, 16), Rows("processes", 2, 8)):
        for n_calls in (1, N_CALLS):
            found = [rows.counts("random", 8192, n_calls) for _ in range(pairs)]
            what = f"kept rows a vector step / rows, CartPole, random, 8,192 steps x {n_calls}: {rows}"
            figures.append(_share(what, found, "row_steps", say, bound=">= 0.90"))
    return figures


def rows_returned(pairs: int, seconds: float, say: Say) -> list[Figure]:
    """Measure the fraction of steps that are returned, by rows, episode length and steps per call."""
    del seconds
    figures = []
    for policy, length, n_steps in (("linear", 500, 2_000), ("linear", 500, 16_000), ("random", 22, 2_000)):
        for kind, n_workers in (("local", 1), ("processes", 2)):
            for n_envs in (4, 8, 16, 32):
                rows = Rows(kind, n_workers, n_envs)
                found = [rows.counts(policy, n_steps, N_CALLS) for _ in range(pairs)]
                what = (
                    f"returned / run steps, CartPole, {length}-step episodes, {n_steps:,} x {N_CALLS}: {rows}"
                )
                figures.append(_share(what, found, "run", say))
    return figures


def _share(what: str, found: Sequence[Mapping[str, int]], whole: str, say: Say, bound: str = "") -> Figure:
    spread = Spread.of(counts["returned"] / counts[whole] for counts in found)
    say(f"  {what}: {spread}")
    return Figure(what, "", spread, "", bound, f"{found[0]['returned']:,} of {found[0][whole]:,} steps")


def _command(module: str, *words: object) -> list[str]:
    return [sys.executable, "-m", f"benchmarks.{module}", *map(str, words)]


def loop(kind: str, env_id: str, name: str) -> Side:
    """Return a side of `benchmarks.learner_loops`."""
    return Side(name, lambda steps, _: _command("learner_loops", kind, env_id, steps), self_timed=True)


def against_loops(kind: str, title: str, env_id: str, bound: str) -> Case:
    """Return a case: a sampler's rate relative to a loop with SyncVectorEnv and to Stable-Baselines3."""
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
            times = run(_command("learner_loops", "update", kind, seconds)).document
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
