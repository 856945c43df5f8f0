"""Every option of `rollout collect` and `rollout exact`, declared once, as a field of `CollectConfig`.

A field has the type, the default and the words for people. Flags, environment variables (`ROLLOUT_*`), keys
of TOML files and help pages follow from it. Values of TOML and Python are validated strictly: no text stands
for a number.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
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
"""Arguments of every worker that `worker_args` cannot hold, since they follow from other options."""
_UNSET_OUTPUT = Path("rollouts/<env>-<UTC time>")


_NATIVE = partial(Rule, "vectorization", "native")
_SINGLE = _NATIVE(
    reason="single environments are reset with options",
    hint='omit {vectorization="native"}: {envs_per_worker=…} then steps copies of the environment',
)
_WHOLE = partial(
    Rule,
    reason="only the whole run knows its last episode",
    hint='give a number of episodes, and divide that: {episodes=N} {shard="i/n"}',
)
_LOCAL = partial(Rule, "sampler", "local", hint='use {sampler="multiprocessing"}')
_NOT_SHARDED = Rule(
    "shard",
    reason="which episodes count is known when all before them have ended",
    hint="collect without {keep}, and use `rollout filter` on what `rollout merge` makes",
)
_WRAPPED = _NATIVE(
    reason="wrappers are for single environments",
    hint="omit {wrapper}, or let a factory wrap the vector environment",
)
_REPLACED = Rule("resume", reason="one replaces the dataset that the other continues")


def _option(panel: str, words: str, default: Any = None, **attributes: Any) -> Any:
    """Declare an option: its default or what makes it, and attributes of `Option`.

    Attributes that are left out follow from the field.
    """
    metadata = {"panel": panel, "help": words, **attributes}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    # A switch and a repeated option show no default.
    if not isinstance(default, bool | tuple | None):
        metadata.setdefault("shown", f"{default:g}" if isinstance(default, float) else str(default))
    return field(default=default, metadata=metadata)


_amount = partial(_option, "How much")
_code = partial(_option, "Policy and environment")
_worker = partial(_option, "Workers and seeds")
_dataset = partial(_option, "Dataset")
_fault = partial(_option, "Faults and endings")


@dataclass(frozen=True, kw_only=True)
class CollectConfig:
    """A checked, complete request for a run; `rollout collect --help` describes each option.

    Raises:
        ConfigError: A value that its option does not allow, or options that contradict each other.
    """

    command: CommandName = "collect"

    # fmt: off
    timesteps: types.Count | None = _amount(
        "Collect the shortest run of episodes that has at least N steps.", short="-n", commands=("collect",),
        is_amount=True, ends_run=True)
    episodes: types.Episodes | None = _amount(
        "Collect N episodes, or those numbered A to B-1.", metavar="N|A:B", commands=("collect",),
        is_amount=True, ends_run=True)
    max_time: types.Duration | None = _amount(
        "End the run after this time of sampling, with the episodes that are finished in order.",
        metavar="TIME", commands=("collect",), ends_run=True)
    episodes_per_worker: types.Count | None = _amount(
        "Collect exactly N episodes from each worker.", short="-k", commands=("exact",), is_amount=True,
        ends_run=True)
    keep: types.Text | None = _amount(
        "Keep only episodes of which this is true, such as 'return >= 400 and length < 200', and count these "
        "alone.", metavar="EXPRESSION", commands=("collect",), decides_data=True,
        excludes=(_NOT_SHARDED,))
    keep_cap: types.Count | None = _amount(
        "Run at most N episodes for those that --keep keeps.",
        shown="1000 for each of --episodes, or 10 for each of --timesteps", commands=("collect",),
        needs=(Rule("keep"),))
    shard: types.OneShard | None = _amount(
        "Collect the i-th of n parts, which `rollout merge` joins.", metavar="i/n", decides_data=True,
        when_rerun=None, excludes=(_WHOLE("timesteps"), _WHOLE("max_time")))
    max_episode_length: types.Count | None = _amount(
        "Truncate an episode after N steps; a lower limit of the environment's own still holds.",
        shown="the environment's own limit", decides_data=True)
    episode_step_guard: types.Count = _amount(
        "End the run at an episode of N steps in an environment that has no limit.", 1_000_000)

    policy: types.Text = _code(
        "The policy: random, a policy file, or module:attr.", "random", short="-p", metavar="SPEC")
    policy_kwargs: types.Keywords = _code(
        "Argument of the policy's class, factory or kind of file, e.g. config=prod.yaml; repeatable.",
        dict, metavar="KEY=VALUE")
    policy_sha256: types.Sha256 | None = _code(
        "The SHA-256 that the policy's file must have, checked before anything of it is loaded.",
        metavar="HEX", when_rerun=None)
    env: types.Text | None = _code(
        "The environment: a gymnasium id, spec.json, file.pkl, or module:attr; a policy that is a "
        "run folder names its own one.", short="-e", metavar="SPEC", shown=DEFAULT_ENV)
    env_kwargs: types.Keywords = _code(
        "A keyword argument for the environment, the value a TOML literal or else text; may be given again.",
        dict, metavar="KEY=VALUE", decides_data=True)
    wrapper: types.Names = _code(
        "Wrap the environment in a class of gymnasium.wrappers or module:attr, with its arguments, as in "
        "FrameStackObservation?stack_size=4; may be given again, the innermost first.", (), metavar="SPEC",
        decides_data=True,
        excludes=(_WRAPPED,))
    reset_options: types.Keywords = _code(
        "An option for each reset of the environment, as in reset(options=…), the value a TOML literal or "
        "else text; may be given again.", dict, metavar="KEY=VALUE", decides_data=True, excludes=(_SINGLE,))
    tasks: types.Tasks | None = _code(
        "A JSON file with a list of objects: episode i is reset with the i-th of them as its options, "
        "and after the last with the first again.", metavar="FILE", decides_data=True, excludes=(_SINGLE,))
    deterministic: bool = _code(
        "Ask the policy for its deterministic actions; one that has no such mode is refused.", default=False,
        decides_data=True)
    epsilon: types.Probability | None = _code(
        "With this probability, take a uniform action of the whole space in place of the policy's, and "
        "record which steps these are.", metavar="P", decides_data=True)
    action_noise: types.Deviation | None = _code(
        "Add Gaussian noise to the actions of a Box, of STD times half the width of its bounds, and clip "
        "them.", metavar="STD", decides_data=True)
    pin: types.Names = _code(
        "Pin a file that the policy or environment reads by code in C, which no hook of Python sees; "
        "may be given again.", (), metavar="FILE")
    fresh_env: bool = _code(
        "Build the environment anew for each episode, for one that keeps state over its resets.",
        default=False, decides_data=True,
        excludes=(_NATIVE(reason="it steps all environments as one object"),))
    invalid_action: Literal["error", "clip", "warn"] = _code(
        "An action outside of its space is an error, is moved to its nearest bound, or is only reported.",
        "error", decides_data=True)

    workers: types.Workers = _worker(
        "How many workers step environments.", usable_cores, short="-w", shown="the usable cores",
        when_rerun=1)
    envs_per_worker: types.EnvsPerWorker = _worker(
        "Step N copies of the environment in each worker, with one batched policy call a step.",
        1, short="-m", decides_data=True)
    vectorization: Literal["sync", "native"] = _worker(
        "Step copies of the environment one by one (sync), or its own vector environment (native).", "sync",
        decides_data=True)
    sampler: Literal["multiprocessing", "local", "ray"] = _worker(
        "Run the workers as processes (multiprocessing), inside this one (local), or on a Ray cluster (ray).",
        DEFAULT_SAMPLER, when_rerun="local")
    start_method: Literal["forkserver", "spawn"] = _worker("How worker processes are started.", "forkserver")
    ray_address: types.Text | None = _worker(
        "The Ray cluster to join, such as auto.", shown="RAY_ADDRESS, or a new one on this machine",
        when_rerun=None, needs=(Rule("sampler", "ray", hint='add {sampler="ray"}, or omit {ray_address}'),))
    cpus_per_worker: types.Share = _worker("How many cores Ray reserves for a worker.", 1.0, metavar="SHARE")
    gpus_per_worker: types.Share = _worker("How many GPUs Ray reserves for a worker.", 0.0, metavar="SHARE")
    worker_class: types.ClassName | None = _worker(
        "A worker class of your own.", metavar="MODULE:CLASS", shown="the built-in worker", decides_data=True,
        excludes=(_NATIVE(reason="it has a worker class of its own"),))
    worker_args: types.Keywords = _worker(
        "A keyword argument for the worker class, the value a TOML literal or else text; may be given again.",
        dict, metavar="KEY=VALUE", decides_data=True)
    seed: types.Natural | None = _worker(
        "The root seed, from which every episode's seeds follow.", shown="drawn, printed and recorded",
        is_recorded=False)

    output: types.Folder = _dataset(
        "The dataset's folder, or its URI, such as s3://bucket/folder.",
        _UNSET_OUTPUT, short="-o", metavar="DIR", is_recorded=False)
    overwrite: bool = _dataset(
        "Replace the dataset that the folder holds.", default=False, is_recorded=False,
        excludes=(_REPLACED,))
    resume: bool = _dataset(
        "Continue the dataset that the folder holds, with its own options where none are given.",
        default=False, is_recorded=False)
    accept_changes: bool = _dataset(
        "With --resume, go on though files that the policy or environment reads have changed, "
        "and record that.",
        default=False, is_recorded=False,
        needs=(Rule("resume", hint="add {resume=True}, or omit {accept_changes}"),))
    segment_bytes: types.SegmentBytes = _dataset(
        "Begin a new data file before an episode that would make one larger than N bytes, "
        "counted before encoding.",
        128 << 20, shown="128 MiB", decides_data=True)
    next_observation: bool = _dataset(
        "Also store each step's next observation, which the following row holds anyway.", default=False,
        decides_data=True)
    flush_every: types.Limit = _dataset(
        "Commit the finished episodes this often, so that a kill loses little.", 30.0)
    drop_info: types.Names = _dataset(
        "Do not record an info, given by its dotted path, such as episode.t, or a glob of it; "
        "may be given again.",
        (), metavar="KEY", decides_data=True)
    require_reproducible: bool = _dataset(
        "End with an error unless an episode that is run again is found to be the same.", default=False,
        when_rerun=False)

    on_env_error: Literal["fail", "retry", "skip"] = _fault(
        "An episode whose environment or policy raises ends the run (fail), is run again up to three times "
        "in a worker built anew (retry), or is left out and reported (skip), which biases the data.", "fail",
        when_rerun="fail")
    on_worker_death: Literal["fail", "skip"] = _fault(
        "An episode that kills its worker three times ends the run (fail), or is left out and reported "
        "(skip), which biases the data.", "fail", when_rerun="fail")
    max_worker_restarts: types.Natural = _fault("Start worker processes that died again, N times in all.", 10)
    step_timeout: types.Limit | None = _fault(
        "Kill a worker whose step, with the reset before it, takes longer; that counts as its death. "
        "A step of several environments is one.", shown="no limit", when_rerun=None,
        excludes=(_LOCAL(reason="no worker process could be ended"),))
    episode_timeout: types.Limit | None = _fault(
        "An episode that takes longer is treated as one whose environment raised.", shown="no limit",
        when_rerun=None, excludes=(_LOCAL(reason="no worker process could be ended"),))
    grace: types.Seconds = _fault(
        "After Ctrl-C or SIGTERM, wait at most this long for running episodes below the last finished one.",
        5.0)
    # fmt: on

    @property
    def run_numbers(self) -> range:
        """The episode numbers of `--episodes`; the numbers of the workers of `exact`."""
        return range(*self.episodes) if self.episodes is not None else range(self.workers)

    @property
    def shard_numbers(self) -> range:
        """Those of `run_numbers` that this run runs: all, or the ones of its shard."""
        return self.run_numbers if self.shard is None else self.shard.part_of(self.run_numbers)

    def __post_init__(self) -> None:
        if self.command not in get_args(CommandName):
            raise ConfigError(
                f"command must be 'collect' or 'exact', got {self.command!r}", code="option-value"
            )
        for name, option in OPTIONS.items():
            object.__setattr__(self, name, option.read(getattr(self, name), name))
        # A folder may name an environment: `completed` of a run reads it. A SPEC may be too long for a path.
        path = self.policy.rpartition(":")[2]
        if self.env is None and not any(map(os.path.isdir, (path, path.partition("?")[0]))):
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
        """Raise `ConfigError` unless an option that ends a run is given, and none of another command's."""
        ends = [option for option in OPTIONS.values() if option.ends_run]
        given = [option.flag for option in ends if getattr(self, option.name) is not None]
        allowed = [option.flag for option in ends if self.command in option.commands]
        if not given or not set(given) <= set(allowed):
            raise ConfigError(
                f"`rollout {self.command}` needs {' or '.join(allowed)}, got {' and '.join(given) or 'none'}",
                code="amount-option",
                hint=f"say how much to collect, for example: rollout {self.command} {allowed[0]} 10",
            )

    def _check_numbers(self) -> None:
        """Raise `ConfigError` for what depends on more than which options are set."""
        if self.keep is not None and self.command not in OPTIONS["keep"].commands:
            raise ConfigError(
                "--keep decides how many episodes run, and `rollout exact` runs the same number in "
                "each worker",
                code="option-unknown",
                hint="use `rollout collect`",
            )
        if self.keep is not None and self.run_numbers.start > 0:
            raise ConfigError(
                "--keep counts episodes from the first one on, and --episodes A:B gives their numbers",
                code="options-exclude-each-other",
                hint="say how many to keep: {episodes=N}",
            )
        if self.shard is not None and self.seed is None and not self.resume:
            raise ConfigError(
                "--shard needs --seed",
                code="option-needs-another",
                hint="all parts of a run have one root seed: give each the same",
            )
        if self.shard is not None and self.shard.parts > len(self.run_numbers):
            units = "episodes" if self.command == "collect" else "workers"
            raise ConfigError(
                f"--shard {self.shard} divides {len(self.run_numbers)} {units}, "
                "which are fewer than the parts",
                code="shard-option",
                hint="divide into fewer parts",
            )
        for name in _WORKERS_OWN & self.worker_args.keys():
            raise ConfigError(
                f"--worker-args cannot give {name}",
                code="worker-args-option",
                hint="it follows from the options",
            )


def _options() -> Iterator[Option]:
    """Yield the declared options; kinds, placeholders and shown defaults follow from types and defaults."""
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
    for declared in fields(CollectConfig)[1:]:  # The command is no option.
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
"""What decides the data, beside policy and environment. Other options may differ in one dataset."""
WHEN_RERUN = {
    option.name: option.when_rerun for option in OPTIONS.values() if option.when_rerun is not UNCHANGED
}
"""The options in place of the run's own: episodes run in this process, and nothing is tried again."""


def options_of(command: str) -> list[Option]:
    """Return the options that a command has, in the order of its help page."""
    return [option for option in OPTIONS.values() if command in option.commands]


def default_output(env: str, now: datetime) -> Path:
    """Return `rollouts/<env>-<time>`, `now` in UTC: milliseconds keep two runs of one second apart."""
    name = PurePath(env).stem if env.endswith((".json", ".pkl")) else env
    label = re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.")[:_LONGEST_LABEL] or "env"
    return Path("rollouts") / f"{label}-{now:%Y%m%dT%H%M%S}.{now.microsecond // 1000:03d}Z"


# Writing.


def config_to_dict(config: CollectConfig) -> Values:
    """Return the command and every option that has a value, as TOML holds them."""
    plain: Values = {"command": config.command}
    for option in options_of(config.command):
        value = getattr(config, option.name)
        if value not in (None, {}, ()):
            plain[option.name] = plain_value(value)
    return plain


def plain_value(value: Any) -> Any:
    """Return an option's value as TOML holds it, and `Option.read` reads it back."""
    if isinstance(value, Shard | Path):
        return str(value)
    if isinstance(value, EpisodeRange):
        return value.stop if value.first == 0 else str(value)
    if isinstance(value, tuple):
        return list(value)
    return value
