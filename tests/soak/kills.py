"""Kills: workers and parents are killed at random, and nothing is lost."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.soak.errors import SoakError
from tests.soak.runs import (
    RUN_SECONDS,
    Reference,
    Setting,
    check_no_orphans,
    check_same,
    finish,
    has_commit,
    process,
    verify,
    victim,
)
from tests.support.marked import ROLLOUT, marked

_WORKER_KILLS_A_RUN = 8
_IN_A_COMMIT = {"fsync", "rename"}


@dataclass(slots=True)
class Kills:
    """What was killed so far, and when.

    Attributes:
        kills: How many there were.
        after_commit: How many of them came when something was committed.
        in_commit: How many of them came between the first and the last change of a commit.
    """

    kills: int = 0
    after_commit: int = 0
    in_commit: int = 0

    def add(self, *, after_commit: bool, in_commit: bool) -> None:
        """Count one."""
        self.kills += 1
        self.after_commit += after_commit
        self.in_commit += in_commit

    def check(self) -> None:
        """Check that the kills were where they hurt: a campaign that killed idle processes proves nothing."""
        if self.after_commit * 2 < self.kills:
            raise SoakError(f"only {self.after_commit} of {self.kills} kills came after a commit")
        if self.in_commit * 10 < self.kills:
            raise SoakError(f"only {self.in_commit} of {self.kills} kills came inside a commit")


def kill_parents(setting: Setting, reference: Reference, folder: Path, count: int, rng: random.Random) -> Kills:
    """Kill the parent of a run, and of resumed runs, `count` times; after each, resume to the end and compare."""
    kills = Kills()
    while kills.kills < count:
        output = folder / "killed"
        shutil.rmtree(output, ignore_errors=True)
        # A run may be killed more than once before it is allowed to end.
        for attempt in range(rng.choice([1, 1, 2, 3])):
            more = ["--resume"] if attempt else []
            if kills.kills < count and not _kill_parent(setting.to(output, *more), output, reference, kills, rng):
                break
            if (output / "meta" / "info.json").exists():
                verify(output)
        with process([ROLLOUT, *setting.to(output, "--resume")]) as (running, mark):
            finish(running)
            check_no_orphans(mark)
        check_same(output, reference)
    return kills


def _kill_parent(arguments: list[str], output: Path, reference: Reference, kills: Kills, rng: random.Random) -> bool:
    """Start a run and kill it; return whether it was still running."""
    note = output.with_name("note")
    note.unlink(missing_ok=True)
    by_change = rng.random() < 0.5
    change = rng.randint(1, reference.changes) if by_change else 0
    with process(victim(note, change, arguments)) as (running, mark):
        if by_change:
            running.wait(timeout=RUN_SECONDS)
        else:
            _wait(running, rng.uniform(0, reference.seconds))
            running.send_signal(signal.SIGKILL)
            running.wait(timeout=RUN_SECONDS)
        check_no_orphans(mark)
        if running.returncode != -signal.SIGKILL:
            finish(running)
            return False
    # A kill by the clock may come just when the note is written.
    operation, _, path = note.read_text().partition(" ") if note.exists() else ("", "", "")
    kills.add(after_commit=has_commit(output), in_commit=operation in _IN_A_COMMIT or "info.json" in path)
    return True


def _wait(running: subprocess.Popen[str], seconds: float) -> None:
    try:
        running.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return


def kill_workers(setting: Setting, reference: Reference, folder: Path, count: int, rng: random.Random) -> Kills:
    """Kill workers of runs, `count` in all; each run must end by itself as if nothing had happened."""
    kills = Kills()
    for _ in range(count):  # Each run has a few.
        if kills.kills == count:
            break
        output = folder / "killed"
        shutil.rmtree(output, ignore_errors=True)
        arguments = setting.to(output, "--max-worker-restarts", str(10 * _WORKER_KILLS_A_RUN))
        with process([ROLLOUT, *arguments]) as (running, mark):
            for _ in range(min(_WORKER_KILLS_A_RUN, count - kills.kills)):
                if not _kill_worker(running, mark, rng):
                    break
                kills.add(after_commit=has_commit(output), in_commit=False)
            finish(running)
            check_no_orphans(mark)
        check_same(output, reference)
    if kills.kills < count:
        raise SoakError(f"only {kills.kills} workers could be killed in {count} runs")
    return kills


def _kill_worker(running: subprocess.Popen[str], mark: str, rng: random.Random) -> bool:
    """Kill one worker after a moment; return whether there was one."""
    until = time.monotonic() + rng.uniform(0, 0.25)
    while running.poll() is None:
        workers = [one for one in marked(mark) if _is_worker(one)]
        if workers and time.monotonic() >= until:
            rng.choice(sorted(workers, key=lambda one: one.pid)).kill()
            return True
        time.sleep(0.005)
    return False


def _is_worker(candidate: psutil.Process) -> bool:
    try:
        return " ".join(candidate.cmdline()).startswith("rollout-worker[")
    except psutil.NoSuchProcess:
        return False
