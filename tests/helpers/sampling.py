"""Samplers of each backend, and what their episodes are compared with."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from rollout_cli.episodes.batch import EpisodeBatch
from rollout_cli.episodes.chunk import Chunk
from rollout_cli.samplers import LocalSampler, MultiprocessingSampler, Plan, RaySampler, Sampler
from rollout_cli.seeding.seeds import env_seed
from tests.helpers.envs import FaultyEnv
from tests.helpers.policies import GlobalNoisePolicy
from tests.helpers.processes import is_worker

SEED = 5
BACKENDS = ("local", "forkserver", *(("ray",) if os.environ.get("ROLLOUT_TEST_RAY") == "1" else ()))
"""Those that a suite for all samplers runs over; Ray takes seconds for each sampler."""
MakeSampler = Callable[..., Sampler]


def seeds(*numbers: int) -> tuple[int, ...]:
    """Return the seeds that `env.reset` gets in these episodes."""
    return tuple(env_seed(SEED, number) for number in numbers)


def faulty(what: str, *numbers: int, signs: Path | None = None, **options: Any) -> Callable[[], FaultyEnv]:
    """Return a factory of environments that have a fault in these episodes; in all where none is named."""
    return partial(FaultyEnv, what, episodes=seeds(*numbers), signs=None if signs is None else str(signs), **options)


def sampler_of(backend: str, agents: Any = None, envs: Any = FaultyEnv, **options: Any) -> Sampler:
    """Return a sampler with root seed 5 and two workers unless other ones are asked for; it warns nobody."""
    if not any(name in options for name in ("worker_factory", "n_workers")):
        options["n_workers"] = 2
    if "worker_factory" not in options:
        options.setdefault("seed", SEED)
    agents = GlobalNoisePolicy() if agents is None else agents
    if backend == "local":
        sampler: Sampler = LocalSampler(agents, envs, **options)
    elif backend == "ray":
        sampler = RaySampler(agents, envs, cpus_per_worker=0.05, **options)
    else:
        sampler = MultiprocessingSampler(agents, envs, start_method=backend, **options)  # type: ignore[arg-type]
    sampler.warn = lambda text: None
    return sampler


def warnings_of(sampler: Sampler) -> list[str]:
    """Return the list of what a sampler warns of from now on."""
    warnings: list[str] = []
    sampler.warn = warnings.append
    return warnings


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
