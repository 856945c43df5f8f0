"""What tests of the command line share: running it inside the test, or as the installed command."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from rollout_cli.cli.app import run

ROOT = Path(__file__).parents[2]
COMMAND = Path(sys.executable).parent / "rollout"


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    code: int
    stdout: str
    stderr: str


@pytest.fixture(autouse=True)
def plain_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each test has a working folder of its own and none of the caller's variables."""
    for name in [name for name in os.environ if name.startswith("ROLLOUT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def rollout(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run a command line in this process."""

    def call(*arguments: str) -> Ran:
        capsys.readouterr()
        code = run(list(arguments))
        shown = capsys.readouterr()
        return Ran(code, shown.out, shown.err)

    return call


def run_command(*arguments: str, cwd: Path | None = None, timeout: float = 100) -> Ran:
    """Run the installed command in a process of its own."""
    return run_process([str(COMMAND), *arguments], cwd=cwd, timeout=timeout)


def run_process(words: Sequence[str], *, cwd: Path | None = None, timeout: float = 100) -> Ran:
    """Run any program."""
    ran = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=timeout, check=False)
    return Ran(ran.returncode, ran.stdout, ran.stderr)
