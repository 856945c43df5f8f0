"""Samplers of each backend, and what their episodes are compared with."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from rollout_cli import LocalSampler, MultiprocessingSampler, RaySampler, Sampler
from rollout_cli.episodes.batch import EpisodeBatch
from rollout_cli.episodes.chunk import Chunk
from rollout_cli.samplers.plan import Plan
from rollout_cli.seeding.seeds import env_seed
from tests.helpers.envs import FaultyEnv
from tests.helpers.policies import GlobalNoisePolicy
from tests.helpers.processes import SECONDS, is_worker

SEED = 5
BACKENDS = ("local", "forkserver", *(("ray",) if os.environ.get("ROLLOUT_TEST_RAY") == "1" else ()))
"""Those that a suite for all samplers runs over; Ray takes seconds for each sampler."""
MakeSampler = Callable[..., Sampler]


def seeds(*numbers: int) -> tuple[int, ...]:
    """Return the seeds that `env.reset` gets in these episodes."""
    return tuple(env_seed(SEED, number) for number in numbers)


def faulty(what: str, *numbers: int, signs: Path | None = None, **options: Any) -> Callable[[], FaultyEnv]:
    """Return a factory of environments that have a fault in these episodes; in all where none is named."""
    return partial(
        FaultyEnv, what, episodes=seeds(*numbers), signs=None if signs is None else str(signs), **options
    )


def sampler_of(backend: str, agents: Any = None, envs: Any = FaultyEnv, **options: Any) -> Sampler:
    """Return a sampler with root seed 5 and two workers unless other ones are asked for; its warnings are lost."""
    options.setdefault("warn", lambda text: None)
    if not any(name in options for name in ("worker_factory", "n_workers")):
        options["n_workers"] = 2
    if "worker_factory" not in options:
        options.setdefault("seed", SEED)
    agents = GlobalNoisePolicy() if agents is None else agents
    if backend == "local":
        return LocalSampler(agents, envs, **options)
    if backend == "ray":
        return RaySampler(agents, envs, cpus_per_worker=0.05, **options)
    return MultiprocessingSampler(agents, envs, start_method=backend, **options)  # type: ignore[arg-type]


def serial(plan: Plan, agents: Any = None, envs: Any = FaultyEnv, **options: Any) -> EpisodeBatch:
    """Return the episodes of a plan as one worker in this process gives them."""
    with sampler_of("local", agents, envs, n_workers=1, **options) as sampler:
        return batch_of(sampler, sampler.stream(plan))


def batch_of(sampler: Sampler, chunks: Iterable[Chunk]) -> EpisodeBatch:
    """Return the chunks of a stream as one batch, in the order in which they came."""
    taken = list(chunks)  # The spaces are known once a worker has started.
    return EpisodeBatch.from_chunks(sampler.env_spec, taken)


def numbers_of(chunks: Iterable[Chunk]) -> list[int]:
    return [int(number) for chunk in chunks for number in chunk.numbers]


def workers_below_us() -> list[psutil.Process]:
    """Return the worker processes that descend from this one."""
    return [process for process in psutil.Process().children(recursive=True) if is_worker(process)]


def worker_pids(n_workers: int) -> list[int]:
    """Return the process ids of this process's workers in the order of their numbers, once all have started."""
    deadline = time.monotonic() + SECONDS
    while len(workers := workers_below_us()) != n_workers:
        assert time.monotonic() < deadline, f"there are {len(workers)} workers, and not {n_workers}"
        time.sleep(0.005)
    return [process.pid for process in sorted(workers, key=lambda worker: worker.cmdline()[0])]
