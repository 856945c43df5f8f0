"""Which options do not go together: the one place where a rule is about more than one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rollout_cli.errors import ConfigError

if TYPE_CHECKING:
    from rollout_cli.config import CollectConfig, Option

_WORKERS_OWN = {
    "seed",
    "max_episode_length",
    "n_envs",
    "vectorization",
    "deterministic",
    "fresh_env",
    "worker_number",
}
"""Arguments of every worker that `worker_args` cannot hold, since they follow from other options."""


Contradictions = tuple[tuple[object, str, str], ...]
"""Of each pair of options that may contradict each other whether they do, in what, and a hint."""


def _of_native(config: CollectConfig) -> Contradictions:
    """Return the options that contradict `--vectorization native`."""
    return (
        (
            config.fresh_env,
            "--fresh-env builds single environments anew, and --vectorization native has none",
            "omit one of them",
        ),
        (
            config.worker_class is not None,
            "--vectorization native has a worker class of its own",
            "omit {worker_class}",
        ),
        (
            config.wrapper,
            "--wrapper wraps single environments, and --vectorization native has none",
            "omit {wrapper}, or let a factory wrap the vector environment",
        ),
        (
            config.tasks or config.reset_options,
            "--tasks and --reset-options reset single environments, and --vectorization native has none",
            'omit {vectorization="native"}: {envs_per_worker=…} then steps copies of the environment',
        ),
    )


def _of_others(config: CollectConfig) -> Contradictions:
    return (
        (
            config.resume and config.overwrite,
            "--resume keeps the existing dataset and --overwrite replaces it",
            "give one of them",
        ),
        (
            config.accept_changes and not config.resume,
            "--accept-changes is about a dataset that is resumed",
            "add {resume=True}, or omit it",
        ),
        (
            config.sampler == "local" and (config.step_timeout or config.episode_timeout),
            "--step-timeout and --episode-timeout need worker processes, and --sampler local has none",
            'use {sampler="multiprocessing"}',
        ),
        (
            config.keep_cap is not None and config.keep is None,
            "--keep-cap is about --keep, which is not given",
            "add {keep=EXPRESSION}, or omit it",
        ),
        (
            config.keep is not None and config.command == "exact",
            "--keep decides how many episodes run, and `rollout exact` runs the same number in each worker",
            "use `rollout collect`",
        ),
        (
            config.keep is not None and config.shard is not None,
            "--shard cannot divide --keep: which episodes count is known when all before them have ended",
            "collect without {keep}, and use `rollout filter` on what `rollout merge` makes",
        ),
        (
            config.keep is not None and config.run_numbers.start > 0,
            "--keep counts episodes from the first one on, and --episodes A:B gives their numbers",
            "say how many to keep: {episodes=N}",
        ),
        (
            config.sampler != "ray" and config.ray_address is not None,
            "--ray-address names a Ray cluster, which no other sampler uses",
            'add {sampler="ray"}',
        ),
        (
            config.shard is not None and (config.timesteps or config.max_time),
            "--shard cannot divide --timesteps or --max-time: only the whole run knows its last episode",
            'give a number of episodes, and divide that: {episodes=N} {shard="i/n"}',
        ),
        (
            config.shard is not None and config.seed is None and not config.resume,
            "--shard needs --seed",
            "all parts of a run have one root seed: give each the same",
        ),
    )


def check_together(config: CollectConfig, ends: Sequence[Option]) -> None:
    """Raise `ConfigError` where none of the command's `ends` is given, or options contradict each other."""
    set_flags = [option.flag for option in ends if getattr(config, option.name) is not None]
    flags = [option.flag for option in ends if config.command in option.commands]
    if not set_flags or not set(set_flags) <= set(flags):
        raise ConfigError(
            f"`rollout {config.command}` needs {' or '.join(flags)}, got {' and '.join(set_flags) or 'none'}",
            code="amount-option",
            hint=f"say how much to collect, for example: rollout {config.command} {flags[0]} 10",
        )
    native = _of_native(config) if config.vectorization == "native" else ()
    for contradicts, message, hint in (*native, *_of_others(config)):
        if contradicts:
            raise ConfigError(message, code="options-conflict", hint=hint)
    if config.shard is not None and config.shard.parts > len(config.run_numbers):
        units = "episodes" if config.command == "collect" else "workers"
        raise ConfigError(
            f"--shard {config.shard} divides {len(config.run_numbers)} {units}, "
            "which are fewer than the parts",
            code="shard-option",
            hint="divide into fewer parts",
        )
    for name in _WORKERS_OWN & config.worker_args.keys():
        raise ConfigError(
            f"--worker-args cannot give {name}", code="worker-args-option", hint="it follows from the options"
        )
