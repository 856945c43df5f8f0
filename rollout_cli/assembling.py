"""From a configuration to what runs it: its plan, its workers and its sampler."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rollout_cli.config import CollectConfig
from rollout_cli.envs import EnvSource
from rollout_cli.episode_batch import EnvSpec
from rollout_cli.policies import PolicySource
from rollout_cli.samplers import (
    Episodes,
    EpisodesPerWorker,
    LocalSampler,
    MinTimesteps,
    MultiprocessingSampler,
    Plan,
    Sampler,
    Supervision,
)
from rollout_cli.workers import DefaultWorker, NativeVecWorker, VecWorker, Worker, WorkerFactory
from rollout_cli.workers.factory import load_worker_class
from rollout_cli.workers.rules import EpisodeRules


def plan_of(config: CollectConfig) -> Plan:
    """Return the plan that a configuration asks for."""
    if config.episodes_per_worker is not None:
        return EpisodesPerWorker(config.episodes_per_worker)
    if config.episodes is not None:
        return Episodes(config.episodes.first, config.episodes.stop)
    assert config.timesteps is not None
    return MinTimesteps(config.timesteps)


def sampler_of(config: CollectConfig, policy: PolicySource, env: EnvSource) -> Sampler:
    """Return the sampler that a configuration asks for; no worker is started.

    Raises:
        UserCodeError: If the worker class cannot be found, or cannot tell how it wants its work.
        UsageError: If it gives parts of episodes.
    """
    factory = WorkerFactory(
        max_episode_length=config.max_episode_length,
        n_workers=config.workers,
        seed=config.seed,
        worker_class=_worker_class(config),
        worker_args=_worker_args(config),
        drop_infos=config.drop_info,
        rules=EpisodeRules(invalid_action=config.invalid_action, step_guard=config.episode_step_guard),
    )
    factory.require_whole_episodes("a dataset")
    supervision = _supervision(config)
    if config.sampler == "local":
        return LocalSampler(policy, env, worker_factory=factory, supervision=supervision)
    return MultiprocessingSampler(
        policy, env, worker_factory=factory, supervision=supervision, start_method=config.start_method
    )


def _supervision(config: CollectConfig) -> Supervision:
    return Supervision(
        max_worker_restarts=config.max_worker_restarts,
        on_worker_death=config.on_worker_death,
        on_env_error=config.on_env_error,
        step_timeout=config.step_timeout,
        episode_timeout=config.episode_timeout,
    )


def _worker_class(config: CollectConfig) -> type[Worker]:
    if config.worker_class is not None:
        return load_worker_class(config.worker_class)
    if config.vectorization == "native":
        return NativeVecWorker
    return VecWorker if config.envs_per_worker > 1 else DefaultWorker


def _worker_args(config: CollectConfig) -> dict[str, Any]:
    arguments = dict(config.worker_args)
    if config.deterministic:
        arguments["deterministic"] = True
    if config.envs_per_worker > 1 or config.vectorization == "native":
        arguments["n_envs"] = config.envs_per_worker
    return arguments


def limited(spec: EnvSpec, max_episode_length: int | None) -> EnvSpec:
    """Return `spec` with the lower of the two limits."""
    limits = [limit for limit in (spec.max_episode_length, max_episode_length) if limit is not None]
    return replace(spec, max_episode_length=min(limits, default=None))
