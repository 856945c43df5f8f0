"""What a callable may be called with, as far as Python can tell."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)


def parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of `function`; none for the few builtins that do not tell."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []


def accepts_positional(function: Callable[..., Any], count: int) -> bool:
    """Return whether `function` can be called with `count` positional arguments alone; True if it does not tell."""
    try:
        inspect.signature(function).bind(*[None] * count)
    except ValueError:
        return True
    except TypeError:
        return False
    return True


def accepts_keyword(function: Callable[..., Any], name: str) -> bool:
    """Return whether `function` takes a keyword `name`; False if it does not tell."""
    found = parameters(function)
    return any(p.kind in _NAMED and (p.name == name or p.kind is p.VAR_KEYWORD) for p in found)


def required(function: Callable[..., Any]) -> list[str]:
    """Return the names of the arguments that `function` cannot be called without."""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters(function) if p.default is p.empty and p.kind not in variadic]
