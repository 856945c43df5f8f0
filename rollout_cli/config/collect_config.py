"""`CollectConfig`: every option of `rollout collect` and `rollout exact`, declared once.

The options stand in the modules `*_options.py` beside this one, a part of the help page in each; a field's annotation
holds its `Option`. The TOML reader, the environment variables, the command line's flags and their help are derived from
it, so a new option is one field there and its use. (Annotations are evaluated in these modules.)
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path, PurePath

from rollout_cli.config.amount_options import AmountOptions
from rollout_cli.config.dataset_options import UNSET_OUTPUT, DatasetOptions
from rollout_cli.config.fault_options import FaultOptions
from rollout_cli.config.options import AMOUNT, CommandName, Option
from rollout_cli.config.subject_options import SubjectOptions
from rollout_cli.config.worker_options import WorkerOptions
from rollout_cli.errors import ConfigError

COMMANDS: tuple[CommandName, ...] = ("collect", "exact")

_WORKERS_OWN = {
    "seed": "--seed says it",
    "max_episode_length": "--max-episode-length says it",
    "n_envs": "--envs-per-worker says it",
    "deterministic": "--deterministic says it",
    "worker_number": "it differs from worker to worker",
}
"""Arguments of every worker that `worker_args` cannot hold, and why."""
_LONGEST_LABEL = 80


@dataclass(frozen=True, kw_only=True)
class CollectConfig(FaultOptions, DatasetOptions, WorkerOptions, SubjectOptions, AmountOptions):
    """A checked, complete request for a run; the bases' fields come last base first, as the help page shows them.

    Raises:
        ConfigError: A value that its option does not allow, or options that do not go together.
    """

    command: CommandName = "collect"

    def __post_init__(self) -> None:
        if self.command not in COMMANDS:
            raise ConfigError(f"command must be 'collect' or 'exact', got {self.command!r}")
        if self.output is UNSET_OUTPUT:
            object.__setattr__(self, "output", default_output(self.env, datetime.now(UTC)))
        for option in OPTIONS.values():
            option.check(getattr(self, option.name), option.name)
        _check_amount(self)
        if self.resume and self.overwrite:
            raise ConfigError("--resume keeps what is there and --overwrite replaces it", hint="give only one of them")
        if self.worker_class is not None and self.vectorization == "native":
            raise ConfigError(
                "--vectorization native has a worker class of its own, so --worker-class cannot be given beside it",
                hint="leave one of them away",
            )
        if self.require_reproducible and self.order == "arrival":
            raise ConfigError(
                "--order arrival keeps other episodes in each run, so --require-reproducible cannot be given beside it",
                hint="leave one of them away",
            )
        _check_limits(self)
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


def _check_limits(config: CollectConfig) -> None:
    """Raise `ConfigError` where a limit is given that only worker processes can be held to."""
    for name in ("step_timeout", "episode_timeout"):
        if config.sampler == "local" and getattr(config, name) is not None:
            raise ConfigError(
                f"{OPTIONS[name].flag} needs worker processes, which --sampler local has none of",
                hint="use --sampler multiprocessing",
            )


def default_output(env: str, now: datetime) -> Path:
    """Return `rollouts/<env>-<UTC time>`: milliseconds keep two runs of one second apart."""
    time = now.astimezone(UTC)
    return Path("rollouts") / f"{_file_label(env)}-{time:%Y%m%dT%H%M%S}.{time.microsecond // 1000:03d}Z"


def _file_label(env: str) -> str:
    name = PurePath(env).stem if env.endswith((".json", ".pkl")) else env
    return re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.")[:_LONGEST_LABEL] or "env"
