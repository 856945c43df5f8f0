"""Policies and environments of the sampler tests. Worker processes import this module, so it imports little."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from rollout_cli.envs.updates import EnvUpdate
from rollout_cli.samplers.processes.channel import _HEADER, _MARK
from tests.helpers.envs import FaultyEnv, leave_sign
from tests.helpers.policies import push


def act(observation: Any) -> Any:
    """A policy without state or info."""
    return push(observation)


def still(observation: Any) -> Any:
    return np.zeros(2, np.float32)


class ConstantPolicy:
    """Always does the same, and its info says what; parameters replace it."""

    def __init__(self, value: float) -> None:
        self.value = value

    def get_action(self, observation: Any) -> Any:
        return np.full(2, self.value, np.float32), {"value": self.value}

    def get_param_values(self) -> Any:
        return {"value": self.value}

    def set_param_values(self, params: Any) -> None:
        if params["value"] < 0:
            raise ValueError("no such value")
        self.value = params["value"]


class LargeEnv(FaultyEnv):
    """Observations of a megabyte; episodes with odd seeds have 20 steps, over the size that travels in one piece."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0, 255, (1 << 20,), np.uint8)
        self._left = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._left = 20 if (seed or 0) % 2 else 2
        return np.full(1 << 20, self._left, np.uint8), {}

    def step(self, action: Any) -> Any:
        self._left -= 1
        return np.full(1 << 20, self._left, np.uint8), 0.0, self._left == 0, False, {"left": self._left}


class TaskEnv(FaultyEnv):
    """Its reward is its task, to which updates may add."""

    task = 0.0

    def set_task(self, task: float) -> None:
        self.task = task

    def step(self, action: Any) -> Any:
        observation, _, *rest = super().step(action)
        return (observation, self.task, *rest)


class AddToTask(EnvUpdate):
    """Builds on the existing environment."""

    def __init__(self, amount: float) -> None:
        self.amount = amount

    def __call__(self, old_env: Any = None) -> Any:
        env: Any = super().__call__(old_env)
        env.unwrapped.task += self.amount
        return env


# -- values that do harm when they are unpickled or built -------------------------------------------------------------


def unloadable() -> Any:
    raise ValueError("no pickle today")


class Unloadable:
    """Can be pickled, but not unpickled."""

    def __reduce__(self) -> Any:
        return unloadable, ()

    def get_action(self, observation: Any) -> Any:
        raise NotImplementedError


def leave_at_once() -> Any:
    os._exit(9)


class DyingPolicy:
    """Ends the process as it is unpickled."""

    def __reduce__(self) -> Any:
        return os._exit, (9,)

    def get_action(self, observation: Any) -> Any:
        raise NotImplementedError


# -- harm in a step ----------------------------------------------------------------------------------------------------


class DoingEnv(FaultyEnv):
    """Does something in the third step of one episode, the first time that any process gets there.

    Args:
        do: What.
        signs: The folder of the sign.
        its_seed: The episode's seed.
    """

    def __init__(self, do: Callable[[], None], signs: Path, its_seed: int) -> None:
        super().__init__()
        self._do, self._folder, self._its_seed = do, str(signs), its_seed

    def step(self, action: Any) -> Any:
        result = super().step(action)
        if self._steps == 3 and self._seed == self._its_seed and leave_sign("done", self._folder, 1):
            self._do()
        return result


def write_to_sockets(data: bytes) -> None:
    """Write into every socket that the process has, as code does that writes to a descriptor that is not its own."""
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # It is gone, or is no socket.
            if str(entry.readlink()).startswith("socket:"):
                os.write(int(entry.name), data)


def wrong_bytes() -> None:
    write_to_sockets(b"hello world, this is no message")


def half_a_message() -> None:
    write_to_sockets(_HEADER.pack(_MARK, 1, 1000) + b"half of it")
    os._exit(1)


def whole_nonsense() -> None:
    write_to_sockets(_HEADER.pack(_MARK, 1, 24) + struct.pack("<Q", 8) + bytes(8) + b"nonsense")


def fork_and_die(note: Path) -> None:
    pid = os.fork()
    if pid == 0:
        signal.pause()
    note.write_text(str(pid))
    os.kill(os.getpid(), signal.SIGKILL)


class SleepingEnv(FaultyEnv):
    """Never returns from the first step of some episodes, and takes no notice of signals."""

    def step(self, action: Any) -> Any:
        if self._seed in self._fault.episodes and self._fault.is_due("step", self._seed):
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            time.sleep(3600)
        return super().step(action)


class CrawlingEnv(FaultyEnv):
    """Some episodes take ever more steps, none of which takes long."""

    def step(self, action: Any) -> Any:
        if self._seed in self._fault.episodes:
            time.sleep(0.01)
            self._steps = 0
        return super().step(action)


def descriptor(number: int) -> str:
    return str(Path(f"/proc/self/fd/{number}").readlink())


class TellingEnv(FaultyEnv):
    """Tells its surroundings in the info of `reset`, and prints."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        observation, _ = super().reset(seed=seed)
        os.write(1, b"past Python\n")
        sys.stdout.write("a line of an environment\n")
        found = {
            "chosen": os.environ.get("CHOSEN_BY_A_TEST", ""),
            "threads": os.environ.get("OMP_NUM_THREADS", ""),
            "folder": str(Path.cwd()),
            "argv": sys.argv[0],
            "stdin": descriptor(0),
            "same output": descriptor(1) == descriptor(2),
        }
        return observation, found
