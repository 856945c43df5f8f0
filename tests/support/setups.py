"""Set-ups of workers that write down what happens, for tests: importable wherever a worker runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.envs import ChainEnv
from tests.support.policies import LinearPolicy


class Diary:
    """A file that processes append lines to."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def note(self, line: str) -> None:
        with self.path.open("a") as file:
            file.write(f"{os.getpid()} {line}\n")

    def lines(self) -> list[str]:
        """Return the lines without the process ids."""
        return [line.split(" ", 1)[1] for line in self.path.read_text().splitlines()] if self.path.exists() else []

    def by_process(self) -> dict[str, list[str]]:
        """Return each process's lines."""
        found: dict[str, list[str]] = {}
        for line in self.path.read_text().splitlines():
            process, text = line.split(" ", 1)
            found.setdefault(process, []).append(text)
        return found


class DiarySetup:
    """Notes when it is entered and left.

    Args:
        diary: Where.
        fails: `enter` or `leave`, where it raises.
    """

    def __init__(self, diary: Diary, fails: str = "") -> None:
        self.diary, self.fails = diary, fails

    @contextmanager
    def __call__(self) -> Iterator[None]:
        if self.fails == "enter":
            raise OSError("there is no device")
        self.diary.note("enter")
        try:
            yield
        finally:
            self.diary.note("leave")
        if self.fails == "leave":
            raise OSError("the device is stuck")


class DiaryPolicy(LinearPolicy):
    """Notes when it is unpickled."""

    def __init__(self, env_spec: Any, diary: Diary) -> None:
        super().__init__(env_spec)
        self.diary = diary

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.diary.note("policy")


class DiaryEnv(ChainEnv):
    """Notes when it is closed, and can fail in a step."""

    def __init__(self, diary: Diary, *, fails: bool = False) -> None:
        super().__init__("never")
        self.diary, self.fails = diary, fails

    def step(self, action: Any) -> Any:
        if self.fails:
            raise ValueError("the step is broken")
        return super().step(action)

    def close(self) -> None:
        self.diary.note("close")
