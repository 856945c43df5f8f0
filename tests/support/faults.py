"""What user code may do to its process; FaultyEnv: an environment that does it in some episodes, chosen by seed."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.envs import ChainEnv


def _raise() -> None:
    raise ValueError("the simulator is broken")


def _unpicklable() -> None:
    class LocalError(Exception):
        def __reduce__(self) -> Any:
            raise TypeError("not to be pickled")

    raise LocalError("a local error")


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _segfault() -> None:
    ctypes.string_at(0)


def _recurse() -> None:
    _recurse()


def _hang() -> None:
    time.sleep(3600)


def _change_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)


def _change_globals() -> None:
    random.seed(1)
    np.random.seed(1)
    np.seterr(all="raise")
    sys.setrecursionlimit(200)
    os.environ.clear()


def _leave_child() -> None:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])


def _print() -> None:
    print("a line that a simulator prints", flush=True)  # noqa: T201  It is what the test is of.
    os.write(1, b"and one past Python\n")


def _memory() -> None:
    raise MemoryError


def _interrupt() -> None:
    raise KeyboardInterrupt


HARMS: dict[str, Callable[[], Any]] = {
    "raise": _raise,
    "unpicklable": _unpicklable,
    "sys.exit": lambda: sys.exit(3),
    "os._exit": lambda: os._exit(0),
    "kill": _kill,
    "segfault": _segfault,
    "abort": os.abort,
    "recurse": _recurse,
    "memory": _memory,
    "interrupt": _interrupt,
    "hang": _hang,
    "chdir": lambda: os.chdir("/"),
    "signals": _change_signals,
    "globals": _change_globals,
    "child": _leave_child,
    "print": _print,
    "close stdout": lambda: os.close(1),
}


class FaultyEnv(ChainEnv):
    """ChainEnv with a fault in the first step of one in `every` episodes.

    What is not given stands in the environment variables FAULTY_ENV_FAULT, FAULTY_ENV_EVERY and FAULTY_ENV_SIGNS.

    Args:
        fault: What happens, as `HARMS` has it; None for nothing.
        every: In which share of the episodes.
        signs: A folder where each of them leaves a file when it happens, and does not happen where there is one.
    """

    def __init__(self, fault: str | None = None, every: int | None = None, signs: str | None = None) -> None:
        super().__init__()
        self._fault = fault or os.environ.get("FAULTY_ENV_FAULT")
        self._every = every or int(os.environ.get("FAULTY_ENV_EVERY", "10"))
        folder = signs or os.environ.get("FAULTY_ENV_SIGNS")
        self._signs = None if folder is None else Path(folder)
        self._seed = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._seed = seed or 0
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._fault is not None and self._position == 0 and self._seed % self._every == 0 and self._is_first():
            HARMS[self._fault]()
        return super().step(action)

    def _is_first(self) -> bool:
        if self._signs is None:
            return True
        sign = self._signs / str(self._seed)
        if sign.exists():
            return False
        sign.touch()
        return True
