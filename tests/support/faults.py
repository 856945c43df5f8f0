"""FaultyEnv: an environment in which some episodes, chosen by their seeds, come to grief."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.envs import ChainEnv


def _raise() -> None:
    raise ValueError("FaultyEnv is broken")


FAULTS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "raise": _raise,
    "segfault": lambda: ctypes.string_at(0),
    "exit": lambda: os._exit(7),
    "hang": lambda: time.sleep(600),
}


class FaultyEnv(ChainEnv):
    """ChainEnv with a fault in the first step of one in `every` episodes.

    What is not given stands in the environment variables FAULTY_ENV_FAULT, FAULTY_ENV_EVERY and FAULTY_ENV_SIGNS.

    Args:
        fault: What happens.
        every: In which share of the episodes.
        signs: A folder where each of them leaves a file when it happens, and does not happen where there is one.
    """

    def __init__(self, fault: str | None = None, every: int | None = None, signs: str | None = None) -> None:
        super().__init__()
        self._fault = FAULTS[fault or os.environ.get("FAULTY_ENV_FAULT", "none")]
        self._every = every or int(os.environ.get("FAULTY_ENV_EVERY", "10"))
        folder = signs or os.environ.get("FAULTY_ENV_SIGNS")
        self._signs = None if folder is None else Path(folder)
        self._seed = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._seed = seed or 0
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._position == 0 and self._seed % self._every == 0 and self._is_first():
            self._fault()
        return super().step(action)

    def _is_first(self) -> bool:
        if self._signs is None:
            return True
        sign = self._signs / str(self._seed)
        if sign.exists():
            return False
        sign.touch()
        return True
