"""Plain values: what JSON has.

The numbers that it lacks are the texts `nan`, `inf` and `-inf`, wherever this package writes JSON; `float`
reads them. A text that is one of them is not told from the number.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

Document = Mapping[str, Any]
"""A JSON object, or other values by name, that is only read."""

Fields = dict[str, Any]
"""Values by name, such as a JSON object that is being made."""

NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
"""The numbers that JSON lacks, by the strings that stand for them."""


def plain_value(value: Any) -> Any:
    """Return `value` built of what JSON has; `TypeError` where it holds anything that has no such form."""
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
        # What Python has no number for, such as a long double, stays numpy's.
        if not isinstance(plain, np.generic):
            return plain_value(plain)
    raise TypeError(type(value).__name__)


def plain_json(document: Any, **options: Any) -> Any:
    """Return a document as JSON gives it back: what JSON lacks is a text; `options` go to `json.loads`."""
    return json.loads(
        json.dumps(document, default=str), parse_constant=lambda name: str(float(name)), **options
    )


def from_plain(value: Any) -> Any:
    """Return a plain value with the numbers back that JSON lacks."""
    if isinstance(value, dict):
        return {key: from_plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [from_plain(item) for item in value]
    return NUMBERS.get(value, value) if isinstance(value, str) else value


def plain_bytes(value: Any) -> int:
    """Return the nominal bytes of a plain value or an array: 8 a number, and of a text those of its UTF-8.

    They are the same whether a value has a column or is stored as JSON: where a segment ends follows from
    what is stored. So a number has 8 whatever its type, and the texts that stand for numbers in JSON have 8
    too.
    """
    if isinstance(value, dict):
        return plain_bytes([*value, *value.values()])
    if isinstance(value, list):
        return sum(map(plain_bytes, value))
    if isinstance(value, str) and value not in NUMBERS:
        return len(value.encode("utf-8", "backslashreplace"))
    return 8 * getattr(value, "size", 1)
