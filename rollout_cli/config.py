"""Every option of `rollout collect` and `rollout exact`, declared once; where their values come from, and which wins.

A field of `CollectConfig` is an option: its type and bounds are pydantic's, its `Option` holds the words for people.
Flags, environment variables (`ROLLOUT_*`), the keys of a TOML file and the tables of docs/command-line.md follow from
it. Each value is validated with the name of its source: strictly (no text for a number) from TOML and from Python.
"""

from __future__ import annotations

import difflib
import re
import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
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

AMOUNT, WHAT, HOW = "How much", "Policy and environment", "Workers and seeds"
DATASET, FAULTS = "Dataset", "Faults and endings"
_LARGEST = 2**63 - 1
_MOST_WORKERS, _MOST_ENVS_PER_WORKER = 1_024, 65_536
_LONGEST_SHOWN = _LONGEST_LABEL = 80


class EpisodeRange(NamedTuple):
    """The episode numbers first, first + 1, …, stop - 1."""

    first: int
    stop: int

    def __str__(self) -> str:
        return str(self.stop) if self.first == 0 else f"{self.first}:{self.stop}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """The words of an option for people, and which commands have it.

    Args:
        panel: The part of the help page that it stands in.
        help: One sentence for the help page.
        short: A one-letter flag such as `-p`; empty for none.
        metavar: The placeholder of a value in help pages.
        shown: The default as a person reads it; empty where there is none.
        commands: The commands that have it.
        name: The name of its field, which is the key in a file too.
        type: The annotated type of its field.
    """

    panel: str
    help: str
    short: str
    metavar: str
    shown: str
    commands: tuple[CommandName, ...]
    name: str = ""
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

    def read_texts(self, texts: Sequence[str], label: str) -> Any:
        """Validate an option that repeats, one text a flag; as `read` otherwise."""
        is_table = self.metavar == "KEY=VALUE"
        return self.read(dict(_pair(text, label) for text in texts) if is_table else tuple(texts), label)

    def read(self, raw: object, label: str, *, text: bool = False) -> Any:
        """Validate a value.

        Args:
            raw: The value.
            label: The name of its source, for the error: `--workers`, `ROLLOUT_WORKERS` or `run.toml: workers`.
            text: Read it from the text of a flag or variable; a value of TOML or Python is validated strictly.

        Raises:
            ConfigError: If the option does not allow it.
        """
        adapter = _adapter(self.name)
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


def option(
    panel: str,
    text: str,
    *,
    default: Any = None,
    shown: str = "",
    metavar: str = "",
    short: str = "",
    only: CommandName | None = None,
) -> Any:
    """Return the field of an option; `only` names the one command that has it, `shown` stands for its default."""
    if not shown and default is not None and not isinstance(default, bool | tuple | type):
        shown = f"{default:g}" if isinstance(default, float) else str(default)
    commands: tuple[CommandName, ...] = ("collect", "exact") if only is None else (only,)
    declared = Option(panel=panel, help=text, short=short, metavar=metavar, shown=shown, commands=commands)
    if callable(default):
        return field(default_factory=default, metadata={"option": declared})
    return field(default=default, metadata={"option": declared})


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
    path = value if isinstance(value, Path) else Path(value) if isinstance(value, str) and value else None
    if path is None:
        raise PydanticCustomError("folder", "Input should be the path of a folder")
    if not str(path).isprintable() and str(path).encode(errors="replace").decode() != str(path):
        raise PydanticCustomError("folder", "Input should be a path in UTF-8, so that every tool can read the dataset")
    return path


def _keywords(value: object) -> dict[str, Any]:
    """Accept keyword arguments that both TOML and JSON hold: a date would not come back equal."""
    if not isinstance(value, Mapping) or not _is_plain(value):
        raise PydanticCustomError(
            "keywords", "Input should be key=value pairs, where a value is a TOML literal (no date) or plain text"
        )
    return dict(value)


def _texts(value: object) -> tuple[str, ...]:
    texts = tuple(value) if isinstance(value, list | tuple) else ()
    if not isinstance(value, list | tuple) or not all(isinstance(text, str) and text.strip() for text in texts):
        raise PydanticCustomError("texts", "Input should be names of infos")
    return texts


def _is_plain(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    if isinstance(value, str):
        return value.encode(errors="replace").decode() == value  # No lone surrogates: TOML and JSON hold none.
    return all(map(_is_plain, value)) if isinstance(value, list) else isinstance(value, bool | int | float)


def _pair(text: str, label: str) -> tuple[str, object]:
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise ConfigError(f"{label} must be key=value, got {text!r}", hint="for example: --env-kwargs g=9.81")
    return key, _literal(value)


def _literal(text: str) -> object:
    try:
        table = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    # A line break in the text could have smuggled in more keys, and a date cannot be passed on: both stay text.
    return table["value"] if len(table) == 1 and _is_plain(table) else text


_Count = Annotated[int, Field(ge=1, le=_LARGEST)]
_Natural = Annotated[int, Field(ge=0, le=_LARGEST)]
_Workers = Annotated[int, Field(ge=1, le=_MOST_WORKERS)]
_EnvsPerWorker = Annotated[int, Field(ge=1, le=_MOST_ENVS_PER_WORKER)]
_Seconds = Annotated[float, Field(ge=0, le=_LARGEST, allow_inf_nan=False)]
_Limit = Annotated[float, Field(gt=0, le=_LARGEST, allow_inf_nan=False)]
_Text = Annotated[str, Field(min_length=1)]
_Sha256 = Annotated[str, Field(pattern=r"^[0-9A-Fa-f]{64}$")]
_ClassName = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")]
_Keywords = Annotated[Mapping[str, Any], PlainValidator(_keywords)]
_KEYWORDS_HELP = "the value a TOML literal or else text; may be given again."
_UNSET_OUTPUT = Path("rollouts/<env>-<UTC time>")
_AMOUNTS = frozenset({"timesteps", "episodes", "episodes_per_worker"})


@pydantic_dataclass(frozen=True, kw_only=True, config=ConfigDict(strict=True, extra="forbid"))
class CollectConfig:
    """A checked, complete request for a run.

    Raises:
        ConfigError: A value that its option does not allow, or options that contradict each other.
    """

    command: CommandName = "collect"

    timesteps: _Count | None = option(
        AMOUNT, "Collect the shortest run of episodes that has at least N steps.", only="collect", short="-n"
    )
    episodes: Annotated[EpisodeRange | None, PlainValidator(_episode_range)] = option(
        AMOUNT, "Collect N episodes, or those numbered A to B-1.", metavar="N|A:B", only="collect"
    )
    episodes_per_worker: _Count | None = option(
        AMOUNT, "Collect exactly N episodes from each worker.", only="exact", short="-k"
    )
    max_episode_length: _Count | None = option(
        AMOUNT, "Truncate an episode after N steps.", shown="the environment's own limit"
    )
    episode_step_guard: _Count = option(
        AMOUNT, "End the run at an episode of N steps in an environment that has no limit.", default=1_000_000
    )

    policy: _Text = option(
        WHAT, "The policy: random, file.pkl, or module:attr.", default="random", metavar="SPEC", short="-p"
    )
    policy_sha256: _Sha256 | None = option(
        WHAT, "The SHA-256 that the policy's file must have, checked before anything of it is loaded.", metavar="HEX"
    )
    env: _Text = option(
        WHAT,
        "The environment: a gymnasium id, spec.json, file.pkl, or module:attr.",
        default="CartPole-v1",
        metavar="SPEC",
        short="-e",
    )
    env_kwargs: _Keywords = option(
        WHAT, f"A keyword argument for the environment, {_KEYWORDS_HELP}", default=dict, metavar="KEY=VALUE"
    )
    deterministic: bool = option(
        WHAT, "Ask the policy for its deterministic actions; one that has no such mode is refused.", default=False
    )
    invalid_action: Literal["error", "clip", "warn"] = option(
        WHAT,
        "An action outside of its space is an error, is moved to its nearest bound, or is only reported.",
        default="error",
    )

    workers: _Workers = option(
        HOW, "How many workers step environments.", default=usable_cores, shown="the usable cores", short="-w"
    )
    envs_per_worker: _EnvsPerWorker = option(
        HOW,
        "Step N copies of the environment in each worker, with one batched policy call a step.",
        default=1,
        short="-m",
    )
    vectorization: Literal["sync", "native"] = option(
        HOW, "Step copies of the environment one by one (sync), or its own vector environment (native).", default="sync"
    )
    sampler: Literal["multiprocessing", "local"] = option(
        HOW, "Run the workers as processes (multiprocessing) or inside this one (local).", default="multiprocessing"
    )
    start_method: Literal["forkserver", "spawn", "fork"] = option(
        HOW, "How worker processes are started.", default="forkserver"
    )
    worker_class: _ClassName | None = option(
        HOW, "A worker class of your own.", metavar="MODULE:CLASS", shown="the built-in worker"
    )
    worker_args: _Keywords = option(
        HOW, f"A keyword argument for the worker class, {_KEYWORDS_HELP}", default=dict, metavar="KEY=VALUE"
    )
    seed: _Natural | None = option(
        HOW, "The root seed, from which every episode's seeds follow.", shown="drawn, printed and recorded"
    )

    output: Annotated[Path, PlainValidator(_folder)] = option(
        DATASET,
        "The dataset's folder.",
        default=_UNSET_OUTPUT,
        metavar="DIR",
        shown=str(_UNSET_OUTPUT),
        short="-o",
    )
    overwrite: bool = option(DATASET, "Replace the dataset that the folder holds.", default=False)
    resume: bool = option(
        DATASET, "Continue the dataset that the folder holds, with its own options where none are given.", default=False
    )
    segment_bytes: _Count = option(
        DATASET,
        "Begin another data file before the episode that would take one past N bytes, counted before encoding.",
        default=128 << 20,
        shown="128 MiB",
    )
    next_observation: bool = option(
        DATASET, "Also store each step's next observation, which the following row holds anyway.", default=False
    )
    flush_every: _Seconds = option(
        DATASET, "Commit the finished episodes this often: the most that a kill can lose.", default=30.0
    )
    drop_info: Annotated[tuple[str, ...], PlainValidator(_texts)] = option(
        DATASET,
        "Do not record an info, given by its dotted path, such as episode.t, or a glob of it; may be given again.",
        default=(),
        metavar="KEY",
    )
    require_reproducible: bool = option(
        DATASET, "End with an error unless an episode that is run again is found to be the same.", default=False
    )

    on_env_error: Literal["fail", "retry", "skip"] = option(
        FAULTS,
        "An episode whose environment or policy raises ends the run (fail), is run again up to three times in a "
        "worker built anew (retry), or is left out and reported (skip), which biases the data.",
        default="fail",
    )
    on_worker_death: Literal["fail", "skip"] = option(
        FAULTS,
        "An episode that kills its worker three times ends the run (fail), or is left out and reported (skip), "
        "which biases the data.",
        default="fail",
    )
    max_worker_restarts: _Natural = option(
        FAULTS, "Start worker processes that died again, N times in all.", default=10
    )
    step_timeout: _Limit | None = option(
        FAULTS,
        "Kill a worker whose step, with the reset before it, takes longer; that counts as its death. A step of several "
        "environments is one.",
        shown="no limit",
    )
    episode_timeout: _Limit | None = option(
        FAULTS, "An episode that takes longer is treated as one whose environment raised.", shown="no limit"
    )
    grace: _Seconds = option(
        FAULTS, "After Ctrl-C or SIGTERM, give episodes below the last finished one so long to end.", default=5.0
    )

    @model_validator(mode="wrap")
    @classmethod
    def _checked(cls, value: Any, validate: Callable[[Any], Self]) -> Self:
        try:
            config = validate(value)
        except ValidationError as error:
            found = error.errors(include_url=False)[0]
            name = str(found["loc"][0]) if found["loc"] else "CollectConfig"
            raise OPTIONS[name].refusal(found, name) if name in OPTIONS else _unknown(name, found) from error
        if config.output == _UNSET_OUTPUT:
            object.__setattr__(config, "output", default_output(config.env, datetime.now(UTC)))
        _check_amount(config)
        _check_together(config)
        return config


def _declared_options() -> dict[str, Option]:
    hints, plain = get_type_hints(CollectConfig, include_extras=True), get_type_hints(CollectConfig)
    declared = {one.name: one.metadata["option"] for one in fields(CollectConfig) if "option" in one.metadata}
    return {
        name: replace(found, name=name, type=hints[name], metavar=found.metavar or _metavar(plain[name]))
        for name, found in declared.items()
    }


def _metavar(kind: Any) -> str:
    """Return the placeholder of a value of this type; a switch has none."""
    names = {bool: "", int: "N", int | None: "N", float: "SECONDS", float | None: "SECONDS"}
    return names.get(kind, "NAME")


OPTIONS: Mapping[str, Option] = _declared_options()
"""Every option by its name."""


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


def _unknown(name: str, found: Any) -> ConfigError:
    if found["type"] == "unexpected_keyword_argument":
        return ConfigError(f"there is no option {name!r}", hint=_suggestion("", name))
    return ConfigError(f"{name}: {found['msg']}, got {found['input']!r}")


def _suggestion(command: str, key: str) -> str:
    names = [option.name for option in OPTIONS.values() if not command or command in option.commands]
    close = difflib.get_close_matches(key.replace("-", "_"), names, n=1)
    return f"did you mean {close[0]!r}?" if close else "the options are: " + ", ".join(names)


def _check_amount(config: CollectConfig) -> None:
    """Raise `ConfigError` unless the config says how much to collect, in its command's one way."""
    amounts = [OPTIONS[name] for name in _AMOUNTS]
    given = [option for option in amounts if getattr(config, option.name) is not None]
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
            raise ConfigError(
                f"{OPTIONS[name].flag} needs worker processes, and --sampler local has none",
                hint="use --sampler multiprocessing",
            )
    for name in config.worker_args:
        if name in _WORKERS_OWN:
            raise ConfigError(f"--worker-args cannot give {name}", hint=_WORKERS_OWN[name])


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
        {} if file is None else values_from_file(command, file),
        values_from_environment(command, environ),
        values_from_flags(command, flags),
    ]
    given = merged(sources)
    if given.get("resume") and recorded is not None:
        given = merged([recorded(command, given), *sources])
    return CollectConfig(command=command, **given)


def values_from_flags(command: str, flags: Mapping[str, object]) -> Values:
    """Read the flags that were given."""
    given = [(option, flags.get(option.name)) for option in options_of(command)]
    return {option.name: _flag_value(option, raw) for option, raw in given if raw is not None and raw != []}


def _flag_value(option: Option, raw: Any) -> Any:
    if option.is_switch:
        return raw
    return option.read_texts(raw, option.flag) if option.repeats else option.read(raw, option.flag, text=True)


def values_from_environment(command: str, environ: Mapping[str, str]) -> Values:
    """Read the environment variables that are set; an empty one counts as not set.

    Options that repeat take their values between spaces, quoted as in a shell.
    """
    found: Values = {}
    for option in options_of(command):
        text = environ.get(option.variable)
        if text and option.repeats:
            found[option.name] = option.read_texts(_words(text, option.variable), option.variable)
        elif text:
            found[option.name] = option.read(text, option.variable, text=True)
    return found


def _words(text: str, variable: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"{variable} cannot be split into words: {error}", hint="quote it as in a shell") from error


def values_from_file(command: str, path: Path) -> Values:
    """Read a TOML file, all of whose keys must be options of the command; its `command`, if any, must be this one."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"cannot read the configuration file {path}: {error.strerror}", hint="check the path given to --config"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}", hint="see https://toml.io for the syntax") from error
    written_for = table.pop("command", command)
    if written_for != command:
        raise ConfigError(
            f"{path} is written for `rollout {written_for}`, not for `rollout {command}`",
            hint="`command` must be 'collect' or 'exact', as the command that reads the file",
        )
    return {key: _file_value(command, path, key, value) for key, value in table.items()}


def _file_value(command: str, path: Path, key: str, value: object) -> Any:
    option = OPTIONS.get(key)
    if option is None:
        raise ConfigError(f"{path}: there is no option {key!r}", hint=_suggestion(command, key))
    if command not in option.commands:
        owner = " and ".join(option.commands)
        raise ConfigError(f"{path}: `rollout {command}` has no option {key}", hint=f"`rollout {owner}` has it")
    return option.read(value, f"{path}: {key}")


def merged(sources: Sequence[Values]) -> Values:
    """Merge the sources, the weakest of which comes first; keyword arguments are merged key by key.

    A source that sets one of several rivals overrides all of them in the weaker ones: `--episodes 5` beside a file's
    `timesteps = 1000` means five episodes.
    """
    result: Values = {}
    for source in sources:
        overridden = _AMOUNTS if _AMOUNTS & source.keys() else frozenset()
        result = {name: value for name, value in result.items() if name not in overridden}
        for name, value in source.items():
            result[name] = {**result.get(name, {}), **value} if isinstance(value, dict) else value
    return result


def config_to_dict(config: CollectConfig) -> dict[str, Any]:
    """Return the command and every option that has a value, as TOML holds them."""
    values = {option.name: getattr(config, option.name) for option in options_of(config.command)}
    plain = {name: plain_value(value) for name, value in values.items() if value is not None and value not in ({}, ())}
    tables = {name: value for name, value in plain.items() if isinstance(value, dict)}
    return {"command": config.command, **{k: v for k, v in plain.items() if k not in tables}, **tables}


def config_to_toml(config: CollectConfig) -> str:
    """Return a TOML document that `--config` reads back as this configuration."""
    import tomli_w  # noqa: PLC0415 - for --dry-run only

    return tomli_w.dumps(config_to_dict(config))


def plain_value(value: Any) -> Any:
    """Return an option's value as TOML holds it, and `Option.read` reads it back."""
    if isinstance(value, EpisodeRange):
        return value.stop if value.first == 0 else str(value)
    return str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
