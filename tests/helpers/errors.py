"""Expecting an error by its code: the wording stands in docs/errors.md, and may change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

E = TypeVar("E", bound=Exception)


@contextmanager
def raises(kind: type[E], code: str, *values: object) -> Iterator[pytest.ExceptionInfo[E]]:
    """Expect an error of a class and code, whose message holds these values, such as a name or a number."""
    with pytest.raises(kind) as caught:
        yield caught
    error = caught.value
    assert getattr(error, "code", None) == code, f"{error!r} has the code {getattr(error, 'code', None)!r}"
    missing = [value for value in values if str(value) not in str(error)]
    assert not missing, f"{error!r} does not name {missing}"
