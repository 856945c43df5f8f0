"""A configuration as plain values, and as the TOML text from which the same configuration is read back."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping

from rollout_cli.config.collect_config import CollectConfig, options_of

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def config_to_dict(config: CollectConfig) -> dict[str, object]:
    """Return the command and every option that has a value, as JSON and TOML can hold them."""
    plain: dict[str, object] = {"command": config.command}
    for option in options_of(config.command):
        value = getattr(config, option.name)
        if value is not None and value not in ({}, ()):  # An empty table or list says nothing.
            plain[option.name] = option.kind.to_plain(value)
    return plain


def config_to_toml(config: CollectConfig) -> str:
    """Return a TOML document that `--config` reads back as this configuration."""
    plain = config_to_dict(config)
    tables = {key: value for key, value in plain.items() if isinstance(value, Mapping)}
    lines = [f"{key} = {_value(value)}" for key, value in plain.items() if not isinstance(value, Mapping)]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{_key(key)} = {_value(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return repr(value)


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _string(key)


def _string(text: str) -> str:
    # JSON's escapes are also TOML's. What JSON leaves as it is may still be forbidden (DEL) or drive a terminal.
    return "".join(char if char.isprintable() else _escape(char) for char in json.dumps(text, ensure_ascii=False))


def _escape(char: str) -> str:
    number = ord(char)
    return f"\\u{number:04x}" if number < 1 << 16 else f"\\U{number:08x}"
