"""Trial: workers that run for a short time, with which `check` and `tune` try a configuration."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Timer
from typing import Any, Self

import numpy as np

from rollout_cli.envs.source import EnvSource
from rollout_cli.keywords import Record
from rollout_cli.options.config import DEFAULT_SAMPLER, CollectConfig
from rollout_cli.policies.policy import PolicySource
from rollout_cli.progress import Progress
from rollout_cli.run.checks.objects import InspectingWorker
from rollout_cli.run.provenance import check_nothing_cut
from rollout_cli.run.request import completed, env_of, policy_of, sampler_of
from rollout_cli.run.serve import policy_process
from rollout_cli.samplers.plan import MinTimesteps
from rollout_cli.samplers.sampler import Sampler
from rollout_cli.workers.worker import Worker

_FEWEST = 3  # Minimum number of messages for a rate.
_NO_END = 1 << 60


@dataclass(frozen=True, slots=True)
class Trial:
    """A configuration with its sources; its workers are stopped `seconds` after they are started."""

    config: CollectConfig
    policy: PolicySource
    env: EnvSource
    progress: Progress
    seconds: float

    @classmethod
    def of(cls, config: CollectConfig, progress: Progress, seconds: float) -> Self:
        """Find the sources of a configuration, without loading them, and return its trial; the default seed is 0.

        Raises:
            RolloutError: If the policy or the environment cannot be found.
        """
        check_nothing_cut(config)  # Options of a dataset to resume may lack secrets.
        policy, config = policy_of(completed(config, progress))
        config = replace(config, seed=config.seed or 0, max_worker_restarts=0)
        return cls(config, policy, env_of(config), progress, seconds)

    @contextmanager
    def running(
        self, *, limit: int | None = None, kind: type[Worker] | None = None, **options: Any
    ) -> Iterator[Sampler]:
        """Start workers with changed options, by default one process, and yield their sampler.

        When the time is over, a stream of the sampler ends early. The first death of a worker is an error.

        Raises:
            InterruptedRunError: If the workers are not ready in time.
        """
        alone = {"workers": 1, "sampler": DEFAULT_SAMPLER, "ray_address": None}
        config = replace(self.config, **{**alone, **options})
        with (
            policy_process(config, self.policy, self.env) as policy,
            sampler_of(
                config,
                policy,
                self.env,
                n_workers=config.workers,
                limit=limit,
                warn=self.progress.warn,
                kind=kind,
            ) as sampler,
        ):
            timer = Timer(self.seconds, sampler.request_stop)
            timer.start()
            try:
                sampler.wait_until_started()
                yield sampler
            finally:
                timer.cancel()

    def inspected(self, **arguments: Any) -> Record:
        """Return the environment record of an `InspectingWorker` with these arguments.

        Raises:
            RolloutError: If the worker cannot be built in time.
        """
        with self.running(
            kind=InspectingWorker, worker_args=arguments, worker_class=None, envs_per_worker=1
        ) as sampler:
            return sampler.report.env


def rate_of(sampler: Sampler, seconds: float) -> float | None:
    """Return the steps per second of started workers, measured for `seconds`; None if too few episodes ended."""
    times = list[float]()
    steps = list[int]()
    for chunk in sampler.stream(MinTimesteps(_NO_END, sampler.next_number)):
        times.append(time.monotonic())
        steps.append(chunk.n_steps)
        if times[-1] - times[0] >= seconds and len(times) >= _FEWEST:
            break
    if len(times) < _FEWEST:  # The trial reached its time limit.
        return None
    # Fit a slope: episodes of equal length end in bursts, and a simple quotient depends on where one is cut.
    return float(np.polyfit(np.subtract(times, times[0]), np.cumsum(steps), 1)[0])
