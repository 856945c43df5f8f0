"""Requests: the sources, plan, samplers and committed episodes that a configuration stands for."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from rollout_cli.dataset.layout import root_seed_of
from rollout_cli.dataset.record import RunFacts
from rollout_cli.envs.source import EnvSource, env_source, wrapper_source
from rollout_cli.episodes.spaces import SpaceRows
from rollout_cli.errors import ConfigError, PolicyLoadError
from rollout_cli.keywords import Keywords, parted
from rollout_cli.options.config import DEFAULT_ENV, CollectConfig
from rollout_cli.policies.explore import ExploringSource
from rollout_cli.policies.policy import PolicySource
from rollout_cli.policies.recorded import RecordedSource
from rollout_cli.policies.schemes.files import FilePolicySource
from rollout_cli.policies.source import SCHEMES, loads_torch, policy_source
from rollout_cli.progress import Progress
from rollout_cli.run.provenance import check_nothing_cut, sources_record
from rollout_cli.run.resume import ResumeState, resume_state
from rollout_cli.run.trust import check_trusted
from rollout_cli.samplers.keep import keep_expression
from rollout_cli.samplers.local_sampler import LocalSampler
from rollout_cli.samplers.plan import NO_END, Episodes, EpisodesPerWorker, MinTimesteps, Plan
from rollout_cli.samplers.processes.fork_server import running_server
from rollout_cli.samplers.processes.pool import MultiprocessingSampler
from rollout_cli.samplers.sampler import Sampler
from rollout_cli.samplers.supervision import Supervision
from rollout_cli.seeding.seeds import derive_seed, env_seed
from rollout_cli.sources.pins import PinRules
from rollout_cli.sources.remote import RemotePath, folder_of
from rollout_cli.workers.factory import WorkerFactory, load_worker_class
from rollout_cli.workers.kinds import DefaultWorker, VecWorker
from rollout_cli.workers.values import EpisodeRules
from rollout_cli.workers.worker import Worker

_RUN_AN_EPISODE = 1_000
_RUN_A_STEP = 10
"""Default `keep_cap`: episodes that may run per kept episode, or per step of `timesteps`."""


@dataclass(frozen=True, slots=True)
class Request:
    """A configuration with its sources, plan and the state of its dataset.

    Attributes:
        config: The configuration; a resumed run has the dataset's root seed.
        plan: The complete plan; `state` has the remaining one.
        policy: The source of the policy.
        env: The source of the environments.
        sources: The part of the run's record that is known before any worker runs.
        state: The episodes that earlier runs committed, and the remaining plan.
    """

    config: CollectConfig
    plan: Plan
    policy: PolicySource
    env: EnvSource
    sources: RunFacts
    state: ResumeState

    @property
    def first_numbers(self) -> list[int]:
        """The first episode number of each partition."""
        if isinstance(self.plan, EpisodesPerWorker):
            return [worker * self.plan.episodes for worker in self.config.shard_numbers]
        return [self.plan.first]

    @property
    def whole_stop(self) -> int:
        """One past the last episode number of the complete run, of which this one may be a shard."""
        return self.config.run_numbers.stop * (self.config.episodes_per_worker or 1)


def completed(config: CollectConfig, progress: Progress) -> CollectConfig:
    """Return a configuration with an environment; by default, the one in which the policy was trained.

    The configuration's `env_kwargs` are added to the arguments of the training, and its wrappers replace the
    wrappers of the training. If the policy's files do not record its training, use the default environment.

    Raises:
        PolicyLoadError: If the policy cannot be found, or its training environment cannot be rebuilt.
        UserCodeError: If that environment may run arbitrary code, and the user does not trust the files.
        ConfigError: If no option can hold the arguments of that environment.
    """
    if config.env is not None:
        return config
    source = policy_source(config.policy, config.policy_kwargs, sha256=config.policy_sha256)
    if not isinstance(source, FilePolicySource) or (trained := source.trained_in()) is None:
        return replace(config, env=DEFAULT_ENV)
    kwargs = {**trained.kwargs, **config.env_kwargs}
    wrappers = config.wrapper or tuple(_wrapper_text(*wrapper) for wrapper in trained.wrappers)
    if not source.options.get("trust"):
        named = () if config.wrapper else wrappers
        check_trusted(
            config.policy,
            replace(config, env=trained.spec, env_kwargs=trained.kwargs, wrapper=named),
            hint="pass the environment: {env=…}; or trust the folder: {policy_kwargs=trust=true}",
        )
    config = replace(config, env=trained.spec, env_kwargs=kwargs, wrapper=wrappers)
    flags = [
        *("--env", trained.spec),
        *(f"--env-kwargs={name}={json.dumps(value)}" for name, value in kwargs.items()),
        *(f"--wrapper={text}" for text in wrappers),
    ]
    progress.notice(f"using the training environment of {config.policy}: {shlex.join(flags)}")
    return config


def requested(config: CollectConfig, progress: Progress) -> Request:
    """Find the policy and the environment, read the committed episodes to resume, and return the request.

    Raises:
        RolloutError: If a source is missing, the dataset to resume is of another run, or `keep` is invalid.
    """
    check_nothing_cut(config)
    if config.keep is not None:
        keep_expression(config.keep)
    policy, config = policy_of(config)
    env = env_of(config)
    plan = _plan_of(config)
    sources = sources_record(config, policy, env)
    state = resume_state(config, plan, sources, progress)
    return Request(state.config, plan, policy, env, sources, state)


def policy_of(config: CollectConfig) -> tuple[PolicySource, CollectConfig]:
    """Return the policy with its exploration, and the configuration with the root seed of a recorded policy.

    Raises:
        RolloutError: If the policy cannot be found, or its recorded episodes have another root seed.
    """
    policy = policy_source(config.policy, config.policy_kwargs, sha256=config.policy_sha256)
    if isinstance(policy, RecordedSource):
        config = replace(config, seed=policy.root_seed(config.seed))
    return exploring(policy, config), config


def _plan_of(config: CollectConfig) -> Plan:
    """Return the complete plan, which a time limit may cut."""
    numbers = config.shard_numbers
    per_worker = config.episodes_per_worker
    if per_worker is not None:
        return EpisodesPerWorker(per_worker, numbers.start * per_worker)
    first, stop = (0, NO_END) if config.episodes is None else (numbers.start, numbers.stop)
    kept = None
    if config.keep is not None:
        kept = None if config.episodes is None else stop
        most = _RUN_AN_EPISODE * kept if kept else _RUN_A_STEP * (config.timesteps or NO_END)
        stop = config.keep_cap or min(most, NO_END)
    if config.timesteps is None:
        return Episodes(first, stop, kept)
    return MinTimesteps(config.timesteps, first, stop, kept)


class RunSamplers:
    """The samplers of a run, used one at a time: its main sampler, and samplers with one worker for checks.

    Attributes:
        own: The main sampler; its workers are not started yet.
        closing: Closes the samplers after the dataset is complete.
    """

    def __init__(self, request: Request, progress: Progress) -> None:
        self._request = request
        self._progress = progress
        self.own = self._current = sampler_of(  # A signal ends the current one.
            request.config, request.policy, request.env, warn=self._warn, keep=request.config.keep
        )
        # A resumed run or a shard does not start at episode 0.
        self.own.next_number = request.plan.first + request.state.totals["episodes"]
        self.closing = ExitStack()

    def rebuild(self, limit: int | None) -> Sampler:
        """Return a sampler with one fresh worker; see `reproduce.Rebuild`."""
        request = self._request
        config = replace(request.config, seed=self.own.seed, on_env_error="fail", on_worker_death="fail")
        return sampler_of(config, request.policy, request.env, n_workers=1, limit=limit)

    def rebuild_at_end(self, limit: int | None) -> AbstractContextManager[Sampler]:
        """Return a sampler with one fresh worker after ending the run's workers, to save memory."""
        self._current = self.rebuild(limit)
        # Closing an environment in this process may block forever, so close it last.
        if self._request.config.sampler == "local":
            return nullcontext(self.closing.enter_context(self._current))
        self.own.shutdown_worker()
        return self._current

    def stop(self, name: str) -> None:
        """Stop sampling and keep finished episodes; called in the handler of the signal with this name."""
        self._current.request_stop(grace=self._request.config.grace)
        self._progress.notice(
            f"{name}: stopping the run and committing its finished episodes; a second signal ends it at once"
        )

    def _warn(self, text: str) -> None:
        self._progress.warn(text)
        self._progress.update(failures=1)


def sampler_of(
    config: CollectConfig,
    policy: PolicySource,
    env: EnvSource,
    *,
    n_workers: int | None = None,
    limit: int | None = None,
    warn: Callable[[str], None] | None = None,
    kind: type[Worker] | None = None,
    keep: str | None = None,
) -> Sampler:
    """Return the sampler of a configuration, without starting its workers.

    Args:
        config: The configuration.
        policy: The policy of the configuration.
        env: The environment of the configuration.
        n_workers: Number of workers, if not the configuration's.
        limit: Maximum steps of an episode, if less than the configuration's.
        warn: Called with one line for each fault that does not end a call; None writes them to the log.
        kind: Worker class that replaces the configuration's.
        keep: Expression for the episodes to keep; None keeps every episode, whatever the configuration says.

    Raises:
        UserCodeError: If the worker class cannot be found or used.
    """
    worker_class, arguments = _worker_class(config)
    limits = [steps for steps in (config.max_episode_length, limit) if steps is not None]
    factory = WorkerFactory(
        max_episode_length=min(limits, default=None),
        n_workers=n_workers or (len(config.shard_numbers) if config.command == "exact" else config.workers),
        seed=config.seed,
        worker_class=kind or worker_class,
        worker_args=arguments,
        drop_infos=config.drop_info,
        keep=keep,
        rules=EpisodeRules(
            invalid_action=config.invalid_action,
            step_guard=config.episode_step_guard,
            reset_options=config.reset_options,
            tasks=config.tasks or (),
            store_state=config.store_state,
            device=config.device,
        ),
        pins=pin_rules(config, policy, env),
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
    # On macOS, threads and system libraries that torch has loaded may not survive a fork.
    if config.start_method == "forkserver" and sys.platform != "darwin" and loads_torch(policy):
        running_server("forkserver").import_torch()
    return MultiprocessingSampler(policy, env, **options, start_method=config.start_method)


def _worker_class(config: CollectConfig) -> tuple[type[Worker], dict[str, Any]]:
    """Return the worker class of a configuration and its arguments."""
    switches = {name: True for name in ("deterministic", "fresh_env") if getattr(config, name)}
    arguments: dict[str, Any] = {**config.worker_args, **switches}
    worker_class: type[Worker] = DefaultWorker
    if config.envs_per_worker > 1 or config.vectorization == "native":
        worker_class = VecWorker
        arguments["n_envs"] = config.envs_per_worker
        arguments["vectorization"] = config.vectorization
    if config.worker_class is not None:
        worker_class = load_worker_class(config.worker_class)
    return worker_class, arguments


def exploring(policy: PolicySource, config: CollectConfig) -> PolicySource:
    """Return a policy's source with the exploration noise of a configuration."""
    if config.epsilon is None and config.action_noise is None:
        return policy
    return ExploringSource(policy, config.epsilon, config.action_noise)


def env_of(config: CollectConfig) -> EnvSource:
    """Return the source of a configuration's environment and wrappers, without building it.

    Raises:
        EnvLoadError: If the environment or a wrapper is unknown.
        ConfigError: If an argument of a wrapper is not `key=value`.
    """
    assert config.env is not None, "`completed` sets it"
    wrappers = tuple(wrapper_source(*parted(spec, "--wrapper")) for spec in config.wrapper)
    return env_source(config.env, config.env_kwargs, wrappers=wrappers)


def _wrapper_text(name: str, arguments: Keywords) -> str:
    """Return a wrapper as a string for `--wrapper`; raise `ConfigError` if a string cannot hold its arguments."""
    values = {
        key: json.dumps(value, default=repr).replace("&", r"\u0026") for key, value in arguments.items()
    }
    pairs = [f"{key}={value}" for key, value in values.items()]
    text = "?".join([name, "&".join(pairs)]) if pairs else name
    if parted(text, "--wrapper") != (name, arguments):
        raise ConfigError(
            f"the policy was trained in the wrapper {name}, "
            f"but --wrapper cannot hold its arguments {arguments}",
            code="wrapper-arguments",
            hint="pass the environment, and a function that wraps it: {env=…} {wrapper=module:attr}",
        )
    return text


def check_pins(names: Sequence[str]) -> None:
    """Raise `ConfigError` if a file to pin does not exist."""
    for name in names:
        if not Path(name).is_file():
            raise ConfigError(
                f"--pin is {name!r}, expected an existing file",
                code="pin-missing",
                hint="pass an absolute path, or one relative to the working folder",
            )


def pin_rules(config: CollectConfig, policy: PolicySource, env: EnvSource) -> PinRules:
    """Return the rules for the files to pin and for their labels."""
    # Relative paths stay relative: a worker on another machine has another working folder.
    record = policy.describe()
    components = [(component["spec"], component) for component in record.get("components", ())]
    sources = ((config.policy, record), *components, (env.spec, env.describe()))
    specs = [spec.removeprefix(f"{record.get('scheme')}:") for spec, record in sources if record["path"]]
    return PinRules(
        named=(*_strings(config.env_kwargs), *_strings(config.worker_args), *config.pin),
        folders=tuple(folder for spec in specs if (folder := os.path.dirname(spec))),  # noqa: PTH120
        ignored=() if isinstance(config.output, RemotePath) else (str(Path(config.output)),),
    )


def _strings(value: Any) -> Iterator[str]:
    """Yield all nested strings of keyword arguments, any of which may be the path of a file."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)


def _recorded_source(rest: str, options: Keywords) -> RecordedSource:
    """Return the source of a policy that repeats the actions of the dataset `rest`, a path or URI.

    Raises:
        PolicyLoadError: If `rest` is empty, options are given, or two episodes have the same number and seed.
        RolloutError: If the dataset cannot be read.
    """
    from rollout_cli.dataset.batches import flat_columns  # noqa: PLC0415 - these import pyarrow
    from rollout_cli.dataset.reader import load  # noqa: PLC0415

    if not rest or options:
        raise PolicyLoadError(
            f"replay:{rest} must name a dataset and have no options",
            code="policy-spec",
            hint="pass, for example, replay:runs/expert",
        )
    root = folder_of(rest)
    stop = 0
    dataset = load(root, verify=True)  # A damaged action would be copied into the new dataset.
    roots = [*map(root_seed_of, dataset.info["sources"])]
    steps = dict[int, tuple[int, int]]()
    facts = (dataset.episodes[name].to_pylist() for name in ("source", "episode_number", "seed", "length"))
    for source, number, seed, length in zip(*facts, strict=True):
        key = derive_seed(roots[source], number, "policy")
        if seed != env_seed(roots[source], number) or key in steps:
            raise PolicyLoadError(
                f"the episodes of {rest} cannot be found by their numbers: episode {number} is present twice, "
                "or did not start from the seed of its number",
                code="recording-numbers",
                hint="use one of the datasets that were joined; episodes after an autoreset of a vector "
                "environment cannot be restarted",
            )
        steps[key] = (stop, stop := stop + length)
    space = dataset.env_spec.action_space
    columns = SpaceRows(space).columns(flat_columns(dataset.rows, ["actions"], blank_rows=0)["actions"])
    path = str(root) if isinstance(root, RemotePath) else str(Path.cwd() / root)
    return RecordedSource(path, space, tuple(dict.fromkeys(roots)), steps, columns)


# Registered here, because `_recorded_source` imports `dataset`, which the layer of policies must not.
SCHEMES["replay"] = _recorded_source
