"""Kills: workers and parents are killed at random, and nothing is lost."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import time
from collections import Counter
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
    process,
    verify,
    victim,
    wait_for_commit,
)
from tests.soak.victim import KINDS
from tests.support.datasets import has_commit
from tests.support.marked import ROLLOUT, marked, worker_title

_WORKER_KILLS_A_RUN = 8
_YOUNG_KILLS, _READY_SECONDS = 2, 3.0
"""So many times in a row a worker may be killed before it is so old."""

_KINDS = ("any", None, "commit", None)
"""Before which changes on disk a parent is killed; None by the clock."""


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
    # By turns, so that a few kills too are of all kinds.
    kind = _KINDS[kills.kills % len(_KINDS)]
    change = rng.randint(1, reference.changes) if kind else 0
    with process(victim(note, change, arguments, kind=kind or "any")) as (running, mark):
        if kind:
            running.wait(timeout=RUN_SECONDS)
        else:
            _wait_for_moment(running, output, reference, rng.uniform(0, reference.seconds))
            running.send_signal(signal.SIGKILL)
            running.wait(timeout=RUN_SECONDS)
        check_no_orphans(mark)
        if running.returncode != -signal.SIGKILL:
            finish(running)
            return False
    # A kill by the clock may come just when the note is written.
    operation, _, path = note.read_text().partition(" ") if note.exists() else ("", "", "")
    kills.add(after_commit=has_commit(output), in_commit=operation in KINDS["commit"] or "info.json" in path)
    return True


def _wait_for_moment(running: subprocess.Popen[str], output: Path, reference: Reference, seconds: float) -> None:
    """Wait until a run is where the reference was after so many seconds, or has ended.

    What comes after the first commit is counted from this run's own, so that a slow start is no reason to be killed
    before it.
    """
    if seconds > reference.first_commit and not has_commit(output):
        wait_for_commit(running, output)
        seconds -= reference.first_commit
    _wait(running, seconds)


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
            young: Counter[str] = Counter()
            for _ in range(min(_WORKER_KILLS_A_RUN, count - kills.kills)):
                if not _kill_worker(running, mark, young, rng):
                    break
                kills.add(after_commit=has_commit(output), in_commit=False)
            finish(running)
            check_no_orphans(mark)
        check_same(output, reference)
    if kills.kills < count:
        raise SoakError(f"only {kills.kills} workers could be killed in {count} runs")
    return kills


def _kill_worker(running: subprocess.Popen[str], mark: str, young: Counter[str], rng: random.Random) -> bool:
    """Kill one worker after a moment; return whether there was one.

    A worker that dies three times before it is ready ends its run, as it should; so none is killed young too often.
    """
    until = time.monotonic() + rng.uniform(0, 0.25)
    while running.poll() is None:
        found = [one for one in map(_worker, marked(mark)) if one is not None]
        workers = [one for one in found if young[one.name] < _YOUNG_KILLS or one.age >= _READY_SECONDS]
        if workers and time.monotonic() >= until:
            chosen = rng.choice(sorted(workers, key=lambda one: one.name))
            young[chosen.name] = 0 if chosen.age >= _READY_SECONDS else young[chosen.name] + 1
            chosen.process.kill()
            return True
        time.sleep(0.005)
    return False


@dataclass(frozen=True, slots=True)
class _Worker:
    process: psutil.Process
    name: str
    age: float


def _worker(candidate: psutil.Process) -> _Worker | None:
    """Return a worker of a run; None for every other process."""
    title = worker_title(candidate)
    try:
        return None if title is None else _Worker(candidate, title.split()[0], time.time() - candidate.create_time())
    except psutil.NoSuchProcess:
        return None
