"""What policies and environments print is no part of a command's results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import run_command

LOUD = """
import atexit, ctypes, os, subprocess, sys
from tests.support.envs import ChainEnv

print("at import")
atexit.register(print, "at exit")
kept = sys.stdout


class LoudEnv(ChainEnv):
    def reset(self, **options):
        print("by python")
        kept.write("by a stream that was kept\\n")
        os.write(1, b"by the system\\n")
        ctypes.CDLL(None).puts(b"by a library")
        subprocess.run(["echo", "by a child"], check=True)
        return super().reset(**options)


def policy(observation):
    return 1
"""
WORDS = {
    "at import",
    "at exit",
    "by python",
    "by a stream that was kept",
    "by the system",
    "by a library",
    "by a child",
}
LOCAL = ["--sampler", "local", "-w", "1"]


@pytest.fixture
def collect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a command that runs a loud environment."""
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[2]}")
    (tmp_path / "loud.py").write_text(LOUD)
    return ["collect", "--episodes", "3", "-e", "loud:LoudEnv", "-p", "loud:policy", "--seed", "5", "-o", "out"]


@pytest.mark.parametrize("workers", [LOCAL, ["-w", "2"], ["-w", "1", "--start-method", "spawn"]])
def test_stdout_has_one_document_and_nothing_else(collect: list[str], workers: list[str]) -> None:
    """With `--json`; what user code printed is on stderr, by whatever way it came."""
    ran = run_command(*collect, *workers, "--json")
    assert 0 == ran.code, ran.stderr
    assert 3 == json.loads(ran.stdout)["episodes"]
    words = WORDS if workers == LOCAL else WORDS - {"at exit", "by a library"}  # Worker processes end at once.
    # Words, not lines: unbuffered, Python writes a line and its end apart, and two workers' may come in between.
    assert set() == {word for word in words if word not in ran.stderr}


def test_stdout_has_one_path(collect: list[str], tmp_path: Path) -> None:
    """With `--quiet`, for the next command of a pipe."""
    ran = run_command(*collect, *LOCAL, "-q")
    assert (0, f"{tmp_path / 'out'}\n") == (ran.code, ran.stdout), ran.stderr


def test_an_error_is_one_document(collect: list[str]) -> None:
    """Also where the run fails."""
    ran = run_command(*collect, *LOCAL, "--json", "--invalid-action", "error", "--episode-step-guard", "1")
    assert 3 == ran.code, ran.stderr
    assert "the episode has no end" in json.loads(ran.stdout)["error"]["message"]


@pytest.mark.parametrize("command", [["replay", "out", "--all"], ["policy", "pack", "loud:policy", "-o", "p.pkl"]])
def test_other_commands_that_run_user_code(collect: list[str], command: list[str]) -> None:
    """They keep to the same."""
    assert 0 == run_command(*collect, *LOCAL, "-q").code
    ran = run_command(*command, "--json")
    assert 0 == ran.code, ran.stderr
    assert isinstance(json.loads(ran.stdout), dict)
    assert "at import" in ran.stderr
