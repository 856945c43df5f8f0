"""`key=value` pairs: in options that repeat, and after the `?` of a SPEC; a value is of TOML, or text."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

from rollout_cli.errors import ConfigError

Keywords = Mapping[str, Any]
"""Arguments of a class, a function or a scheme, by name."""
Record = Mapping[str, Any]
"""A JSON object, such as what info.json records of a run."""


def keyword(text: str, label: str, *, example: str = "") -> tuple[str, object]:
    """Split `key=value`; a value that is no plain TOML literal is text.

    Args:
        text: The pair.
        label: What it is, for messages.
        example: One for the hint; else the label is an option that takes pairs.

    Raises:
        ConfigError: If it is no such pair.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise ConfigError(
            f"{label} must be key=value, got {text!r}",
            code="option-value",
            hint=f"for example: {example or f'{label} g=9.81'}",
        )
    try:
        table = tomllib.loads(f"value = {value}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return key, value
    # A line break in the text could have smuggled in more keys, and a date cannot be passed on: both stay
    # text.
    return key, table["value"] if len(table) == 1 and is_plain(table) else value


def parted(spec: str, subject: str) -> tuple[str, dict[str, object]]:
    """Split `NAME?key=value&key=value` into the name and the values; messages call it a `subject`.

    Raises:
        ConfigError: If a part is no such pair.
    """
    name, _, text = spec.partition("?")
    label = f"an argument of {subject} {name}"
    example = f"{name}?key=value"
    pairs = [keyword(pair, label, example=example) for pair in text.split("&") if pair]
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ConfigError(
            f"{subject} {name} gets an argument twice: {text}",
            code="argument-repeated",
            hint="give each argument once",
        )
    return name, values


def is_plain(value: object) -> bool:
    """Return whether TOML, JSON and Parquet hold a value: no dates, nulls or lone surrogates."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and is_plain(item) for key, item in value.items())
    if isinstance(value, str):
        return value.encode(errors="replace").decode() == value
    if isinstance(value, list):
        return all(map(is_plain, value))
    return isinstance(value, bool | int | float)
