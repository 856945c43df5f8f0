"""What goes wrong in a real run, through the installed command: a clear error, its exit code, and nothing left."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

import rollout_cli
from tests.cli.conftest import COMMAND, run_command

USER_CODE = '''
import os, signal, time
import gymnasium, numpy as np
from gymnasium import spaces

class RaisingPolicy:
    def get_action(self, observation):
        raise ValueError("no idea what to do")

class Raising(gymnasium.Env):
    observation_space = spaces.Discrete(5)
    action_space = spaces.Discrete(2)

    def __init__(self, where="step"):
        self.where = where
        self.t = 0

    def reset(self, *, seed=None, options=None):
        if self.where == "reset":
            raise RuntimeError("cannot reset")
        self.t = 0
        return 0, {}

    def step(self, action):
        self.t += 1
        if self.where == "step" and self.t == 3:
            raise RuntimeError("cannot step")
        if self.where == "die" and self.t == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.t % 5, 1.0, self.t == 4, False, {}

class Slow(Raising):
    """Tells when it steps, and takes its time."""

    def step(self, action):
        time.sleep(0.01)
        open(f"stepped-{os.getpid()}", "w").close()
        return super().step(action)
'''

WORKERS = [["--workers", "2"], ["--sampler", "local", "--workers", "1"]]


@pytest.fixture(autouse=True)
def user_code(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(USER_CODE)
    (tmp_path / "corrupt.pkl").write_bytes(b"no pickle")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("kept")


LOADING = [
    (["--env", "NoSuchEnv-v0"], 3, "NoSuchEnv"),
    (["--env", "mine:Nothing"], 3, "Nothing"),
    (["--env", "mine:Raising", "--env-kwargs", "size=3"], 3, "size"),
    (["--env", "none.json"], 3, "none.json"),
    (["--policy", "corrupt.pkl"], 3, "corrupt.pkl"),
    (["--policy", "none.pkl"], 3, "none.pkl"),
    (["--policy", "no_such_module:Policy"], 3, "no_such_module"),
    (["--policy", "nonsense"], 3, "nonsense"),
    (["--output", "full"], 5, "full"),
    (["--output", "full", "--overwrite"], 5, "full"),
    (["--output", "mine.py"], 5, "mine.py"),
    (["--worker-class", "mine:Nothing"], 2, "Nothing"),
    (["--worker-class", "rollout_cli:DefaultWorker", "--worker-args", "colour=red"], 3, "colour"),
    (["--worker-args", "seed=1"], 2, "--worker-args cannot give seed"),
]


@pytest.mark.parametrize(("arguments", "code", "part"), LOADING)
def test_what_cannot_be_used(tmp_path: Path, arguments: list[str], code: int, part: str) -> None:
    """It ends with its code and a message that names it; no dataset is begun, and nothing of the user's is touched."""
    output = [] if "--output" in arguments else ["--output", "out"]
    ran = run_command("collect", "--timesteps", "10", "-w", "2", "-q", *output, *arguments, cwd=tmp_path)
    assert (ran.code, ran.stdout) == (code, ""), ran.stderr
    assert part in ran.stderr.splitlines()[0]
    assert ran.stderr.startswith("rollout: error: ")
    assert not (tmp_path / "out").exists()
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["file"]


RUNNING = [
    (["--policy", "mine:RaisingPolicy"], 3, "no idea what to do"),
    (["--env", "mine:Raising"], 3, "cannot step"),
    (["--env", "mine:Raising", "--env-kwargs", "where=reset"], 3, "cannot reset"),
]


@pytest.mark.parametrize("workers", WORKERS, ids=["processes", "local"])
@pytest.mark.parametrize(("arguments", "code", "part"), RUNNING)
def test_user_code_that_raises(tmp_path: Path, workers: list[str], arguments: list[str], code: int, part: str) -> None:
    """The message names it, and the user's own traceback is below, the last line of which is the error."""
    ran = run_command("collect", "--timesteps", "10", "-q", "-o", "out", *workers, *arguments, cwd=tmp_path)
    assert (ran.code, ran.stdout) == (code, ""), ran.stderr
    first, *_, last = ran.stderr.strip().splitlines()
    assert first.startswith("rollout: error: ")
    assert part in first
    assert part in last
    assert 'mine.py", line' in ran.stderr
    assert ran.stderr.count("Traceback") == 1


def test_a_worker_that_is_killed(tmp_path: Path) -> None:
    """An episode that kills its worker again and again ends the run with 4, after a warning of each restart."""
    options = ["--env", "mine:Raising", "--env-kwargs", "where=die", "-w", "2", "-q", "-o", "out"]
    ran = run_command("collect", "--timesteps", "100", *options, cwd=tmp_path, timeout=60)
    assert (ran.code, ran.stdout) == (4, ""), ran.stderr
    warnings, error = ran.stderr.split("rollout: error: ")
    assert all(line.startswith("warning: worker ") for line in warnings.splitlines())
    assert error.startswith("episode ")
    assert "SIGKILL" in ran.stderr.splitlines()[0]


def test_errors_as_json(tmp_path: Path) -> None:
    """--json gives the same as a document, with the traceback as its details."""
    ran = run_command(
        "collect", "--timesteps", "9", "--policy", "mine:RaisingPolicy", "-o", "out", "--json", cwd=tmp_path
    )
    error = json.loads(ran.stdout)["error"]
    assert (ran.code, ran.stderr, error["exit_code"]) == (3, "", 3)
    assert error["class"] == "PolicyError"
    assert "mine.py" in error["details"]


@pytest.mark.parametrize("workers", WORKERS, ids=["processes", "local"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_run_politely(tmp_path: Path, workers: list[str], number: signal.Signals, code: int) -> None:
    """What is finished is kept as a readable dataset, the message counts it, and no process is left."""
    arguments = ["collect", "--timesteps", "1000000", "--env", "mine:Slow", "--env-kwargs", "where=none", "-o", "out"]
    process = subprocess.Popen(
        [COMMAND, *arguments, *workers], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_for_info(tmp_path, process)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, stdout) == (code, ""), stderr
    assert f"rollout: error: the run was ended by {number.name}: " in stderr
    dataset = rollout_cli.load(tmp_path / "out")
    assert dataset.info["status"] == "interrupted"
    assert f"{len(dataset):,} finished episodes" in stderr
    assert len(dataset) > 0
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []


def wait_for_info(folder: Path, process: subprocess.Popen[str]) -> None:
    """Wait until the dataset is begun and a few episodes can be there."""
    deadline = time.monotonic() + 60
    steps: set[tuple[str, int]] = set()
    while time.monotonic() < deadline and process.poll() is None:
        # The marks' times tell steps apart. An episode has four, so twenty make at least two of one worker.
        steps |= {(mark.name, mark.stat().st_mtime_ns) for mark in folder.glob("stepped-*")}
        if (folder / "out/meta/info.json").exists() and len(steps) >= 20:
            return
        time.sleep(0.01)
    raise AssertionError(f"the run has not begun: {process.communicate(timeout=10)}")
