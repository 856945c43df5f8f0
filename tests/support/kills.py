"""Runs that are killed in the middle, as `kill -9` does it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SECONDS = 60.0


def start(words: Sequence[str]) -> subprocess.Popen[str]:
    """Start `rollout` with the repository as its working folder."""
    command = [sys.executable, "-m", "rollout_cli", *words]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(words: Sequence[str]) -> str:
    """Run `rollout` to its end, which must be a good one; return what it printed."""
    with start(words) as run:
        printed, _ = run.communicate(timeout=SECONDS)
    assert run.returncode == 0, printed
    return printed


def kill_after_commits(words: Sequence[str], output: Path, *, more_than: int = 0) -> int:
    """Run `rollout` and kill it, and nothing that it started, once more than so many episodes are committed.

    Returns how many were.
    """
    with start(words) as run:
        wait_for_commits(run, output, more_than=more_than)
        run.send_signal(signal.SIGKILL)
        run.wait(timeout=SECONDS)
        assert run.stdout is not None
        run.stdout.close()
    info = committed(output)
    assert info["status"] == "collecting"
    return int(info["episodes"])


def wait_for_commits(run: subprocess.Popen[str], output: Path, *, more_than: int = 0) -> None:
    """Wait until more than so many episodes are committed; with -1, until the dataset is begun. The run must live."""
    deadline = time.monotonic() + SECONDS
    while committed(output).get("episodes", -1) <= more_than:
        assert run.poll() is None, run.communicate()[0]
        assert time.monotonic() < deadline, "nothing was committed"
        time.sleep(0.002)


def committed(output: Path) -> dict[str, Any]:
    """Return the dataset's info.json; empty where there is none yet."""
    try:
        return dict(json.loads((output / "meta" / "info.json").read_text()))
    except FileNotFoundError:
        return {}
