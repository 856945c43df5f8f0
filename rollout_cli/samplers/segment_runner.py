"""SegmentRunner: where segments are written, so that episodes need not cross the driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

Result = TypeVar("Result")


class SegmentRunner(Protocol):
    """Calls functions for the driver, in the process that lies best."""

    def run(self, function: Callable[..., Result], *args: Any, needs_folder: bool = True) -> Result:
        """Return what the function returns.

        Args:
            function: May run again where its process is lost.
            args: Its arguments.
            needs_folder: Whether it reads or writes a folder of this machine.

        Raises:
            BaseException: Whatever the function raises.
        """


class LocalSegmentRunner:
    """Calls functions in this process."""

    def run(
        self,
        function: Callable[..., Result],
        *args: Any,
        needs_folder: bool = True,  # noqa: ARG002
    ) -> Result:
        return function(*args)
