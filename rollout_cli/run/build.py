"""Building: the sampler that a configuration asks for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from rollout_cli.config import CollectConfig
from rollout_cli.envs.source import EnvSource, env_source
from rollout_cli.envs.wrappers import wrapper_source
from rollout_cli.errors import ConfigError
from rollout_cli.option_types import keyword
from rollout_cli.pins import PinRules
from rollout_cli.policies.source import PolicySource
from rollout_cli.remote import RemotePath
from rollout_cli.samplers.local_sampler import LocalSampler
from rollout_cli.samplers.processes.pool import MultiprocessingSampler
from rollout_cli.samplers.sampler import Sampler
from rollout_cli.samplers.supervision import Supervision
from rollout_cli.workers.factory import WorkerFactory, load_worker_class
from rollout_cli.workers.kinds import DefaultWorker, VecWorker
from rollout_cli.workers.values import EpisodeRules
from rollout_cli.workers.worker import Worker


def sampler_of(
    config: CollectConfig,
    policy: PolicySource,
    env: EnvSource,
    *,
    n_workers: int | None = None,
    limit: int | None = None,
    warn: Callable[[str], None] | None = None,
) -> Sampler:
    """Return the sampler that a configuration asks for; no worker is started.

    Args:
        config: The configuration.
        policy: The policy that it names.
        env: The environment that it names.
        n_workers: How many workers, where not as many as it says.
        limit: Steps after which episodes are truncated, where that is less than it says.
        warn: Called with one line for each fault that does not end a call; None writes them to the log.

    Raises:
        UserCodeError: If the worker class cannot be found, or does not say how it wants its work.
    """
    switches = {name: True for name in ("deterministic", "fresh_env") if getattr(config, name)}
    arguments: dict[str, Any] = {**config.worker_args, **switches}
    worker_class: type[Worker] = DefaultWorker
    if config.envs_per_worker > 1 or config.vectorization == "native":
        worker_class, arguments["n_envs"] = VecWorker, config.envs_per_worker
    if config.vectorization == "native":
        arguments["vectorization"] = "native"
    if config.worker_class is not None:
        worker_class = load_worker_class(config.worker_class)
    limits = [steps for steps in (config.max_episode_length, limit) if steps is not None]
    factory = WorkerFactory(
        max_episode_length=min(limits, default=None),
        n_workers=n_workers or (len(config.shard_numbers) if config.command == "exact" else config.workers),
        seed=config.seed,
        worker_class=worker_class,
        worker_args=arguments,
        drop_infos=config.drop_info,
        rules=EpisodeRules(invalid_action=config.invalid_action, step_guard=config.episode_step_guard),
        pins=_pin_rules(config, policy, env),
    )
    supervision = Supervision(**{rule.name: getattr(config, rule.name) for rule in fields(Supervision)})
    options: dict[str, Any] = {"worker_factory": factory, "supervision": supervision, "warn": warn}
    if config.sampler == "local":
        return LocalSampler(policy, env, **options)
    if config.sampler == "ray":
        from rollout_cli.samplers.ray.pool import RaySampler  # noqa: PLC0415 - it loads Ray

        return RaySampler(
            policy,
            env,
            **options,
            address=config.ray_address,
            cpus_per_worker=config.cpus_per_worker,
            gpus_per_worker=config.gpus_per_worker,
        )
    return MultiprocessingSampler(policy, env, **options, start_method=config.start_method)


def env_of(config: CollectConfig) -> EnvSource:
    """Return the source of the environment that a configuration names, in its wrappers; nothing is built.

    Raises:
        EnvLoadError: If it names no environment, or no wrapper.
        ConfigError: If an argument of a wrapper is not `key=value`.
    """
    wrappers = []
    for spec in config.wrapper:
        name, _, arguments = spec.partition("?")
        pairs = (keyword(pair, f"an argument of --wrapper {name}") for pair in arguments.split("&") if pair)
        wrappers.append(wrapper_source(name, dict(pairs)))
    return env_source(config.env, config.env_kwargs, wrappers=tuple(wrappers))


def check_pins(names: Sequence[str]) -> None:
    """Raise ConfigError where a file to be pinned is not there."""
    for name in names:
        if not Path(name).is_file():
            raise ConfigError(
                f"--pin names no file: {name!r}", hint="paths are relative to the working folder"
            )


def _pin_rules(config: CollectConfig, policy: PolicySource, env: EnvSource) -> PinRules:
    # Relative paths, where they were given so: a worker on another machine has another working folder.
    sources = ((config.policy, policy.describe()), (config.env, env.describe()))
    specs = [spec.removeprefix(f"{record.get('scheme')}:") for spec, record in sources if record["path"]]
    return PinRules(
        named=(*_texts(config.env_kwargs), *_texts(config.worker_args), *config.pin),
        # The folders stay relative.
        folders=tuple(folder for spec in specs if (folder := os.path.dirname(spec))),  # noqa: PTH120
        ignored=() if isinstance(config.output, RemotePath) else (str(Path(config.output)),),
    )


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts among keyword arguments, however deep: one of them may name a file."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)
