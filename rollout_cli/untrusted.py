"""What strangers' files hold: strings made safe to show, secrets cut, claims of size checked."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
from typing import Any

CUT = "***"
"""Stands for a secret."""
HIDDEN_NAME = r"(?i:token|secret|passwo?r?d|api[-_]?key|credential|private[-_]?key)"
"""What the name of a secret contains."""
_VALUE = r"""(["'])(?:(?!\2).)*\2|\{[^{}]*\}|\[[^\[\]]*\]|[^\s"'&,;}\])…]+"""
_ASSIGNED = rf"""({HIDDEN_NAME}[\w-]{{,40}}(?:["']\s*:|\s*=)\s*)(?:{_VALUE})"""
_USER = r"(\w://)[^/\s@\"']+@"


def without_secrets(value: Any) -> Any:
    """Return a plain value without secrets: values under the names of secrets, and the users of URLs."""
    if isinstance(value, dict):
        is_cut = {
            key: item and not isinstance(item, bool) and re.search(HIDDEN_NAME, key)
            for key, item in value.items()
        }
        return {key: CUT if is_cut[key] else without_secrets(item) for key, item in value.items()}
    if isinstance(value, list):
        return [*map(without_secrets, value)]
    if not isinstance(value, str):
        return value
    if value.startswith("{") and re.search(HIDDEN_NAME, value):
        with contextlib.suppress(ValueError, RecursionError):  # TOML, perhaps.
            return json.dumps(without_secrets(json.loads(value)))
    return re.sub(_USER, rf"\1{CUT}@", re.sub(_ASSIGNED, rf"\1\2{CUT}\2", value))


def printable(text: str, *, keep: str = "") -> str:
    """Return `text` without secrets, and with control characters and the like as escapes, except `keep`."""
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode()
        for char in without_secrets(text)
    )


def one_line(text: str) -> str:
    """Return `text` on one line, its line breaks as spaces, otherwise as `printable` gives it."""
    return printable(" ".join(text.splitlines()))


def shell_word(path: object) -> str:
    """Return a path as a shell takes it; one that begins with a dash is no option."""
    text = printable(str(path))
    return shlex.quote(f"./{text}" if text.startswith("-") else text)


def check_size(what: object, n_bytes: int) -> None:
    """Raise DatasetFormatError if a file claims more than `ROLLOUT_MEMORY_LIMIT` bytes, or 1 GiB."""
    from rollout_cli.errors import DatasetFormatError  # noqa: PLC0415 - errors cut secrets by this module

    text = os.environ.get("ROLLOUT_MEMORY_LIMIT", "")
    limit = int(text) if text.isdecimal() else 1 << 30
    if n_bytes > limit:
        raise DatasetFormatError(
            f"{what} unpacks to {n_bytes:,} bytes; expected at most {limit:,}",
            hint=f"if you trust the dataset, set ROLLOUT_MEMORY_LIMIT={n_bytes}",
        )
