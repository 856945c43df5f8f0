"""Ways in which a worker dies, and environments that take them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.envs import ChainEnv

PROCESSES = pytest.mark.parametrize("backend", ["forkserver", "spawn", "ring"], indirect=True)
ONE_KIND = pytest.mark.parametrize("backend", ["forkserver"], indirect=True)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave_at_once() -> None:
    os._exit(7)


class OnceEnv(ChainEnv):
    """Does something the first time that an episode gets to its sixth step; it leaves a file as a sign of that.

    Args:
        do: What.
        sign: The file.
    """

    def __init__(self, do: Callable[[], None], sign: Path) -> None:
        super().__init__()
        self._do, self._sign = do, sign

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._position == 5 and self._is_first():
            self._do()
        return super().step(action)

    def _is_first(self) -> bool:
        # Of several workers that get so far at the same moment, one makes the file.
        try:
            self._sign.touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


class ExitingEnv(ChainEnv):
    """Ends its process as a crash in native code does, with an exit code."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        os._exit(7)
