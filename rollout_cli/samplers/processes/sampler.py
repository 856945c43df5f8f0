"""MultiprocessingSampler: workers in processes of their own on this machine."""

from __future__ import annotations

from typing import Any

from rollout_cli.loading import one_line
from rollout_cli.samplers.pool import Pool
from rollout_cli.samplers.processes.fork_server import StartMethod
from rollout_cli.samplers.processes.pool import ProcessPool
from rollout_cli.samplers.sampler import Sampler


class MultiprocessingSampler(Sampler):
    """Samples with worker processes that avoid waiting as much as possible.

    The sampler leases episode numbers to workers ahead of their need, hands each finished episode on in the order of
    the numbers, and waits for messages and deaths at once. A worker never blocks on sending.

    Args:
        args: As in `Sampler`.
        start_method: `forkserver` or `spawn`.
        kwargs: As in `Sampler`.
    """

    def __init__(self, *args: Any, start_method: StartMethod = "forkserver", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._start_method: StartMethod = start_method

    def _make_pool(self) -> Pool:
        titles = [f"worker:{number} {one_line(label)}" for number, label in enumerate(self._updates.labels)]
        return ProcessPool(self._factory, titles, self._start_method, self._supervision)
