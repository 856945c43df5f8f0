"""Expecting an error by its code: the wording stands in docs/errors.md, and may change."""

from __future__ import annotations

from types import TracebackType
from typing import Generic, TypeVar

import pytest

E = TypeVar("E", bound=Exception)


class raises(Generic[E]):  # noqa: N801 - it reads as pytest.raises does
    """Expect an error of a class, or of one of some, with a code, whose message has these values, such as a name."""

    def __init__(self, kind: type[E] | tuple[type[E], ...], code: str, *values: object) -> None:
        self._context = pytest.raises(kind)
        self._code = code
        self._values = values

    def __enter__(self) -> pytest.ExceptionInfo[E]:
        self._caught = self._context.__enter__()
        return self._caught

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not self._context.__exit__(kind, error, trace):
            return False
        raised = self._caught.value
        code = getattr(raised, "code", None)
        assert code == self._code, f"{raised!r} has the code {code!r}, expected {self._code!r}"
        missing = [value for value in self._values if str(value) not in str(raised)]
        assert not missing, f"{raised!r} does not name {missing}"
        return True
