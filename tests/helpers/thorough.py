"""Slow tests, marked as `thorough`: most are further parameters of a test that runs anyway.

The README's test command leaves them out, and `.ci/run` runs them once (`pytest -m thorough`; `-m ''` runs all tests).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


def usually(parameters: Iterable[T], runs: Callable[[T], bool]) -> list[Any]:
    """Return the parameters of a test, a tuple for several arguments; those for which `runs` is false are marked."""
    marked = [
        pytest.param(
            *(one if isinstance(one, tuple) else (one,)), marks=() if runs(one) else pytest.mark.thorough
        )
        for one in parameters
    ]
    assert 0 < sum(not one.marks for one in marked) < len(marked), "nothing, or all, runs usually"
    return marked
