"""Removal of secrets from strings and plain values, by the names of keys and variables."""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any

CUT = "***"
"""The replacement of a secret."""
HIDDEN_NAME = r"(?i:token|secret|passwo?r?d|api[-_]?key|credential|private[-_]?key)"
"""A pattern that the name of a secret contains."""
_VALUE = r"""(["'])(?:(?!\2).)*\2|\{[^{}]*\}|\[[^\[\]]*\]|[^\s"'&,;}\])…]+"""
_ASSIGNED = rf"""({HIDDEN_NAME}[\w-]{{,40}}(?:["']\s*:|\s*=)\s*)(?:{_VALUE})"""
_USER = r"(\w://)[^/\s@\"']+@"


def without_secrets(value: Any) -> Any:
    """Return a plain value without the values of secret names and without the users of URLs."""
    if isinstance(value, dict):
        shown = {}
        for key, item in value.items():
            is_secret = item and not isinstance(item, bool) and re.search(HIDDEN_NAME, key)
            shown[key] = CUT if is_secret else without_secrets(item)
        return shown
    if isinstance(value, list):
        return [*map(without_secrets, value)]
    if not isinstance(value, str):
        return value
    if value.startswith("{") and re.search(HIDDEN_NAME, value):
        with contextlib.suppress(ValueError, RecursionError):  # TOML, perhaps.
            return json.dumps(without_secrets(json.loads(value)))
    return re.sub(_USER, rf"\1{CUT}@", re.sub(_ASSIGNED, rf"\1\2{CUT}\2", value))
