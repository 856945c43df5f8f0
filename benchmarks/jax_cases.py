"""The JAX cases: `python -m benchmarks 'jax-*'`.

The loops of `benchmarks.jax_loops` run alternately in one process, which compiles each once. A run of
`rollout collect` alternates with a process that runs the scan alone.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.cases import Case, Figure, Say, collect, ratio_of
from benchmarks.measure import Cost, cost, run

CARTPOLE = "gymnax:CartPole-v1"
SCAN = "bare scan"
LONGER = 4
"""By how much a run of the command is longer: it compiles, and the time of that varies by seconds."""


def loops(env: str, n_rows: int, *names: str, pairs: int, seconds: float) -> dict[str, list[Cost]]:
    """Return the costs of each round of some loops."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.jax_loops",
        env,
        str(n_rows),
        str(pairs),
        str(seconds),
        *names,
    ]
    document = run(command).document
    return {name: [Cost(*each) for each in document[name]] for name in names}


@contextmanager
def programs_are_kept() -> Iterator[None]:
    """Let the processes of a case share compiled programs."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["JAX_COMPILATION_CACHE_DIR"] = folder
        try:
            yield
        finally:
            del os.environ["JAX_COMPILATION_CACHE_DIR"]


def against_scan(name: str, what: str, env: str, n_rows: int) -> Case:
    """Return a case: the rates of the engine and of `rollout collect` against that of a bare scan."""
    side = collect("--env", env, "--envs-per-worker", str(n_rows), workers=1)

    def measure(pairs: int, seconds: float, say: Say) -> list[Figure]:
        with programs_are_kept():
            found = loops(env, n_rows, SCAN, "engine", pairs=pairs, seconds=seconds)
            steps = round(statistics.median(each.rate for each in found[SCAN]) * seconds * LONGER)
            collected: list[Cost] = []
            scans: list[Cost] = []
            for turn in range(1, pairs + 1):
                collected.append(cost(side, steps))
                scans += loops(env, n_rows, SCAN, pairs=1, seconds=seconds)[SCAN]
                say(
                    f"  {turn}/{pairs} collect: {collected[-1].rate:,.0f}, scan: {scans[-1].rate:,.0f} steps/s"
                )
        return [
            ratio_of(f"{what}: engine", found["engine"], SCAN, found[SCAN], ">= 0.75"),
            ratio_of(f"{what}: rollout collect", collected, SCAN, scans, ">= 0.5"),
        ]

    return Case(name, measure, tags=("jax",))


def _wrapped(pairs: int, seconds: float, say: Say) -> list[Figure]:
    del say
    wrapper = "gymnax's wrapper"
    found = loops(CARTPOLE, 1024, "engine", wrapper, pairs=pairs, seconds=seconds)
    return [ratio_of("JAX CartPole x1024: engine", found["engine"], wrapper, found[wrapper], ">= 10")]


JAX = (
    against_scan("jax-cartpole-1024", "JAX CartPole x1024, random", CARTPOLE, 1024),
    against_scan("jax-cartpole-4096", "JAX CartPole x4096, random", CARTPOLE, 4096),
    against_scan("jax-brax-256", "brax inverted_pendulum x256, random", "brax:inverted_pendulum", 256),
    Case("jax-gymnasium", _wrapped, tags=("jax",)),
)
