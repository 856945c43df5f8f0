"""Where options come from: flags, environment variables, a TOML file, and the defaults, the earlier the stronger."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rollout_cli.config.collect_config import COMMANDS, OPTIONS, CollectConfig, options_of
from rollout_cli.config.options import CommandName, Option
from rollout_cli.errors import ConfigError

Values = dict[str, Any]


def resolve(
    command: CommandName,
    *,
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    file: Path | None = None,
    recorded: Callable[[CommandName, Values], Values] | None = None,
) -> CollectConfig:
    """Return the configuration that the sources agree on.

    Args:
        command: The command that was called.
        flags: What the command line gave, by option name: a text, a list of texts, or a bool; None where not given.
        environ: The environment variables.
        file: A TOML file.
        recorded: Gives the options that a dataset records, from those that were given; asked where it is to be resumed.

    Raises:
        ConfigError: A source that cannot be read, or a value that its option does not allow.
    """
    layers = [
        {} if file is None else values_from_file(command, file),
        values_from_environment(command, environ),
        values_from_flags(command, flags),
    ]
    given = merged(layers)
    if given.get("resume") and recorded is not None:
        given = merged([recorded(command, given), *layers])
    return CollectConfig(command=command, **given)


def values_from_flags(command: str, flags: Mapping[str, object]) -> Values:
    """Read the flags that were given."""
    values: Values = {}
    for option in options_of(command):
        given = flags.get(option.name)
        if given is not None and given != []:
            values[option.name] = _read(option, option.flag, given, option.kind.from_flag)
    return values


def values_from_environment(command: str, environ: Mapping[str, str]) -> Values:
    """Read the environment variables that are set; an empty one counts as not set."""
    return {
        option.name: _read(option, option.variable, environ[option.variable], option.kind.from_text)
        for option in options_of(command)
        if environ.get(option.variable)
    }


def values_from_file(command: str, path: Path) -> Values:
    """Read a TOML file, all of whose keys must be options of the command; its `command`, if any, must be this one."""
    table = _parsed(path)
    written_for = table.pop("command", command)
    if written_for not in COMMANDS:
        raise ConfigError(f"{path}: command must be 'collect' or 'exact', got {written_for!r}")
    if written_for != command:
        raise ConfigError(
            f"{path} is written for `rollout {written_for}`, not for `rollout {command}`",
            hint=f"run: rollout {written_for} --config {path}",
        )
    return {key: _from_file(command, path, key, value) for key, value in table.items()}


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"cannot read the configuration file {path}: {error.strerror}", hint="check the path given to --config"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}", hint="see https://toml.io for the syntax") from error


def _from_file(command: str, path: Path, key: str, value: object) -> object:
    option = OPTIONS.get(key)
    if option is None:
        raise ConfigError(f"{path}: there is no option {key!r}", hint=_suggestion(command, key))
    if command not in option.commands:
        raise ConfigError(
            f"{path}: {key} is no option of `rollout {command}`",
            hint=f"it belongs to `rollout {' and '.join(option.commands)}`",
        )
    return _read(option, f"{path}: {key}", value, option.kind.from_toml)


def _suggestion(command: str, key: str) -> str:
    names = [option.name for option in options_of(command)]
    close = difflib.get_close_matches(key.replace("-", "_"), names, n=1)
    return f"did you mean {close[0]!r}?" if close else "the options are: " + ", ".join(names)


def _read(option: Option, label: str, raw: object, convert: Callable[[Any], object]) -> object:
    """Convert and check one value; an error names where it came from, what was expected, and what was there."""
    try:
        value = convert(raw)
    except ValueError as error:
        raise option.refusal(raw, label) from error
    if not option.kind.accepts(value):
        raise option.refusal(raw, label)
    return value


def merged(layers: list[Values]) -> Values:
    """Lay the stronger layers over the weaker; the weakest comes first.

    Tables are merged key by key. A layer that sets one of several rivals, such as `timesteps` and `episodes`,
    overrules all of them in the layers below: `--episodes 5` beside a file's `timesteps = 1000` means five episodes.
    """
    result: Values = {}
    for layer in layers:
        overruled = {rival for name in layer for rival in OPTIONS[name].rivals}
        result = {name: value for name, value in result.items() if name not in overruled}
        for name, value in layer.items():
            result[name] = {**result.get(name, {}), **value} if isinstance(value, dict) else value
    return result
