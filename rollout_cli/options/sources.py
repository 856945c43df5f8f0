"""The sources of option values: flags, environment variables, a TOML file, and a dataset to resume."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rollout_cli.errors import ConfigError, misspelt
from rollout_cli.options.config import AMOUNTS, ENDS, OPTIONS, CollectConfig, Values, options_of
from rollout_cli.options.option import CommandName, Option
from rollout_cli.sources.loading import Source


def resolve(
    command: CommandName,
    *,
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    file: Path | None = None,
    recorded: Callable[[CommandName, Values], Values] | None = None,
    amount: Values | None = None,
) -> CollectConfig:
    """Merge flags, environment variables, a TOML file and a dataset to resume into one configuration.

    Args:
        command: The command that runs.
        flags: Strings, lists of strings or bools by option name; None for flags that are not given.
        environ: The environment variables.
        file: The TOML file.
        recorded: Returns the options that a dataset records, from the command and all other options.
        amount: The options that end the run if no source has any.

    Raises:
        ConfigError: A source cannot be read, or an option does not accept a value.
    """
    variables: Values = {}
    for option in options_of(command):
        if text := environ.get(option.variable):
            variables[option.name] = _read_variable(option, text)
    typed: Values = {}
    for name, raw in flags.items():
        if raw not in (None, [], ()):
            typed[name] = OPTIONS[name].read(raw, OPTIONS[name].flag, text=True)
    sources = [variables, typed]
    if file is not None:
        sources.insert(0, _values_from_file(command, file))
    merged = _merged(sources)
    if merged.get("resume") and recorded is not None:
        merged = _merged([recorded(command, merged), *sources])
    if ENDS.isdisjoint(merged):
        merged |= amount or {}
    return CollectConfig(command=command, **merged)


def _read_variable(option: Option, text: str) -> Any:
    """Return the value of an environment variable; for a repeatable option it is split as in a shell."""
    try:
        words: Any = shlex.split(text) if option.repeats else text
    except ValueError as error:
        raise ConfigError(
            f"{option.variable} cannot be split into words: {error}",
            code="config-variable",
            hint="quote the value as in a shell",
        ) from error
    return option.read(words, option.variable, text=True)


def _values_from_file(command: str, path: Path) -> Values:
    """Return the option values of a TOML file, which may contain only options of the command."""
    try:
        table = tomllib.loads((Source.read(str(path), ConfigError, most_bytes=1 << 20).data or b"").decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(
            f"{path} is not valid TOML: {error}",
            code="config-not-toml",
            hint="see https://toml.io for the syntax",
        ) from error
    written_for = table.pop("command", command)
    if written_for != command:
        raise ConfigError(
            f"{path} is written for `rollout {written_for}`, not for `rollout {command}`",
            code="config-command",
            hint="change `command` in the file, or run the command that it names",
        )
    for key in table:
        if key not in OPTIONS:
            raise ConfigError(
                f"{path}: unknown option {key!r}",
                code="option-unknown",
                hint=misspelt(key.replace("-", "_"), OPTIONS) or f"use one of: {', '.join(OPTIONS)}",
            )
        if command not in OPTIONS[key].commands:
            raise ConfigError(
                f"{path}: `rollout {command}` has no option {key}",
                code="option-unknown",
                hint=f"omit it, or use `rollout {OPTIONS[key].commands[0]}`",
            )
    return {key: OPTIONS[key].read(value, f"{path}: {key}") for key, value in table.items()}


def _merged(sources: Sequence[Values]) -> Values:
    """Merge the sources, weakest first; keyword arguments are merged key by key.

    An amount in one source overrides all amounts of weaker sources: `--episodes 5` with `timesteps = 1000` in
    a file means five episodes.
    """
    result: Values = {}
    for source in sources:
        if not AMOUNTS.isdisjoint(source):
            result = {name: value for name, value in result.items() if name not in AMOUNTS}
        for name, value in source.items():
            result[name] = {**result.get(name, {}), **value} if isinstance(value, dict) else value
    return result
