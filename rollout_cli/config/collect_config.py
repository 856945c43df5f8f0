"""`CollectConfig`: every option of `rollout collect` and `rollout exact`, declared once.

A field's annotation holds its `Option`. The TOML reader, the environment variables, the command line's flags and their
help are derived from it, so a new option is one field here and its use. (Annotations are evaluated in this module.)
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal

from rollout_cli.config.kinds import (
    Choice,
    ClassName,
    EpisodeRange,
    Episodes,
    Folder,
    Integer,
    Keywords,
    Switch,
    Text,
)
from rollout_cli.config.options import CommandName, Option
from rollout_cli.cores import usable_cores
from rollout_cli.errors import ConfigError

COMMANDS: tuple[CommandName, ...] = ("collect", "exact")

AMOUNT, WHAT, HOW, DATASET = "How much", "Policy and environment", "Workers and seeds", "Dataset"
"""The parts of a help page."""

_COUNT = Integer("N", "an integer of at least 1", minimum=1)
_AMOUNTS = frozenset({"timesteps", "episodes"})
_SWITCH = Switch("", "true or false")
_KEYWORDS = Keywords("KEY=VALUE", "key=value, where the value is a TOML literal (no date) or plain text")
_UNSET_OUTPUT = Path()
_WORKERS_OWN = {
    "seed": "--seed says it",
    "max_episode_length": "--max-episode-length says it",
    "n_envs": "--envs-per-worker says it",
    "deterministic": "--deterministic says it",
    "worker_number": "it differs from worker to worker",
}
"""Arguments of every worker that `worker_args` cannot hold, and why."""
_LONGEST_LABEL = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectConfig:
    """A checked, complete request for a run.

    Raises:
        ConfigError: A value that its option does not allow, or options that do not go together.
    """

    command: CommandName = "collect"

    timesteps: Annotated[
        int | None,
        Option(
            _COUNT,
            AMOUNT,
            "Collect the shortest run of episodes that has at least N steps.",
            short="-n",
            commands=("collect",),
            rivals=_AMOUNTS,
        ),
    ] = None
    episodes: Annotated[
        EpisodeRange | None,
        Option(
            Episodes("N|A:B", "a number of episodes of at least 1, or a range A:B with 0 <= A < B"),
            AMOUNT,
            "Collect N episodes, or those numbered A to B-1.",
            commands=("collect",),
            rivals=_AMOUNTS,
        ),
    ] = None
    episodes_per_worker: Annotated[
        int | None,
        Option(_COUNT, AMOUNT, "Collect exactly N episodes from each worker.", short="-k", commands=("exact",)),
    ] = None
    max_episode_length: Annotated[
        int | None,
        Option(_COUNT, AMOUNT, "Truncate an episode after N steps.", default="the environment's own limit"),
    ] = None

    policy: Annotated[
        str,
        Option(Text("SPEC", "a policy spec"), WHAT, "The policy: random, file.pkl, or module:attr.", short="-p"),
    ] = "random"
    env: Annotated[
        str,
        Option(
            Text("SPEC", "an environment spec"),
            WHAT,
            "The environment: a gymnasium id, spec.json, file.pkl, or module:attr.",
            short="-e",
        ),
    ] = "CartPole-v1"
    env_kwargs: Annotated[
        Mapping[str, Any],
        Option(
            _KEYWORDS,
            WHAT,
            "A keyword argument for the environment, the value a TOML literal or else text; may be given again.",
        ),
    ] = field(default_factory=dict)
    deterministic: Annotated[
        bool,
        Option(_SWITCH, WHAT, "Ask the policy for its deterministic actions; one that has no such mode is refused."),
    ] = False

    workers: Annotated[
        int, Option(_COUNT, HOW, "How many workers step environments.", short="-w", default="the usable cores")
    ] = field(default_factory=usable_cores)
    envs_per_worker: Annotated[
        int,
        Option(
            _COUNT,
            HOW,
            "Step N copies of the environment in each worker, with one batched policy call a step.",
            short="-m",
            default="1",
        ),
    ] = 1
    vectorization: Annotated[
        Literal["sync", "native"],
        Option(
            Choice("NAME", "'sync' or 'native'", choices=("sync", "native")),
            HOW,
            "Step copies of the environment one by one (sync), or its own vector environment (native).",
        ),
    ] = "sync"
    sampler: Annotated[
        Literal["multiprocessing", "local"],
        Option(
            Choice("NAME", "'multiprocessing' or 'local'", choices=("multiprocessing", "local")),
            HOW,
            "Run the workers as processes (multiprocessing) or inside this one (local).",
        ),
    ] = "multiprocessing"
    start_method: Annotated[
        Literal["forkserver", "spawn", "fork"],
        Option(
            Choice("NAME", "'forkserver', 'spawn' or 'fork'", choices=("forkserver", "spawn", "fork")),
            HOW,
            "How worker processes are started: forkserver, spawn or fork.",
        ),
    ] = "forkserver"
    worker_class: Annotated[
        str | None,
        Option(
            ClassName("MODULE:CLASS", "a class as package.module:Class"),
            HOW,
            "A worker class of your own.",
            default="the built-in worker",
        ),
    ] = None
    worker_args: Annotated[
        Mapping[str, Any],
        Option(
            _KEYWORDS,
            HOW,
            "A keyword argument for the worker class, the value a TOML literal or else text; may be given again.",
        ),
    ] = field(default_factory=dict)
    seed: Annotated[
        int | None,
        Option(
            Integer("N", "an integer from 0 to 2^63 - 1"),
            HOW,
            "The root seed, from which every episode's seeds follow.",
            default="drawn, printed and recorded",
        ),
    ] = None

    output: Annotated[
        Path,
        Option(
            Folder("DIR", "the path of a folder"),
            DATASET,
            "The dataset's folder.",
            short="-o",
            default="rollouts/<env>-<UTC time>",
        ),
    ] = _UNSET_OUTPUT
    overwrite: Annotated[bool, Option(_SWITCH, DATASET, "Replace the dataset that the folder holds.")] = False
    order: Annotated[
        Literal["index", "arrival"],
        Option(
            Choice("NAME", "'index' or 'arrival'", choices=("index", "arrival")),
            DATASET,
            "Keep episodes in number order (index), or as they finish (arrival), which favours short ones.",
            commands=("collect",),
        ),
    ] = "index"
    next_observation: Annotated[
        bool, Option(_SWITCH, DATASET, "Also store each step's next observation, which the following row holds anyway.")
    ] = False

    def __post_init__(self) -> None:
        if self.command not in COMMANDS:
            raise ConfigError(f"command must be 'collect' or 'exact', got {self.command!r}")
        if self.output is _UNSET_OUTPUT:
            object.__setattr__(self, "output", default_output(self.env, datetime.now(UTC)))
        for option in OPTIONS.values():
            option.check(getattr(self, option.name), option.name)
        _check_amount(self)
        if self.worker_class is not None and self.vectorization == "native":
            raise ConfigError(
                "--vectorization native has a worker class of its own, so --worker-class cannot be given beside it",
                hint="leave one of them away",
            )
        for name in self.worker_args:
            if name in _WORKERS_OWN:
                raise ConfigError(f"--worker-args cannot give {name}", hint=_WORKERS_OWN[name])


def _declared_options() -> Iterator[Option]:
    for declared in fields(CollectConfig):
        for option in getattr(declared.type, "__metadata__", ()):
            default = option.default or (declared.default if isinstance(declared.default, str) else "")
            yield replace(option, name=declared.name, default=default, optional=declared.default is None)


OPTIONS: Mapping[str, Option] = {option.name: option for option in _declared_options()}
"""Every option by its name."""


def options_of(command: str) -> list[Option]:
    """Return the options that a command has, in the order of its help page."""
    return [option for option in OPTIONS.values() if command in option.commands]


def _check_amount(config: CollectConfig) -> None:
    """Raise `ConfigError` unless the config says how much to collect, in its command's one way."""
    for option in OPTIONS.values():
        if (
            option.panel == AMOUNT
            and config.command not in option.commands
            and getattr(config, option.name) is not None
        ):
            raise ConfigError(f"{option.name} is no option of `rollout {config.command}`")
    if config.command == "exact" and config.episodes_per_worker is None:
        raise ConfigError(
            "how many episodes is not said: --episodes-per-worker is missing",
            hint="for example: rollout exact --episodes-per-worker 5",
        )
    if config.command == "collect" and config.timesteps is None and config.episodes is None:
        raise ConfigError(
            "how much to collect is not said: neither --timesteps nor --episodes is given",
            hint="for example: rollout collect --timesteps 100000",
        )
    if config.timesteps is not None and config.episodes is not None:
        raise ConfigError("--timesteps and --episodes are two ways to say how much", hint="give only one of them")


def default_output(env: str, now: datetime) -> Path:
    """Return `rollouts/<env>-<UTC time>`: milliseconds keep two runs of one second apart."""
    time = now.astimezone(UTC)
    return Path("rollouts") / f"{_file_label(env)}-{time:%Y%m%dT%H%M%S}.{time.microsecond // 1000:03d}Z"


def _file_label(env: str) -> str:
    name = PurePath(env).stem if env.endswith((".json", ".pkl")) else env
    return re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.")[:_LONGEST_LABEL] or "env"
