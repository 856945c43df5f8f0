"""Samplers that start and stop again and again: nothing of them stays."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from pathlib import Path

import psutil

from rollout_cli import Episodes, MultiprocessingSampler

WARM_UP = 5
"""Cycles after which everything exists that comes once: the fork server, caches, pools of memory."""

MEMORY_BYTES = 16 << 20
"""The process may grow by so much; a single sampler's buffers are larger."""

SHARED = Path("/dev/shm")
NAMES = ("sem.", "psm_", "pym-", "torch_")
"""How the names of Python's and torch's semaphores and shared memory begin; any others are another program's."""


@dataclass(frozen=True, slots=True)
class Holdings:
    """What a process holds of the system.

    Attributes:
        descriptors: Open file descriptors.
        processes: Processes below it.
        named: Names in the folder of shared memory, which all programs share: of segments and semaphores.
        threads: Threads.
    """

    descriptors: int
    processes: int
    named: int
    threads: int

    @classmethod
    def now(cls) -> Holdings:
        """Count."""
        this = psutil.Process()
        named = sum(path.name.startswith(NAMES) for path in SHARED.iterdir())
        return cls(this.num_fds(), len(this.children(recursive=True)), named, this.num_threads())


def run_cycles(count: int) -> Holdings:
    """Start and stop `count` samplers, each of which hands on some episodes; return what is held at the end."""
    for _ in range(WARM_UP):
        _cycle()
    before, memory = Holdings.now(), psutil.Process().memory_info().rss
    for _ in range(count):
        _cycle()
    gc.collect()
    after, grown = Holdings.now(), psutil.Process().memory_info().rss - memory
    assert before == after, f"after {count} cycles {after}, before them {before}"
    assert grown <= MEMORY_BYTES, f"after {count} cycles the process has grown by {grown:,} bytes"
    return after


def _cycle() -> None:
    with MultiprocessingSampler("random", "CartPole-v1", n_workers=2, seed=0) as sampler:
        episodes = sum(chunk.n_episodes for chunk in sampler.stream(Episodes(0, 20)))
    assert episodes == 20, f"a sampler handed on {episodes} episodes, not 20"
