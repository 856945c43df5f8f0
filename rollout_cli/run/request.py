"""A request: the sources that a configuration names, its plan, and what an earlier run committed of it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from rollout_cli.config import CollectConfig
from rollout_cli.envs.source import EnvSource
from rollout_cli.policies.source import PolicySource, policy_source
from rollout_cli.progress import Progress
from rollout_cli.run.build import env_of, sampler_of
from rollout_cli.run.provenance import sources_record
from rollout_cli.run.resume import ResumeState, resume_state
from rollout_cli.samplers.plan import Episodes, EpisodesPerWorker, MinTimesteps, Plan
from rollout_cli.samplers.sampler import Sampler


@dataclass(frozen=True, slots=True)
class Request:
    """A run whose sources are found.

    Attributes:
        config: The configuration, with the dataset's root seed where it is resumed.
        plan: The whole plan; what is left of it is in `state`.
        policy: Where the policy comes from.
        env: Where the environments come from.
        sources: The part of the run's record that is known before any worker runs.
        state: What an earlier run committed.
    """

    config: CollectConfig
    plan: Plan
    policy: PolicySource
    env: EnvSource
    sources: Mapping[str, Any]
    state: ResumeState

    @property
    def first_numbers(self) -> list[int]:
        """Of each partition of the dataset, the first episode number."""
        if isinstance(self.plan, EpisodesPerWorker):
            return [worker * self.plan.episodes for worker in self.config.shard_numbers]
        return [self.plan.first]

    @property
    def whole_stop(self) -> int:
        """One past the last episode number of a run of which this one may be a shard."""
        return self.config.run_numbers.stop * (self.config.episodes_per_worker or 1)


def requested(config: CollectConfig, progress: Progress) -> Request:
    """Find policy and environment, and read what an earlier run committed.

    Raises:
        RolloutError: If a source is missing, or the dataset to be resumed is another run's.
    """
    policy, env = policy_source(config.policy, sha256=config.policy_sha256), env_of(config)
    plan: Plan = MinTimesteps(config.timesteps or 1)
    numbers, per_worker = config.shard_numbers, config.episodes_per_worker
    if config.episodes is not None:
        plan = Episodes(numbers.start, numbers.stop)
    elif per_worker is not None:
        plan = EpisodesPerWorker(per_worker, numbers.start * per_worker)
    sources = sources_record(config, policy, env)
    state = resume_state(config, plan, sources, progress)
    return Request(state.config, plan, policy, env, sources, state)


class RunSamplers:
    """The samplers of a run, one at a time: its own, and those of one new worker that check it.

    Attributes:
        closing: Closes them, when the dataset is complete.
    """

    def __init__(self, request: Request, progress: Progress) -> None:
        self._request, self._progress = request, progress
        self._current: Sampler | None = None  # A signal ends this one.
        self.closing = ExitStack()

    def own(self) -> Sampler:
        """Return the sampler of the run's own workers, which are not started."""
        request = self._request
        sampler = self._current = sampler_of(request.config, request.policy, request.env, warn=self._warn)
        # A run that goes on, or a shard, does not begin where the other one did.
        sampler.next_number = request.plan.first + request.state.totals["episodes"]
        return self.closing.enter_context(sampler)

    def rebuild(self, limit: int | None) -> Sampler:
        """Return a sampler of one new worker; see `reproduce.Rebuild`."""
        request = self._request
        seed = request.config.seed if self._current is None else self._current.seed
        config = replace(request.config, seed=seed, on_env_error="fail", on_worker_death="fail")
        self._current = sampler_of(config, request.policy, request.env, n_workers=1, limit=limit)
        return self._current

    def rebuild_at_end(self, limit: int | None) -> AbstractContextManager[Sampler]:
        """Return the same in place of the run's own workers: two of each policy might not fit into memory."""
        own, anew = self._current, self.rebuild(limit)
        # Closing an environment in this process may take for ever.
        if self._request.config.sampler == "local":
            return nullcontext(self.closing.enter_context(anew))
        if own is not None:
            own.shutdown_worker()
        return anew

    def stop(self, name: str) -> None:
        """Let the sampling end with what is finished; called in the handler of a signal of this name."""
        if self._current is not None:
            self._current.request_stop(grace=self._request.config.grace)
        self._progress.notice(
            f"{name}: the run is ending, and commits its finished episodes; again ends it at once"
        )

    def _warn(self, text: str) -> None:
        self._progress.warn(text)
        self._progress.update(failures=1)
