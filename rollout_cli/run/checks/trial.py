"""Trial: workers that run for a short time, so that `check` and `tune` see what policy and environment do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Timer
from typing import Any, Self

from rollout_cli.envs.source import EnvSource
from rollout_cli.keywords import Record
from rollout_cli.options.config import DEFAULT_SAMPLER, CollectConfig
from rollout_cli.policies.policy import PolicySource
from rollout_cli.progress import Progress
from rollout_cli.run.checks.objects import InspectingWorker
from rollout_cli.run.provenance import check_nothing_cut
from rollout_cli.run.request import completed, env_of, policy_of, sampler_of
from rollout_cli.samplers.sampler import Sampler
from rollout_cli.workers.worker import Worker


@dataclass(frozen=True, slots=True)
class Trial:
    """A configuration whose sources are found; its workers get so many `seconds` from each start of them."""

    config: CollectConfig
    policy: PolicySource
    env: EnvSource
    progress: Progress
    seconds: float

    @classmethod
    def of(cls, config: CollectConfig, progress: Progress, seconds: float) -> Self:
        """Find the sources of a configuration, and give it the seed 0 where it has none.

        Raises:
            RolloutError: If policy or environment cannot be found; nothing of them is loaded.
        """
        check_nothing_cut(config)  # Of a dataset that is to be resumed.
        policy, config = policy_of(completed(config, progress))
        config = replace(config, seed=config.seed or 0, max_worker_restarts=0)
        return cls(config, policy, env_of(config), progress, seconds)

    @contextmanager
    def running(
        self, *, limit: int | None = None, kind: type[Worker] | None = None, **options: Any
    ) -> Iterator[Sampler]:
        """Run with changed options, by default in one process; the first death of a worker is an error.

        Raises:
            InterruptedRunError: If the workers are not ready in time. What the caller asks for then ends
                early.
        """
        alone = {"workers": 1, "sampler": DEFAULT_SAMPLER, "ray_address": None}
        config = replace(self.config, **{**alone, **options})
        with sampler_of(
            config,
            self.policy,
            self.env,
            n_workers=config.workers,
            limit=limit,
            warn=self.progress.warn,
            kind=kind,
        ) as sampler:
            timer = Timer(self.seconds, sampler.request_stop)
            timer.start()
            try:
                sampler.wait_until_started()
                yield sampler
            finally:
                timer.cancel()

    def inspected(self, **arguments: Any) -> Record:
        """Return what an `InspectingWorker` with these arguments sees.

        Raises:
            RolloutError: If it cannot be built in time.
        """
        with self.running(
            kind=InspectingWorker, worker_args=arguments, worker_class=None, envs_per_worker=1
        ) as sampler:
            return sampler.report.env
