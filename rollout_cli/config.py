"""Every option of `rollout collect` and `rollout exact`: type, default, words, and where its value comes from.

A field of `CollectConfig` has the type and the default; the table `_DECLARED` has the words for people. Flags,
environment variables (`ROLLOUT_*`) and the keys of TOML files follow from them. Values of TOML and Python are
validated strictly: no text stands for a number.
"""

from __future__ import annotations

import difflib
import re
import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, NamedTuple, Self, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, Field, PlainValidator, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass as pydantic_dataclass
from pydantic_core import PydanticCustomError

from rollout_cli.cores import usable_cores
from rollout_cli.errors import ConfigError

CommandName = Literal["collect", "exact"]
Values = dict[str, Any]

_LARGEST = 2**63 - 1
_LONGEST_SHOWN = _LONGEST_LABEL = 80
AMOUNTS = frozenset({"timesteps", "episodes", "episodes_per_worker"})
"""The options that say how much: one of them is given."""
_UNSET_OUTPUT = Path("rollouts/<env>-<UTC time>")


class EpisodeRange(NamedTuple):
    """The episode numbers first, first + 1, …, stop - 1."""

    first: int
    stop: int

    def __str__(self) -> str:
        return str(self.stop) if self.first == 0 else f"{self.first}:{self.stop}"


@dataclass(frozen=True, slots=True)
class Option:
    """The words of an option for people, and which commands have it.

    Args:
        name: The name of its field, which is the key in a file too.
        help: One sentence for the help page.
        short: A one-letter flag such as `-p`; empty for none.
        metavar: The placeholder of a value in help pages; empty for a switch.
        shown: The default as a person reads it; empty where there is none.
        only: The one command that has it; None for both.
        panel: The part of the help page that it stands in.
        type: The annotated type of its field.
    """

    name: str
    help: str
    short: str = ""
    metavar: str = ""
    shown: str = ""
    only: CommandName | None = None
    panel: str = ""
    type: Any = None

    @property
    def flag(self) -> str:
        """The long flag, such as `--env-kwargs`."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable, such as `ROLLOUT_ENV_KWARGS`."""
        return "ROLLOUT_" + self.name.upper()

    @property
    def commands(self) -> tuple[CommandName, ...]:
        """The commands that have it."""
        return (self.only,) if self.only else ("collect", "exact")

    @property
    def is_switch(self) -> bool:
        """Whether it is on or off, and takes no value."""
        return self.type is bool

    @property
    def repeats(self) -> bool:
        """Whether a command line may give it more than once."""
        return self.metavar in {"KEY=VALUE", "KEY"}

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that it takes; empty where it takes other values."""
        return get_args(self.type) if get_origin(self.type) is Literal else ()

    def read(self, raw: object, label: str, *, text: bool = False) -> Any:
        """Validate a value.

        Args:
            raw: The value.
            label: The name of its source, for the error: `--workers`, `ROLLOUT_WORKERS` or `run.toml: workers`.
            text: Read it from the text of a flag or variable, or from several texts where the option repeats; a value
                of TOML or Python is validated strictly.

        Raises:
            ConfigError: If the option does not allow it.
        """
        adapter = _adapter(self.name)
        if text and self.repeats:
            texts: Any = raw
            raw, text = dict(_pair(one, label) for one in texts) if self.metavar == "KEY=VALUE" else tuple(texts), False
        try:
            return adapter.validate_strings(raw) if text else adapter.validate_python(raw, strict=True)
        except ValidationError as error:
            raise self.refusal(error.errors(include_url=False)[0], label) from error

    def refusal(self, found: Any, label: str) -> ConfigError:
        """Return the error for what pydantic found, with the value and, as its hint, the option's help."""
        shown = repr(found["input"])
        shown = shown if len(shown) <= _LONGEST_SHOWN else f"{shown[:_LONGEST_SHOWN]}…"
        _, should, rest = found["msg"].partition(" should ")
        problem = f"{label} must {rest}" if should else f"{label}: {found['msg']}"
        return ConfigError(f"{problem}, got {shown}", hint=self.help)


# The types of the values.


def _episode_range(value: object) -> EpisodeRange | None:
    """Read `N`, `A:B` or an integer."""
    if value is None or isinstance(value, EpisodeRange):
        found = value
    elif isinstance(value, str) and (match := re.fullmatch(r"(?:(\d[\d_]*):)?(\d[\d_]*)", value.strip())):
        found = EpisodeRange(int(match[1] or 0), int(match[2]))
    else:
        found = EpisodeRange(0, value) if isinstance(value, int) and not isinstance(value, bool) else EpisodeRange(0, 0)
    if found is not None and not 0 <= found.first < found.stop <= _LARGEST:
        raise PydanticCustomError("range", "Input should be a number of episodes, or A:B with 0 <= A < B")
    return found


def _folder(value: object) -> Path:
    """Read a path; an empty one would mean the working folder without saying so."""
    if not isinstance(value, Path | str) or not str(value):
        raise PydanticCustomError("folder", "Input should be the path of a folder")
    if not _is_utf8(str(value)):
        raise PydanticCustomError("folder", "Input should be a path in UTF-8, so that every tool can read the dataset")
    return Path(value)


def _keywords(value: object) -> dict[str, Any]:
    """Accept keyword arguments that both TOML and JSON hold: a date would not come back equal."""
    if not isinstance(value, Mapping) or not _is_plain(value):
        raise PydanticCustomError(
            "keywords", "Input should be key=value pairs, where a value is a TOML literal (no date) or plain text"
        )
    return dict(value)


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(text, str) and text.strip() for text in value):
        raise PydanticCustomError("texts", "Input should be names of infos")
    return tuple(value)


def _is_plain(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    if isinstance(value, str):
        return _is_utf8(value)
    return all(map(_is_plain, value)) if isinstance(value, list) else isinstance(value, bool | int | float)


def _is_utf8(text: str) -> bool:
    """Return whether the text has no lone surrogates: TOML, JSON and Parquet hold none."""
    return text.encode(errors="replace").decode() == text


def _pair(text: str, label: str) -> tuple[str, object]:
    """Split `key=value`; a value that is no plain TOML literal is text."""
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise ConfigError(f"{label} must be key=value, got {text!r}", hint="for example: --env-kwargs g=9.81")
    try:
        table = tomllib.loads(f"value = {value}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return key, value
    # A line break in the text could have smuggled in more keys, and a date cannot be passed on: both stay text.
    return key, table["value"] if len(table) == 1 and _is_plain(table) else value


_Count = Annotated[int, Field(ge=1, le=_LARGEST)]
_Natural = Annotated[int, Field(ge=0, le=_LARGEST)]
_Workers = Annotated[int, Field(ge=1, le=1_024)]
_EnvsPerWorker = Annotated[int, Field(ge=1, le=65_536)]
_Seconds = Annotated[float, Field(ge=0, le=_LARGEST, allow_inf_nan=False)]
_Limit = Annotated[float, Field(gt=0, le=_LARGEST, allow_inf_nan=False)]
_Text = Annotated[str, Field(min_length=1)]
_Sha256 = Annotated[str, Field(pattern=r"^[0-9A-Fa-f]{64}$")]
_ClassName = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")]
_Keywords = Annotated[Mapping[str, Any], PlainValidator(_keywords)]


# The options.


@pydantic_dataclass(frozen=True, kw_only=True, config=ConfigDict(strict=True, extra="forbid"))
class CollectConfig:
    """A checked, complete request for a run; `rollout collect --help` describes each option.

    Raises:
        ConfigError: A value that its option does not allow, or options that contradict each other.
    """

    command: CommandName = "collect"

    timesteps: _Count | None = None
    episodes: Annotated[EpisodeRange | None, PlainValidator(_episode_range)] = None
    episodes_per_worker: _Count | None = None
    max_episode_length: _Count | None = None
    episode_step_guard: _Count = 1_000_000

    policy: _Text = "random"
    policy_sha256: _Sha256 | None = None
    env: _Text = "CartPole-v1"
    env_kwargs: _Keywords = field(default_factory=dict)
    deterministic: bool = False
    invalid_action: Literal["error", "clip", "warn"] = "error"

    workers: _Workers = field(default_factory=usable_cores)
    envs_per_worker: _EnvsPerWorker = 1
    vectorization: Literal["sync", "native"] = "sync"
    sampler: Literal["multiprocessing", "local"] = "multiprocessing"
    start_method: Literal["forkserver", "spawn", "fork"] = "forkserver"
    worker_class: _ClassName | None = None
    worker_args: _Keywords = field(default_factory=dict)
    seed: _Natural | None = None

    output: Annotated[Path, PlainValidator(_folder)] = _UNSET_OUTPUT
    overwrite: bool = False
    resume: bool = False
    segment_bytes: _Count = 128 << 20
    next_observation: bool = False
    flush_every: _Seconds = 30.0
    drop_info: Annotated[tuple[str, ...], PlainValidator(_texts)] = ()
    require_reproducible: bool = False

    on_env_error: Literal["fail", "retry", "skip"] = "fail"
    on_worker_death: Literal["fail", "skip"] = "fail"
    max_worker_restarts: _Natural = 10
    step_timeout: _Limit | None = None
    episode_timeout: _Limit | None = None
    grace: _Seconds = 5.0

    @model_validator(mode="wrap")
    @classmethod
    def _checked(cls, value: Any, validate: Callable[[Any], Self]) -> Self:
        try:
            config = validate(value)
        except ValidationError as error:
            found = error.errors(include_url=False)[0]
            name = str(found["loc"][0])
            if found["type"] == "unexpected_keyword_argument":
                raise ConfigError(f"there is no option {name!r}", hint=_suggestion("", name)) from error
            option = OPTIONS.get(name) or Option(
                name, "a configuration is that of `rollout collect` or `rollout exact`"
            )
            raise option.refusal(found, name) from error
        if config.output == _UNSET_OUTPUT:
            object.__setattr__(config, "output", default_output(config.env, datetime.now(UTC)))
        _check_amount(config)
        _check_together(config)
        return config


_DECLARED = {
    "How much": (
        Option("timesteps", "Collect the shortest run of episodes that has at least N steps.", "-n", only="collect"),
        Option("episodes", "Collect N episodes, or those numbered A to B-1.", metavar="N|A:B", only="collect"),
        Option("episodes_per_worker", "Collect exactly N episodes from each worker.", "-k", only="exact"),
        Option("max_episode_length", "Truncate an episode after N steps.", shown="the environment's own limit"),
        Option("episode_step_guard", "End the run at an episode of N steps in an environment that has no limit."),
    ),
    "Policy and environment": (
        Option("policy", "The policy: random, file.pkl, or module:attr.", "-p", "SPEC"),
        Option("policy_sha256",
               "The SHA-256 that the policy's file must have, checked before anything of it is loaded.", "", "HEX"),
        Option("env", "The environment: a gymnasium id, spec.json, file.pkl, or module:attr.", "-e", "SPEC"),
        Option("env_kwargs", "A keyword argument for the environment, the value a TOML literal or else text; may be "
               "given again.", "", "KEY=VALUE"),
        Option("deterministic", "Ask the policy for its deterministic actions; one that has no such mode is refused."),
        Option("invalid_action",
               "An action outside of its space is an error, is moved to its nearest bound, or is only reported."),
    ),
    "Workers and seeds": (
        Option("workers", "How many workers step environments.", "-w", shown="the usable cores"),
        Option("envs_per_worker",
               "Step N copies of the environment in each worker, with one batched policy call a step.", "-m"),
        Option("vectorization",
               "Step copies of the environment one by one (sync), or its own vector environment (native)."),
        Option("sampler", "Run the workers as processes (multiprocessing) or inside this one (local)."),
        Option("start_method", "How worker processes are started."),
        Option("worker_class", "A worker class of your own.", "", "MODULE:CLASS", "the built-in worker"),
        Option("worker_args", "A keyword argument for the worker class, the value a TOML literal or else text; may be "
               "given again.", "", "KEY=VALUE"),
        Option("seed", "The root seed, from which every episode's seeds follow.", shown="drawn, printed and recorded"),
    ),
    "Dataset": (
        Option("output", "The dataset's folder.", "-o", "DIR"),
        Option("overwrite", "Replace the dataset that the folder holds."),
        Option("resume", "Continue the dataset that the folder holds, with its own options where none are given."),
        Option("segment_bytes", "Begin another data file before the episode that would take one past N bytes, counted "
               "before encoding.", shown="128 MiB"),
        Option("next_observation", "Also store each step's next observation, which the following row holds anyway."),
        Option("flush_every", "Commit the finished episodes this often: the most that a kill can lose."),
        Option("drop_info", "Do not record an info, given by its dotted path, such as episode.t, or a glob of it; may "
               "be given again.", "", "KEY"),
        Option("require_reproducible",
               "End with an error unless an episode that is run again is found to be the same."),
    ),
    "Faults and endings": (
        Option("on_env_error", "An episode whose environment or policy raises ends the run (fail), is run again up "
               "to three times in a worker built anew (retry), or is left out and reported (skip), which biases the "
               "data."),
        Option("on_worker_death", "An episode that kills its worker three times ends the run (fail), or is left out "
               "and reported (skip), which biases the data."),
        Option("max_worker_restarts", "Start worker processes that died again, N times in all."),
        Option("step_timeout", "Kill a worker whose step, with the reset before it, takes longer; that counts as its "
               "death. A step of several environments is one.", shown="no limit"),
        Option("episode_timeout", "An episode that takes longer is treated as one whose environment raised.",
               shown="no limit"),
        Option("grace", "After Ctrl-C or SIGTERM, give episodes below the last finished one so long to end."),
    ),
}  # fmt: skip


def _options() -> dict[str, Option]:
    """Return the declared options, completed by the types and defaults of their fields."""
    exact, plain = get_type_hints(CollectConfig, include_extras=True), get_type_hints(CollectConfig)
    defaults = {one.name: one.default for one in fields(CollectConfig)}
    placeholders: dict[Any, str] = {bool: "", int: "N", int | None: "N", float: "SECONDS", float | None: "SECONDS"}
    found = {}
    for panel, options in _DECLARED.items():
        for one in options:
            default, kind = defaults[one.name], plain[one.name]
            has_words = default is not MISSING and default is not None and kind is not bool and default != ()
            shown = f"{default:g}" if isinstance(default, float) else str(default) if has_words else ""
            metavar = one.metavar or placeholders.get(kind, "NAME")
            found[one.name] = replace(one, panel=panel, type=exact[one.name], metavar=metavar, shown=one.shown or shown)
    return found


OPTIONS: Mapping[str, Option] = _options()
"""Every option by its name, in the order of the help pages."""


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    return TypeAdapter(OPTIONS[name].type)


def options_of(command: str) -> list[Option]:
    """Return the options that a command has, in the order of its help page."""
    return [option for option in OPTIONS.values() if command in option.commands]


def default_output(env: str, now: datetime) -> Path:
    """Return `rollouts/<env>-<UTC time>`: milliseconds keep two runs of one second apart."""
    name = PurePath(env).stem if env.endswith((".json", ".pkl")) else env
    label = re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.")[:_LONGEST_LABEL] or "env"
    time = now.astimezone(UTC)
    return Path("rollouts") / f"{label}-{time:%Y%m%dT%H%M%S}.{time.microsecond // 1000:03d}Z"


def _suggestion(command: str, key: str) -> str:
    names = [option.name for option in OPTIONS.values() if not command or command in option.commands]
    close = difflib.get_close_matches(key.replace("-", "_"), names, n=1)
    return f"did you mean {close[0]!r}?" if close else "the options are: " + ", ".join(names)


def _check_amount(config: CollectConfig) -> None:
    """Raise `ConfigError` unless the config says how much to collect, in its command's one way."""
    given = [OPTIONS[name] for name in sorted(AMOUNTS) if getattr(config, name) is not None]
    for option in given:
        if config.command not in option.commands:
            raise ConfigError(f"`rollout {config.command}` has no option {option.flag}")
    if len(given) > 1:
        raise ConfigError("--timesteps and --episodes both say how much to collect", hint="give only one of them")
    if not given and config.command == "exact":
        raise ConfigError("--episodes-per-worker is missing", hint="for example: rollout exact --episodes-per-worker 5")
    if not given:
        raise ConfigError(
            "neither --timesteps nor --episodes says how much to collect",
            hint="for example: rollout collect --timesteps 100000",
        )


_WORKERS_OWN = {
    "seed": "use --seed",
    "max_episode_length": "use --max-episode-length",
    "n_envs": "use --envs-per-worker",
    "vectorization": "use --vectorization",
    "deterministic": "use --deterministic",
    "worker_number": "it differs from worker to worker",
}
"""Arguments of every worker that `worker_args` cannot hold, and why."""


def _check_together(config: CollectConfig) -> None:
    """Raise `ConfigError` where two options contradict each other."""
    if config.resume and config.overwrite:
        raise ConfigError("--resume keeps the existing dataset and --overwrite replaces it", hint="give one of them")
    if config.worker_class is not None and config.vectorization == "native":
        raise ConfigError("--vectorization native has a worker class of its own", hint="omit --worker-class")
    for name in ("step_timeout", "episode_timeout"):
        if config.sampler == "local" and getattr(config, name) is not None:
            message = f"{OPTIONS[name].flag} needs worker processes, and --sampler local has none"
            raise ConfigError(message, hint="use --sampler multiprocessing")
    for name in _WORKERS_OWN.keys() & config.worker_args.keys():
        raise ConfigError(f"--worker-args cannot give {name}", hint=_WORKERS_OWN[name])


# The sources of values.


def resolve(
    command: CommandName,
    *,
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    file: Path | None = None,
    recorded: Callable[[CommandName, Values], Values] | None = None,
) -> CollectConfig:
    """Return the configuration that the sources give together.

    Args:
        command: The command that was called.
        flags: What the command line gave, by option name: a text, a list of texts, or a bool; None where not given.
        environ: The environment variables.
        file: A TOML file.
        recorded: Returns the options that a dataset records, given all others; called where it is to be resumed.

    Raises:
        ConfigError: A source that cannot be read, or a value that its option does not allow.
    """
    sources = [
        {} if file is None else _values_from_file(command, file),
        _values_from_environment(command, environ),
        _values_from_flags(command, flags),
    ]
    given = _merged(sources)
    if given.get("resume") and recorded is not None:
        given = _merged([recorded(command, given), *sources])
    return CollectConfig(command=command, **given)


def _values_from_flags(command: str, flags: Mapping[str, object]) -> Values:
    given = [(option, flags.get(option.name)) for option in options_of(command)]
    return {
        option.name: raw if isinstance(raw, bool) else option.read(raw, option.flag, text=True)
        for option, raw in given
        if raw is not None and raw != []
    }


def _values_from_environment(command: str, environ: Mapping[str, str]) -> Values:
    """Read the variables; an empty one is not set, and options that repeat are split into words as in a shell."""
    found: Values = {}
    for option in options_of(command):
        name, text = option.variable, environ.get(option.variable)
        try:
            words: Any = shlex.split(text) if text and option.repeats else text
        except ValueError as error:
            raise ConfigError(f"{name} cannot be split into words: {error}", hint="quote it as in a shell") from error
        if text:
            found[option.name] = option.read(words, name, text=True)
    return found


def _values_from_file(command: str, path: Path) -> Values:
    """Read a TOML file, all of whose keys must be options of the command; its `command`, if any, must be this one."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        message = f"cannot read the configuration file {path}: {error.strerror}"
        raise ConfigError(message, hint="check the path given to --config") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}", hint="see https://toml.io for the syntax") from error
    written_for = table.pop("command", command)
    if written_for != command:
        raise ConfigError(
            f"{path} is written for `rollout {written_for}`, not for `rollout {command}`",
            hint="`command` must be 'collect' or 'exact', as the command that reads the file",
        )
    for key in table:
        if key not in OPTIONS:
            raise ConfigError(f"{path}: there is no option {key!r}", hint=_suggestion(command, key))
        if command not in OPTIONS[key].commands:
            hint = f"`rollout {OPTIONS[key].commands[0]}` has it"
            raise ConfigError(f"{path}: `rollout {command}` has no option {key}", hint=hint)
    return {key: OPTIONS[key].read(value, f"{path}: {key}") for key, value in table.items()}


def _merged(sources: Sequence[Values]) -> Values:
    """Merge the sources, the weakest of which comes first; keyword arguments are merged key by key.

    A source that says how much overrides all that weaker ones say of it: `--episodes 5` beside a file's
    `timesteps = 1000` means five episodes.
    """
    result: Values = {}
    for source in sources:
        overridden = AMOUNTS if AMOUNTS & source.keys() else frozenset()
        result = {name: value for name, value in result.items() if name not in overridden}
        for name, value in source.items():
            result[name] = {**result.get(name, {}), **value} if isinstance(value, dict) else value
    return result


# Writing.


def config_to_dict(config: CollectConfig) -> dict[str, Any]:
    """Return the command and every option that has a value, as TOML holds them."""
    values = {option.name: getattr(config, option.name) for option in options_of(config.command)}
    plain = {name: plain_value(value) for name, value in values.items() if value is not None and value not in ({}, ())}
    return {"command": config.command, **dict(sorted(plain.items(), key=lambda item: isinstance(item[1], dict)))}


def config_to_toml(config: CollectConfig) -> str:
    """Return a TOML document that `--config` reads back as this configuration."""
    import tomli_w  # noqa: PLC0415 - for --dry-run only

    return tomli_w.dumps(config_to_dict(config))


def plain_value(value: Any) -> Any:
    """Return an option's value as TOML holds it, and `Option.read` reads it back."""
    if isinstance(value, EpisodeRange):
        return value.stop if value.first == 0 else str(value)
    return str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
