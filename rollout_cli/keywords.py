"""Parsing of `key=value` pairs in repeatable options and after the `?` of a SPEC."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

from rollout_cli.errors import ConfigError

Keywords = Mapping[str, Any]
"""Arguments of a class, a function or a scheme, by name."""
Record = Mapping[str, Any]
"""A JSON object, such as an entry of info.json."""


def keyword(text: str, label: str, *, example: str = "") -> tuple[str, object]:
    """Return key and value of `key=value`; a value that is not a plain TOML literal is a string.

    Args:
        text: The pair.
        label: The name of the option or argument, for messages.
        example: A valid pair for the hint; by default `{label} g=9.81`, for an option.

    Raises:
        ConfigError: `text` is not a pair.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise ConfigError(
            f"{label} must be key=value, got {text!r}",
            code="option-value",
            hint=f"pass a pair, for example: {example or f'{label} g=9.81'}",
        )
    try:
        table = tomllib.loads(f"value = {value}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return key, value
    # A line break in the value could add more keys, and a date is not plain: both remain strings.
    return key, table["value"] if len(table) == 1 and is_plain(table) else value


def parted(spec: str, subject: str) -> tuple[str, dict[str, object]]:
    """Return the name and the values of `NAME?key=value&key=value`; messages call it `subject`.

    Raises:
        ConfigError: A part is not a pair, or a key is repeated.
    """
    name, _, text = spec.partition("?")
    label = f"an argument of {subject} {name}"
    example = f"{name}?key=value"
    pairs = [keyword(pair, label, example=example) for pair in text.split("&") if pair]
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ConfigError(
            f"{subject} {name} has a repeated argument: {text}",
            code="argument-repeated",
            hint="pass each argument once",
        )
    return name, values


def is_plain(value: object) -> bool:
    """Return True if TOML, JSON and Parquet can represent a value: no dates, nulls or lone surrogates."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and is_plain(item) for key, item in value.items())
    if isinstance(value, str):
        return value.encode(errors="replace").decode() == value
    if isinstance(value, list):
        return all(map(is_plain, value))
    return isinstance(value, bool | int | float)
