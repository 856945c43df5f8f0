"""Plain values: values that JSON represents.

Numbers that JSON lacks are written as the strings `nan`, `inf` and `-inf`, which `float` parses. They cannot
be distinguished from equal strings.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

Document = Mapping[str, Any]
"""A JSON object, or other values by name, that must not be changed."""

Fields = dict[str, Any]
"""Values by name, such as a JSON object under construction."""

NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
"""The numbers that JSON lacks, by their strings."""


def plain_value(value: Any) -> Any:
    """Return `value` as JSON values; raise TypeError if it contains an object that JSON cannot represent."""
    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): plain_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(map(plain_value, value), key=repr)
    if isinstance(value, np.ndarray | np.generic):
        plain = value.tolist()
        # `tolist` returns a numpy scalar if Python has no equivalent, e.g. for a long double.
        if not isinstance(plain, np.generic):
            return plain_value(plain)
    raise TypeError(type(value).__name__)


def plain_json(document: Any, **options: Any) -> Any:
    """Return a document after a JSON round trip, with strings for other values; `options` go to `json.loads`."""
    return json.loads(
        json.dumps(document, default=str), parse_constant=lambda name: str(float(name)), **options
    )


def from_plain(value: Any) -> Any:
    """Return a plain value with `nan`, `inf` and `-inf` as numbers again."""
    if isinstance(value, dict):
        return {key: from_plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [from_plain(item) for item in value]
    return NUMBERS.get(value, value) if isinstance(value, str) else value


def plain_bytes(value: Any) -> int:
    """Return the nominal bytes of a plain value or array: 8 per number, and the UTF-8 bytes of a string.

    The bytes decide where a segment ends, and must be equal for a value in a column and in JSON. A number
    therefore has 8 bytes for every type, and so does a string that stands for a number.
    """
    if isinstance(value, dict):
        return plain_bytes([*value, *value.values()])
    if isinstance(value, list):
        return sum(map(plain_bytes, value))
    if isinstance(value, str) and value not in NUMBERS:
        return len(value.encode("utf-8", "backslashreplace"))
    return 8 * getattr(value, "size", 1)
