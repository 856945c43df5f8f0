"""A request: what a configuration asks for: sources, plan, samplers, and what is committed of it already."""

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
"""How many episodes may run for each episode, or else for each step, that `keep` is to keep."""


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
    sources: RunFacts
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


def completed(config: CollectConfig, progress: Progress) -> CollectConfig:
    """Return a configuration that names an environment: where it has none, that of the policy's training.

    Its own `env_kwargs` are then added to those of the training, and its own wrappers take the place of
    those. A policy whose files say nothing of its training gets the default environment.

    Raises:
        PolicyLoadError: If there is no such policy, or the environment of its training cannot be made again.
        UserCodeError: If that environment may run any code, and the user does not trust the files.
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
            hint="name the environment: {env=…}; or trust the folder: {policy_kwargs=trust=true}",
        )
    config = replace(config, env=trained.spec, env_kwargs=kwargs, wrapper=wrappers)
    words = [
        *("--env", trained.spec),
        *(f"--env-kwargs={name}={json.dumps(value)}" for name, value in kwargs.items()),
        *(f"--wrapper={text}" for text in wrappers),
    ]
    progress.notice(f"the environment is that of {config.policy}: {shlex.join(words)}")
    return config


def requested(config: CollectConfig, progress: Progress) -> Request:
    """Find policy and environment, and read what an earlier run committed.

    Raises:
        RolloutError: If a source is missing, the dataset to be resumed is another run's, or `keep` cannot be
            used.
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
    """Return the policy as the run acts by it, and the options with the root seed that it asks for.

    Raises:
        RolloutError: If there is no such policy, or its recorded episodes have another root seed.
    """
    policy = policy_source(config.policy, config.policy_kwargs, sha256=config.policy_sha256)
    if isinstance(policy, RecordedSource):
        config = replace(config, seed=policy.root_seed(config.seed))
    return exploring(policy, config), config


def _plan_of(config: CollectConfig) -> Plan:
    """Return the whole plan, which a limit of time may cut."""
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
    """The samplers of a run, one at a time: its own, and those of one new worker that check it.

    Attributes:
        own: That of the run's own workers, which are not started.
        closing: Closes them, when the dataset is complete.
    """

    def __init__(self, request: Request, progress: Progress) -> None:
        self._request = request
        self._progress = progress
        self.own = self._current = sampler_of(  # A signal ends the current one.
            request.config, request.policy, request.env, warn=self._warn, keep=request.config.keep
        )
        # A run that goes on, or a shard, does not begin where the other one did.
        self.own.next_number = request.plan.first + request.state.totals["episodes"]
        self.closing = ExitStack()

    def rebuild(self, limit: int | None) -> Sampler:
        """Return a sampler of one new worker; see `reproduce.Rebuild`."""
        request = self._request
        config = replace(request.config, seed=self.own.seed, on_env_error="fail", on_worker_death="fail")
        return sampler_of(config, request.policy, request.env, n_workers=1, limit=limit)

    def rebuild_at_end(self, limit: int | None) -> AbstractContextManager[Sampler]:
        """Return the same in place of the run's own workers: two of each policy might not fit into memory."""
        self._current = self.rebuild(limit)
        # Closing an environment in this process may take for ever.
        if self._request.config.sampler == "local":
            return nullcontext(self.closing.enter_context(self._current))
        self.own.shutdown_worker()
        return self._current

    def stop(self, name: str) -> None:
        """Let the sampling end with what is finished; called in the handler of a signal of this name."""
        self._current.request_stop(grace=self._request.config.grace)
        self._progress.notice(
            f"{name}: the run is ending, and commits its finished episodes; again ends it at once"
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
    """Return the sampler that a configuration asks for; no worker is started.

    Args:
        config: The configuration.
        policy: The policy that it names.
        env: The environment that it names.
        n_workers: How many workers, where not as many as it says.
        limit: Steps after which episodes are truncated, where that is less than it says.
        warn: Called with one line for each fault that does not end a call; None writes them to the log.
        kind: The workers' class, where it is none that the configuration can name.
        keep: Which episodes are kept: not the configuration's where episodes are chosen by their numbers.

    Raises:
        UserCodeError: If the worker class cannot be found, or does not say how it wants its work.
    """
    switches = {name: True for name in ("deterministic", "fresh_env") if getattr(config, name)}
    arguments: dict[str, Any] = {**config.worker_args, **switches}
    worker_class: type[Worker] = DefaultWorker
    if config.envs_per_worker > 1 or config.vectorization == "native":
        worker_class = VecWorker
        arguments["n_envs"] = config.envs_per_worker
        arguments["vectorization"] = config.vectorization
    if config.worker_class is not None:
        worker_class = load_worker_class(config.worker_class)
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
        ),
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
    # On macOS, threads and system libraries that torch has loaded may not survive a fork.
    if config.start_method == "forkserver" and sys.platform != "darwin" and loads_torch(policy):
        running_server("forkserver").import_torch()
    return MultiprocessingSampler(policy, env, **options, start_method=config.start_method)


def exploring(policy: PolicySource, config: CollectConfig) -> PolicySource:
    """Return the source of a policy that explores as a configuration asks."""
    if config.epsilon is None and config.action_noise is None:
        return policy
    return ExploringSource(policy, config.epsilon, config.action_noise)


def env_of(config: CollectConfig) -> EnvSource:
    """Return the source of the environment that a configuration names, in its wrappers; nothing is built.

    Raises:
        EnvLoadError: If it names no environment, or no wrapper.
        ConfigError: If an argument of a wrapper is not `key=value`.
    """
    assert config.env is not None, "`completed` names one"
    wrappers = tuple(wrapper_source(*parted(spec, "--wrapper")) for spec in config.wrapper)
    return env_source(config.env, config.env_kwargs, wrappers=wrappers)


def _wrapper_text(name: str, arguments: Keywords) -> str:
    """Return a wrapper as `--wrapper` takes it; ConfigError where a text cannot hold its arguments."""
    values = {
        key: json.dumps(value, default=repr).replace("&", r"\u0026") for key, value in arguments.items()
    }
    pairs = [f"{key}={value}" for key, value in values.items()]
    text = "?".join([name, "&".join(pairs)]) if pairs else name
    if parted(text, "--wrapper") != (name, arguments):
        raise ConfigError(
            f"the policy was trained in the wrapper {name}, "
            f"and --wrapper cannot hold its arguments {arguments}",
            code="wrapper-arguments",
            hint="name the environment, and a function that wraps it: {env=…} {wrapper=module:attr}",
        )
    return text


def check_pins(names: Sequence[str]) -> None:
    """Raise ConfigError where a file to be pinned is not there."""
    for name in names:
        if not Path(name).is_file():
            raise ConfigError(
                f"--pin names no file: {name!r}",
                code="pin-missing",
                hint="paths are relative to the working folder",
            )


def _pin_rules(config: CollectConfig, policy: PolicySource, env: EnvSource) -> PinRules:
    # Relative paths, where they were given so: a worker on another machine has another working folder.
    record = policy.describe()
    components = [(component["spec"], component) for component in record.get("components", ())]
    sources = ((config.policy, record), *components, (env.spec, env.describe()))
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


def _recorded_source(rest: str, options: Keywords) -> RecordedSource:
    """Return the source of the actions of the dataset `rest`, a path or URI.

    Raises:
        PolicyLoadError: If none is named, there are options, or numbers do not decide its episodes.
        RolloutError: If the dataset cannot be read.
    """
    from rollout_cli.dataset.batches import flat_columns  # noqa: PLC0415 - these load pyarrow
    from rollout_cli.dataset.reader import load  # noqa: PLC0415

    if not rest or options:
        raise PolicyLoadError(
            f"replay:{rest} must name a dataset, and takes no options",
            code="policy-spec",
            hint="for example: replay:runs/expert",
        )
    root = folder_of(rest)
    stop = 0
    dataset = load(root, verify=True)  # Its actions would be those of a new dataset.
    roots = [int(source["root_seed"]) for source in dataset.info["sources"]]
    steps = dict[int, tuple[int, int]]()
    facts = (dataset.episodes[name].to_pylist() for name in ("source", "episode_number", "seed", "length"))
    for source, number, seed, length in zip(*facts, strict=True):
        key = derive_seed(roots[source], number, "policy")
        if seed != env_seed(roots[source], number) or key in steps:
            raise PolicyLoadError(
                f"the episodes of {rest} cannot be found by their numbers: episode {number} is there twice, "
                "or did not begin by the seed of its number",
                code="recording-numbers",
                hint="name one of the datasets that were joined; rows that a vector environment resets by "
                "itself cannot be begun again",
            )
        steps[key] = (stop, stop := stop + length)
    space = dataset.env_spec.action_space
    columns = SpaceRows(space).columns(flat_columns(dataset.rows, ["actions"], blank_rows=0)["actions"])
    path = str(root) if isinstance(root, RemotePath) else str(Path.cwd() / root)
    return RecordedSource(path, space, tuple(dict.fromkeys(roots)), steps, columns)


SCHEMES["replay"] = _recorded_source  # It reads datasets, of which the layer of policies knows nothing.
