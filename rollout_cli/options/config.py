"""Every option of `rollout collect` and `rollout exact`, declared once, as a field of `CollectConfig`.

A field declares the type, the default and the help of its option. Flags, environment variables (`ROLLOUT_*`),
keys of TOML files and help pages are derived from it. Values from TOML and Python are validated strictly: a
string is not accepted as a number.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePath
from typing import Any, Literal, get_args, get_origin, get_type_hints

from rollout_cli.cores import usable_cores
from rollout_cli.errors import ConfigError
from rollout_cli.options import types
from rollout_cli.options.option import UNCHANGED, CommandName, Option
from rollout_cli.options.rules import Rule
from rollout_cli.options.types import EpisodeRange, Shard

Values = dict[str, Any]

_LONGEST_LABEL = 80
DEFAULT_ENV = "CartPole-v1"
DEFAULT_POLICY = "random"
DEFAULT_EPISODES = 100
"""Of `rollout evaluate`."""
DEFAULT_SAMPLER: Literal["multiprocessing", "local"] = "multiprocessing" if hasattr(os, "fork") else "local"
"""Windows cannot fork worker processes."""
_WORKERS_OWN = {
    "seed",
    "max_episode_length",
    "n_envs",
    "vectorization",
    "deterministic",
    "fresh_env",
    "worker_number",
}
"""Worker arguments that `worker_args` must not contain, because other options set them."""
_UNSET_OUTPUT = Path("rollouts/<env>-<UTC time>")


_NATIVE = partial(Rule, "vectorization", "native")
_NO_NATIVE_RESETS = _NATIVE(
    reason="native vector environments do not take reset options per episode",
    hint='omit {vectorization="native"}: {envs_per_worker=…} then steps copies of the environment',
)
_NEEDS_ALL_EPISODES = partial(
    Rule,
    reason="a shard cannot know which episode of the run is the last",
    hint='shard a fixed number of episodes: {episodes=N} {shard="i/n"}',
)
_NEEDS_PROCESSES = partial(Rule, "sampler", "local", hint='use {sampler="multiprocessing"}')
_NOT_SHARDED = Rule(
    "shard",
    reason="a shard does not know how many episodes earlier shards keep",
    hint="collect without {keep}, then use `rollout filter` on the merged dataset",
)
_WRAPPED = _NATIVE(
    reason="wrappers apply to single environments",
    hint="omit {wrapper}, or pass a factory that wraps the vector environment",
)
_REPLACED = Rule("resume", reason="--overwrite replaces the dataset, --resume continues it")


def _option(panel: str, summary: str, default: Any = None, **attributes: Any) -> Any:
    """Declare an option with its default value or default factory, and attributes of `Option`.

    Omitted attributes are derived from the type of the field.
    """
    metadata = {"panel": panel, "help": summary, **attributes}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    # Help pages show no default for flags without a value and repeatable options.
    if not isinstance(default, bool | tuple | None):
        metadata.setdefault("shown", f"{default:g}" if isinstance(default, float) else str(default))
    return field(default=default, metadata=metadata)


_amount = partial(_option, "How much")
_code = partial(_option, "Policy and environment")
_worker = partial(_option, "Workers and seeds")
_dataset = partial(_option, "Dataset", commands=("collect", "exact"))
_fault = partial(_option, "Faults and endings")


@dataclass(frozen=True, kw_only=True)
class CollectConfig:
    """A checked, complete request for a run: the options of `rollout collect`, as keyword arguments.

    `rollout collect --help` and docs/command-line.md describe each option. Values may be strings, as in a
    command, such as `max_time="90s"`.

    Raises:
        ConfigError: If an option does not allow its value, or options contradict each other.

    Example:
        >>> config = rollout_cli.CollectConfig(env="CartPole-v1", timesteps=1000, workers=2)
        >>> config.sampler, config.segment_bytes
        ('multiprocessing', 134217728)
    """

    command: CommandName = "collect"

    # fmt: off
    timesteps: types.Count | None = _amount(
        "Collect episodes 0, 1, 2, … until they have N steps.", short="-n", commands=("collect",),
        is_amount=True, ends_run=True)
    episodes: types.Episodes | None = _amount(
        "Collect N episodes, or the episodes numbered A to B-1.", metavar="N|A:B", commands=("collect", "evaluate"),
        is_amount=True, ends_run=True)
    max_time: types.Duration | None = _amount(
        "Stop sampling after this time. Episodes after the first unfinished one are dropped.",
        metavar="TIME", commands=("collect",), ends_run=True)
    episodes_per_worker: types.Count | None = _amount(
        "Collect exactly N episodes from each worker.", short="-k", commands=("exact",), is_amount=True,
        ends_run=True)
    keep: types.Text | None = _amount(
        "Keep only episodes that match, e.g. 'return >= 400'. Other episodes do not count.",
        metavar="EXPRESSION", commands=("collect",), decides_data=True, excludes=(_NOT_SHARDED,))
    keep_cap: types.Count | None = _amount(
        "Maximum episodes with --keep. Rejected episodes count too.",
        shown="1000 per episode, or 10 per step", commands=("collect",),
        needs=(Rule("keep"),))
    shard: types.OneShard | None = _amount(
        "Collect part i of n; `rollout merge` joins the parts.", metavar="i/n", decides_data=True,
        commands=("collect", "exact"), when_rerun=None,
        excludes=(_NEEDS_ALL_EPISODES("timesteps"), _NEEDS_ALL_EPISODES("max_time")))
    max_episode_length: types.Count | None = _amount(
        "Truncate episodes after N steps. A lower time limit of the environment still applies.",
        shown="the environment's time limit", decides_data=True)
    episode_step_guard: types.Count = _amount(
        "Abort if an episode without a time limit has N steps.", 1_000_000)

    policy: types.Text = _code(
        "Policy file, module:attr, or random.", DEFAULT_POLICY, short="-p", metavar="SPEC")
    policy_kwargs: types.Keywords = _code(
        "Keyword argument for the policy; repeatable. Its class, factory or loader takes it, e.g. config=prod.yaml.",
        dict, metavar="KEY=VALUE")
    policy_sha256: types.Sha256 | None = _code(
        "Expected SHA-256 of the policy file. It is checked before the file is loaded.",
        metavar="HEX", commands=("collect", "exact"), when_rerun=None)
    policy_process: bool = _code(
        "Load the policy in one process. All workers ask it, which saves memory; it needs the extra [serve].",
        default=False, commands=("collect", "exact", "evaluate"), when_rerun=False,
        excludes=(Rule("sampler", "ray", reason="workers on other machines cannot reach the process",
                       hint="start `rollout serve` on a machine that all can reach, and pass {policy=serve:ws://…}"),))
    env: types.Text | None = _code(
        "Id, file, or module:attr. An id is of gymnasium, or of a JAX family such as gymnax:CartPole-v1; a file is a "
        "spec.json or a pickle. An rl_zoo3 run folder given as --policy implies it.",
        short="-e", metavar="SPEC", shown=DEFAULT_ENV)
    env_kwargs: types.Keywords = _code(
        "Keyword argument for the environment; repeatable. Values are TOML literals or strings.",
        dict, metavar="KEY=VALUE", decides_data=True)
    wrapper: types.Names = _code(
        "Wrap the environment; repeatable, innermost first. A class of gymnasium.wrappers or module:attr, with "
        "arguments as in FrameStackObservation?stack_size=4.", (), metavar="SPEC", decides_data=True,
        excludes=(_WRAPPED,))
    reset_options: types.Keywords = _code(
        "Entry of env.reset(options=…); repeatable. Values are TOML literals or strings.",
        dict, metavar="KEY=VALUE", decides_data=True, excludes=(_NO_NATIVE_RESETS,))
    tasks: types.Tasks | None = _code(
        "JSON file with a list of reset options by task. Episode i uses task i modulo the number "
        "of tasks.", metavar="FILE", decides_data=True, excludes=(_NO_NATIVE_RESETS,))
    deterministic: bool = _code(
        "Use the policy's deterministic mode.", default=False, decides_data=True)
    epsilon: types.Probability | None = _code(
        "Probability of a uniform random action instead. The dataset marks these steps.",
        metavar="P", decides_data=True)
    action_noise: types.Deviation | None = _code(
        "Add Gaussian noise to Box actions and clip them. STD is relative to half the width of the bounds.",
        metavar="STD", decides_data=True)
    pin: types.Names = _code(
        "Also pin the content of a file; repeatable. Needed for files that C code reads, which Python's audit "
        "hooks do not see.", (), metavar="FILE")
    fresh_env: bool = _code(
        "Rebuild the environment for every episode. Use it if the environment keeps state across resets.",
        default=False, decides_data=True,
        excludes=(_NATIVE(reason="a native vector environment cannot rebuild one of its environments"),))
    device: Literal["cpu", "gpu"] | None = _code(
        "Where a JAX environment runs. Policies on the host choose their own device.",
        shown="JAX's default", decides_data=True)
    invalid_action: Literal["error", "clip", "warn"] = _code(
        "Rule for actions outside their space. The episode fails, the action is clipped to a Box, or a warning "
        "is printed.", "error", decides_data=True)

    workers: types.Workers = _worker(
        "Number of workers.", usable_cores, short="-w", shown="the usable cores", when_rerun=1)
    envs_per_worker: types.EnvsPerWorker = _worker(
        "Environment copies per worker. The policy acts on all of them in one call per step.",
        1, short="-m", decides_data=True)
    vectorization: Literal["sync", "native"] = _worker(
        "How the copies are stepped. One after another (sync), or by the environment's own vector environment "
        "(native).", "sync",
        decides_data=True)
    sampler: Literal["multiprocessing", "local", "ray"] = _worker(
        "Where workers run. In processes (multiprocessing), in this process (local), or on a Ray cluster (ray).",
        DEFAULT_SAMPLER, when_rerun="local")
    start_method: Literal["forkserver", "spawn"] = _worker("Start method of worker processes.", "forkserver")
    ray_address: types.Text | None = _worker(
        "Ray cluster, e.g. auto.", shown="RAY_ADDRESS or a new one",
        when_rerun=None, needs=(Rule("sampler", "ray", hint='add {sampler="ray"}, or omit {ray_address}'),))
    cpus_per_worker: types.Share = _worker("CPU cores that Ray reserves per worker.", 1.0, metavar="SHARE")
    gpus_per_worker: types.Share = _worker("GPUs that Ray reserves per worker.", 0.0, metavar="SHARE")
    worker_class: types.ClassName | None = _worker(
        "Custom worker class.", metavar="MODULE:CLASS", shown="the built-in worker", decides_data=True,
        excludes=(_NATIVE(reason="native vector environments need the built-in vector worker"),))
    worker_args: types.Keywords = _worker(
        "Keyword argument for the worker class; repeatable. Values are TOML literals or strings.",
        dict, metavar="KEY=VALUE", decides_data=True)
    seed: types.Natural | None = _worker(
        "Root seed of all other seeds.", shown="random, recorded",
        is_recorded=False)

    output: types.Folder = _dataset(
        "Path or URI. A URI is that of an object store, e.g. s3://bucket/folder.",
        _UNSET_OUTPUT, short="-o", metavar="DIR", is_recorded=False)
    overwrite: bool = _dataset(
        "Replace an existing dataset.", default=False, is_recorded=False, excludes=(_REPLACED,))
    resume: bool = _dataset(
        "Continue an existing dataset. Its recorded options apply unless they are given again.",
        default=False, is_recorded=False)
    accept_changes: bool = _dataset(
        "Resume despite changed files. The files are those of the policy and the environment; the dataset records "
        "the change.",
        default=False, is_recorded=False,
        needs=(Rule("resume", hint="add {resume=True}, or omit {accept_changes}"),))
    segment_bytes: types.SegmentBytes = _dataset(
        "Maximum bytes of a data file. The size is measured before encoding.",
        128 << 20, shown="128 MiB", decides_data=True)
    next_observation: bool = _dataset(
        "Also store the next observation of every step. The next row has it anyway.", default=False,
        decides_data=True)
    store_state: bool = _dataset(
        "Also store the simulator's state at every step. `rollout render` restores it. For MuJoCo, and environments "
        "with get_state() and set_state(state).", default=False, decides_data=True,
        excludes=(_NATIVE(reason="a native vector environment does not return the state of one environment"),))
    flush_every: types.Limit = _dataset("Time between two commits.", 30.0)
    drop_info: types.Names = _dataset(
        "Do not record this info; repeatable. A dotted path, such as episode.t, or a glob pattern.",
        (), metavar="KEY", decides_data=True)
    require_reproducible: bool = _dataset(
        "Fail unless the check finds the run reproducible.", default=False, when_rerun=False)

    on_env_error: Literal["fail", "retry", "skip"] = _fault(
        "Rule for errors of the environment and the policy. Each retry, at most three, uses a rebuilt "
        "worker. Skipped episodes are reported; skipping biases the data.", "fail", when_rerun="fail")
    on_worker_death: Literal["fail", "skip"] = _fault(
        "Rule for an episode that kills its worker three times. Skipped episodes are reported; skipping "
        "biases the data.", "fail", when_rerun="fail")
    max_worker_restarts: types.Natural = _fault("Restart dead worker processes at most N times in total.", 10)
    step_timeout: types.Limit | None = _fault(
        "Kill a worker if a step takes longer. The time includes a preceding reset, and covers all environments "
        "of a batched step.", shown="no limit", when_rerun=None,
        excludes=(_NEEDS_PROCESSES(reason="the local sampler has no worker process to kill"),))
    episode_timeout: types.Limit | None = _fault(
        "Treat a longer episode as an environment error.", shown="no limit",
        when_rerun=None, excludes=(_NEEDS_PROCESSES(reason="the local sampler has no worker process to kill"),))
    grace: types.Seconds = _fault(
        "Time for running episodes after Ctrl-C or SIGTERM. Only episodes below the last finished "
        "one use it.", 5.0, commands=("collect", "exact"))
    # fmt: on

    @property
    def run_numbers(self) -> range:
        """The episode numbers of `--episodes`, or the worker numbers of `rollout exact`."""
        return range(*self.episodes) if self.episodes is not None else range(self.workers)

    @property
    def shard_numbers(self) -> range:
        """The part of `run_numbers` in this shard; all of `run_numbers` without `--shard`."""
        return self.run_numbers if self.shard is None else self.shard.part_of(self.run_numbers)

    def __post_init__(self) -> None:
        if self.command not in get_args(CommandName):
            raise ConfigError(
                f"command must be 'collect', 'exact' or 'evaluate', got {self.command!r}", code="option-value"
            )
        for name, option in OPTIONS.items():
            object.__setattr__(self, name, option.read(getattr(self, name), name))
        if self.env is None and not _may_imply_env(self.policy):
            object.__setattr__(self, "env", DEFAULT_ENV)
        if self.output == _UNSET_OUTPUT and self.env is not None:
            object.__setattr__(self, "output", default_output(self.env, datetime.now(UTC)))
        self._check_ends()
        for name, option in OPTIONS.items():
            if getattr(self, name):
                for rule in option.excludes:
                    rule.check_excluded(name, self)
                for rule in option.needs:
                    rule.check_needed(name, self)
        self._check_numbers()

    def _check_ends(self) -> None:
        """Raise `ConfigError` unless an option that ends a run of this command is set, and no other such option."""
        ends = [option for option in OPTIONS.values() if option.ends_run]
        given = [option.flag for option in ends if getattr(self, option.name) is not None]
        allowed = [option.flag for option in ends if self.command in option.commands]
        if not given or not set(given) <= set(allowed):
            raise ConfigError(
                f"`rollout {self.command}` needs {' or '.join(allowed)}, got {' and '.join(given) or 'none'}",
                code="amount-option",
                hint=f"pass how much to collect, for example: rollout {self.command} {allowed[0]} 10",
            )

    def _check_numbers(self) -> None:
        """Raise `ConfigError` for combinations of values that `Rule` does not express."""
        if self.keep is not None and self.command not in OPTIONS["keep"].commands:
            raise ConfigError(
                "`rollout exact` does not accept --keep: every worker runs the same number of episodes",
                code="option-unknown",
                hint="use `rollout collect`",
            )
        if self.keep is not None and self.run_numbers.start > 0:
            raise ConfigError(
                "--keep cannot be used with --episodes A:B: it counts matching episodes from episode 0 on",
                code="options-exclude-each-other",
                hint="pass the number of episodes to keep: {episodes=N}",
            )
        if self.shard is not None and self.seed is None and not self.resume:
            raise ConfigError(
                "--shard needs --seed",
                code="option-needs-another",
                hint="pass the same root seed to all shards: {seed=N}",
            )
        if self.shard is not None and self.shard.parts > len(self.run_numbers):
            units = "episodes" if self.command == "collect" else "workers"
            raise ConfigError(
                f"--shard {self.shard} has more parts than the run has {units} ({len(self.run_numbers)})",
                code="shard-option",
                hint="use fewer parts",
            )
        for name in _WORKERS_OWN & self.worker_args.keys():
            raise ConfigError(
                f"--worker-args must not contain {name}, which other options set",
                code="worker-args-option",
                hint="omit it from {worker_args}",
            )


def _options() -> Iterator[Option]:
    """Yield the declared options; kind, placeholder and shown default are derived from type and default."""
    annotated = get_type_hints(CollectConfig, include_extras=True)
    plain = get_type_hints(CollectConfig)
    placeholders: dict[Any, str] = {
        bool: "",
        int: "N",
        int | None: "N",
        float: "SECONDS",
        float | None: "SECONDS",
    }
    kinds: dict[Any, Any] = {bool: "switch", tuple[str, ...]: "list", Mapping[str, Any]: "mapping"}
    for declared in fields(CollectConfig)[1:]:  # The command is not an option.
        name = declared.name
        type_ = plain[name]
        choices = get_args(type_) if get_origin(type_) is Literal else ()
        metavar = "|".join(choices) or placeholders.get(type_, "NAME")
        attributes = {"metavar": metavar, **declared.metadata}
        kind = kinds.get(type_, "scalar")
        yield Option(name=name, type=annotated[name], kind=kind, choices=choices, **attributes)


OPTIONS: Mapping[str, Option] = {option.name: option for option in _options()}
"""Every option by its name, in the order of the help pages."""


AMOUNTS = frozenset(option.name for option in OPTIONS.values() if option.is_amount)
ENDS = frozenset(option.name for option in OPTIONS.values() if option.ends_run)
DECISIVE = ("command", *(option.name for option in OPTIONS.values() if option.decides_data))
"""The options that decide the data, in addition to policy and environment; other options may differ on resume."""
WHEN_RERUN = {
    option.name: option.when_rerun for option in OPTIONS.values() if option.when_rerun is not UNCHANGED
}
"""Option values for rerunning episodes: they run in this process, without retries."""


def leading_policy(policies: Sequence[str]) -> str:
    """Return the policy that decides the environment of all: the first folder, or else the first of them."""
    return next(filter(_may_imply_env, policies), next(iter(policies), DEFAULT_POLICY))


def _may_imply_env(policy: str) -> bool:
    """Return True if a policy is a folder, which may imply an environment: `run.request.completed` reads it."""
    path = policy.rpartition(":")[2]
    # `isdir` is false for a SPEC that is too long to be a path.
    return any(map(os.path.isdir, (path, path.partition("?")[0])))


def options_of(command: str) -> list[Option]:
    """Return the options of a command, in the order of its help page."""
    return [option for option in OPTIONS.values() if command in option.commands]


def default_output(env: str, now: datetime) -> Path:
    """Return `rollouts/<env>-<time>`; `now` is in UTC. Milliseconds distinguish runs started in the same second."""
    name = PurePath(env).stem if env.endswith((".json", ".pkl")) else env
    label = re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.")[:_LONGEST_LABEL] or "env"
    return Path("rollouts") / f"{label}-{now:%Y%m%dT%H%M%S}.{now.microsecond // 1000:03d}Z"


# Writing.


def config_to_dict(config: CollectConfig) -> Values:
    """Return the command and all options with a value, as TOML values."""
    plain: Values = {"command": config.command}
    for option in options_of(config.command):
        value = getattr(config, option.name)
        if value not in (None, {}, ()):
            plain[option.name] = plain_value(value)
    return plain


def plain_value(value: Any) -> Any:
    """Return an option's value as a TOML value, which `Option.read` accepts."""
    if isinstance(value, Shard | Path):
        return str(value)
    if isinstance(value, EpisodeRange):
        return value.stop if value.first == 0 else str(value)
    if isinstance(value, tuple):
        return list(value)
    return value
