"""What is run in processes of their own: forking needs one without threads, and a parent's death needs a parent."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rollout_cli.chunk import concatenate
from rollout_cli.errors import WorkerError
from rollout_cli.samplers import EpisodesPerWorker, MinTimesteps, MultiprocessingSampler, parent_watch, shared_ring
from tests.contract.making import noisy, slow_env
from tests.support.envs import ChainEnv, KillingEnv


class ParentEnv(ChainEnv):
    """Starts a process, and tells its id in each step."""

    def __init__(self) -> None:
        super().__init__()
        self._child: int | None = None

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._child is None:
            command = [sys.executable, "-c", "import time; time.sleep(600)"]
            self._child = os.posix_spawn(sys.executable, command, os.environ)
        return (*super().step(action)[:4], {"child": self._child})


def a_parent_that_is_gone() -> None:
    """End with a parent that had ended before anybody could watch it."""
    reader, writer = os.pipe()
    os.close(writer)
    setattr(parent_watch, "parent_process", lambda: SimpleNamespace(sentinel=reader))  # noqa: B010  It is not exported.
    parent_watch.end_with_parent()
    time.sleep(600)


def tell(found: Any) -> None:
    """Write one line for the test to read."""
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


def fork() -> None:
    """Tell what forked workers gave: a plan in order, exact episodes, and what follows a death."""
    sampler = MultiprocessingSampler(noisy(slow_env()), slow_env(), n_workers=3, seed=5, start_method="fork")
    sampler.tell = lambda text: None
    with sampler:
        chunks = list(sampler.stream(MinTimesteps(200)))
        exact = sorted(int(number) for chunk in sampler.stream(EpisodesPerWorker(2)) for number in chunk.numbers)
        try:
            sampler.obtain_samples(0, 100, None, KillingEnv(5))
        except WorkerError as error:
            message = error.message
        again = sampler.obtain_samples(0, 30, None, ChainEnv())
    whole = concatenate(chunks)
    found = {
        "numbers": whole.numbers.tolist(),
        "rewards": whole.rewards.tolist(),
        "workers": sorted(set(whole.workers.tolist())),
        "exact": exact,
        "message": message,
        "again": int(again.lengths.sum()),
    }
    tell(found)


def wait_to_be_killed() -> None:
    """Tell the workers' process ids while they are in the middle of a run, then do nothing."""
    sampler = MultiprocessingSampler(noisy(slow_env()), slow_env(), n_workers=2, seed=5)
    stream = sampler.stream(MinTimesteps(10**9))
    next(stream)
    tell(sampler._the_pool().pids)
    time.sleep(600)


def wait_beside_a_child() -> None:
    """As `wait_to_be_killed`, and tell a process that an environment has started too."""
    sampler = MultiprocessingSampler(noisy(ChainEnv()), ParentEnv(), n_workers=1, seed=5)
    chunk = next(sampler.stream(MinTimesteps(10**9)))
    tell([*sampler._the_pool().pids, int(chunk.env_infos.to_dicts()[0]["child"])])
    time.sleep(600)


def wait_with_watching_threads() -> None:
    """As `wait_to_be_killed`, where the system does not tell when a pipe is closed."""
    parent_watch._system_tells = lambda: False
    sampler = MultiprocessingSampler(noisy(slow_env()), slow_env(), n_workers=2, seed=5, start_method="fork")
    next(sampler.stream(MinTimesteps(10**9)))
    tell(sampler._the_pool().pids)
    time.sleep(600)


def leave_without_shutting_down() -> None:
    """End the process with workers running and nothing closed."""
    sampler = MultiprocessingSampler(noisy(slow_env()), slow_env(), n_workers=2, seed=5)
    stream = sampler.stream(MinTimesteps(10**9))
    next(stream)
    tell(sampler._the_pool().pids)


def share_memory() -> None:
    """Tell the workers' process ids when each of them has sent something by shared memory, then do nothing."""
    shared_ring.RING_MIN_BYTES = 1
    wait_to_be_killed()


def start_and_stop() -> None:
    """Tell how many descriptors and mappings of shared memory there are after one start and stop, and after fifty."""
    shared_ring.RING_MIN_BYTES = 1
    found = []
    for cycle in range(50):
        sampler = MultiprocessingSampler(noisy(ChainEnv()), ChainEnv(), n_workers=2, seed=5, start_method="fork")
        with sampler:
            sampler.obtain_samples(0, 20, None)
            during = shared_mappings()
        if cycle in {0, 49}:
            found.append((during, shared_mappings(), len(list(Path("/proc/self/fd").iterdir()))))
    tell(found)


def shared_mappings() -> int:
    """Return how many rings this process has mapped."""
    return Path("/proc/self/maps").read_text().count("/memfd:rollout-ring")


SCRIPTS = {
    "fork": fork,
    "wait": wait_to_be_killed,
    "leave": leave_without_shutting_down,
    "share": share_memory,
    "child": wait_beside_a_child,
    "threads": wait_with_watching_threads,
    "gone": a_parent_that_is_gone,
    "cycles": start_and_stop,
}

if __name__ == "__main__":
    SCRIPTS[sys.argv[1]]()
