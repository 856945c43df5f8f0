"""Running one row of the fault table."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rollout_cli.cli.app import run
from tests.support.marked import ROLLOUT, environment, marked, new_mark, outlive

ENV = "tests.faults.subjects:Faulty"
POLICY = "tests.faults.subjects:policy"
ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 60
"""After so long a run has hung."""

Meddle = Callable[[subprocess.Popen[str], Path], None]
"""What is done to a run from outside; given its process and its folder."""


@dataclass(frozen=True, slots=True)
class Case:
    """One row.

    Attributes:
        name: What is injected, and when.
        code: The expected exit code.
        says: A regular expression that stderr must match; empty where stderr must not have an error.
        env: Keyword arguments of the environment.
        policy: What, when and how often the policy fails, with commas between.
        options: Further options of the command.
        within: The seconds that the run may take.
        verifies: What the exit code of `verify` may be on what is left; None where nothing is left, as it may be where
            nothing had been finished.
        meddle: What is done to the run from outside.
        prepare: What is done in the folder before.
        command: The command and how much it collects.
    """

    name: str
    code: int
    says: str = ""
    env: Mapping[str, object] = field(default_factory=dict)
    policy: str = ""
    options: tuple[str, ...] = ()
    within: float = 20.0
    verifies: tuple[int | None, ...] = (0, None)
    meddle: Meddle | None = None
    prepare: Callable[[Path], None] | None = None
    command: tuple[str, ...] = ("collect", "--episodes", "40")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run did."""

    code: int
    stdout: str
    stderr: str
    seconds: float
    orphans: list[str]
    verified: int | None


def run_case(case: Case, folder: Path) -> Outcome:
    """Run a row in an empty folder."""
    if case.prepare is not None:
        case.prepare(folder)
    output = folder / "out"
    kwargs = [word for key, value in case.env.items() for word in ("--env-kwargs", f"{key}={_toml(value)}")]
    words = [ROLLOUT, *case.command, "--env", ENV, *kwargs, "--seed", "5", "--workers", "2", "--output", str(output)]
    if case.policy:
        words += ["--policy", POLICY]
    mark = new_mark()
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    variables = {**environment(mark), "FAULTY_POLICY": case.policy, "PYTHONPATH": path}
    began = time.monotonic()
    running = subprocess.Popen(
        [*words, *case.options],
        cwd=folder,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        if case.meddle is not None:
            case.meddle(running, folder)
        stdout, stderr = running.communicate(timeout=LIMIT_SECONDS)
        seconds = time.monotonic() - began
        orphans = [f"{one.pid} {one.name()}" for one in outlive(mark, seconds=2)]
    finally:
        for left in marked(mark):
            left.send_signal(signal.SIGKILL)
        running.kill()
        running.communicate()
    return Outcome(running.returncode, stdout, stderr, seconds, orphans, _verified(output))


def _toml(value: object) -> str:
    return json.dumps(value)


def _verified(output: Path) -> int | None:
    if not output.exists():
        return None
    return run(["verify", str(output)])  # Here, for the process is not what the table is of.


def check(case: Case, outcome: Outcome) -> None:
    """Check what came of a row."""
    told = f"{outcome.stdout}\n{outcome.stderr}"
    assert case.code == outcome.code, told
    if case.says:
        assert re.search(case.says, outcome.stderr), told
    if case.code == 0:
        assert "rollout: error" not in outcome.stderr, told
    elif case.code > 0:
        assert 1 == len(re.findall(r"^rollout: error: ", outcome.stderr, re.MULTILINE)), told
    assert outcome.seconds < case.within, told
    assert [] == outcome.orphans
    assert outcome.verified in ((0,) if case.code == 0 else case.verifies), told
