"""Calling the command line inside this process."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from rollout_cli.cli.app import run


@dataclass(frozen=True, slots=True)
class Called:
    """How a call ended: its exit code, and what it printed to both streams."""

    code: int
    stdout: str
    stderr: str


class Caller:
    """Runs command lines; a test's fixture `rollout` is one."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: object, code: int | None = 0) -> Called:
        self._capsys.readouterr()
        ended = run([str(word) for word in words])
        printed = self._capsys.readouterr()
        called = Called(ended, printed.out, printed.err)
        assert code is None or code == ended, called
        return called
