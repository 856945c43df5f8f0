"""Kills: workers and parents are killed at random, and nothing is lost."""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.helpers.datasets import assert_same_data, has_commit, info_of
from tests.helpers.processes import ROOT, Running, rollout, running
from tests.helpers.victim import KINDS

KILLS_BY_TURNS = ("any", "timed", "commit", "late")
"""At any change on disk, at any time, inside a commit, and after the first commit: of all kinds, however few kills."""

WORKER_KILLS_A_RUN = 8
YOUNG_KILLS, READY_SECONDS = 2, 3.0
"""So many times in a row a worker may be killed before it is so old; three deaths before it is ready end a run."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One command that is run again and again.

    Attributes:
        name: What it is called in reports.
        arguments: Its arguments without the output folder.
    """

    name: str
    arguments: tuple[str, ...]

    def to(self, output: Path, *more: str) -> list[str]:
        """Return the words after `rollout` that write to `output`."""
        return [*self.arguments, "--output", str(output), "--quiet", *more]


_OFTEN = ("--seed", "7", "--flush-every", "0.05", "--segment-bytes", str(256 << 10), "--workers", "2")
_AMOUNTS = {"collect": ("--timesteps", "150000"), "exact": ("--episodes-per-worker", "3500")}
_WORKERS = {"DefaultWorker": (), "VecWorker": ("--envs-per-worker", "4")}
SETTINGS = [
    Setting(f"{command}, {worker}", (command, *amount, *width, *_OFTEN))
    for command, amount in _AMOUNTS.items()
    for worker, width in _WORKERS.items()
]


@dataclass(slots=True)
class Reference:
    """An uninterrupted run: its dataset, how many changes it made on disk, and how long it took, in seconds."""

    dataset: Path
    changes: int
    seconds: float


@dataclass(slots=True)
class Kills:
    """How many there were; how many of them came when something was committed, and how many inside a commit."""

    count: int = 0
    after_commit: int = 0
    in_commit: int = 0

    def check(self) -> None:
        """Check that the kills were where they hurt: to kill idle processes proves nothing.

        `KILLS_BY_TURNS` leads to these shares by itself, however few kills there are and whatever runs beside
        them.
        """
        assert self.after_commit * 5 >= self.count, (
            f"only {self.after_commit} of {self.count} came after a commit"
        )
        assert self.in_commit * 5 >= self.count, f"only {self.in_commit} of {self.count} came inside a commit"


def kill_all(setting: Setting, folder: Path, count: int, rng: random.Random) -> str:
    """Kill workers and parents of runs of one setting, `count` of each; return how it went."""
    folder.mkdir()
    reference = _refer(setting, folder)
    workers = _kill_workers(setting, reference, folder, count, rng)
    parents = _kill_parents(setting, reference, folder, count, rng)
    parents.check()
    return (
        f"{setting.name}: {workers.count} workers killed, {workers.after_commit} of them after a commit; "
        f"{parents.count} parents, {parents.after_commit} after a commit, {parents.in_commit} inside one"
    )


def _victim(note: Path, change: int, kind: str) -> list[str]:
    return [sys.executable, "-m", "tests.helpers.victim", str(note), str(change), kind]


def _refer(setting: Setting, folder: Path) -> Reference:
    output, note = folder / "reference", folder / "changes"
    began = time.monotonic()
    with running(setting.to(output), cwd=ROOT, program=_victim(note, 0, "any")) as run:
        _check_ended(run)
    seconds = time.monotonic() - began
    rollout("verify", output)
    return Reference(output, int(note.read_text()), seconds)


def _check_ended(run: Running) -> None:
    ran = run.end()
    assert 0 == ran.code, ran.said
    assert () == ran.left, ran.said


def _check_same(output: Path, reference: Reference) -> None:
    rollout("verify", output)
    assert_same_data(reference.dataset, output)
    assert "complete" == info_of(output)["status"]


def _kill_parents(
    setting: Setting, reference: Reference, folder: Path, count: int, rng: random.Random
) -> Kills:
    """Kill the parent of a run, and of resumed runs, `count` times; after each, resume to the end and compare."""
    kills, output = Kills(), folder / "killed"
    while kills.count < count:
        shutil.rmtree(output, ignore_errors=True)
        # A run may be killed more than once before it may end.
        for attempt in range(rng.choice([1, 1, 2, 3])):
            more = ["--resume"] if attempt else []
            if kills.count < count and not _kill_parent(
                setting.to(output, *more), output, reference, kills, rng
            ):
                break
            if has_commit(output):
                rollout("verify", output)
        with running(setting.to(output, "--resume")) as run:
            _check_ended(run)
        _check_same(output, reference)
    return kills


def _kill_parent(
    words: list[str], output: Path, reference: Reference, kills: Kills, rng: random.Random
) -> bool:
    """Start a run and kill it; return whether it was still running."""
    note = output.with_name("note")
    note.unlink(missing_ok=True)
    kind = KILLS_BY_TURNS[kills.count % len(KILLS_BY_TURNS)]
    is_timed = kind in ("timed", "late")
    change = 0 if is_timed else rng.randint(1, reference.changes)
    with running(words, cwd=ROOT, program=_victim(note, change, "any" if is_timed else kind)) as run:
        if is_timed:
            if kind == "late":
                _wait(run.process, 10 * reference.seconds, lambda: has_commit(output))
            _wait(run.process, rng.uniform(0, reference.seconds / (4 if kind == "late" else 1)))
            run.process.send_signal(signal.SIGKILL)
        ran = run.end()
    assert ran.code in (0, -signal.SIGKILL), ran.said
    assert () == ran.left, ran.said
    if ran.code == 0:
        return False
    operation = note.read_text().partition(" ")[0] if note.exists() else ""
    kills.count += 1
    kills.after_commit += has_commit(output)
    kills.in_commit += operation in KINDS["commit"]
    return True


def _wait(
    process: subprocess.Popen[bytes], seconds: float, until: Callable[[], bool] = lambda: False
) -> None:
    """Wait so long, or until it ends, or until the moment comes."""
    deadline = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < deadline and not until():
        time.sleep(0.005)


def _kill_workers(
    setting: Setting, reference: Reference, folder: Path, count: int, rng: random.Random
) -> Kills:
    """Kill workers of runs, `count` in all; each run must end by itself as if nothing had happened."""
    kills, output = Kills(), folder / "killed"
    for _ in range(count):
        if kills.count == count:
            break
        shutil.rmtree(output, ignore_errors=True)
        with running(setting.to(output, "--max-worker-restarts", str(10 * WORKER_KILLS_A_RUN))) as run:
            young: dict[str, int] = {}
            for _ in range(min(WORKER_KILLS_A_RUN, count - kills.count)):
                if not _kill_worker(run, young, rng):
                    break
                kills.count += 1
                kills.after_commit += has_commit(output)
            _check_ended(run)
        _check_same(output, reference)
    assert count == kills.count, f"only {kills.count} workers could be killed in {count} runs"
    return kills


def _kill_worker(run: Running, young: dict[str, int], rng: random.Random) -> bool:
    """Kill one worker after a moment; return whether there was one."""
    until = time.monotonic() + rng.uniform(0, 0.25)
    while run.process.poll() is None:
        found = {one: name_and_age for one in run.workers() if (name_and_age := _name_and_age(one))}
        known = [
            one
            for one, (name, age) in found.items()
            if young.get(name, 0) < YOUNG_KILLS or age >= READY_SECONDS
        ]
        if known and time.monotonic() >= until:
            chosen = rng.choice(sorted(known, key=found.__getitem__))
            name, age = found[chosen]
            with contextlib.suppress(psutil.NoSuchProcess):  # It may just have ended by itself.
                chosen.kill()
                young[name] = 0 if age >= READY_SECONDS else young.get(name, 0) + 1
                return True
        time.sleep(0.005)
    return False


def _name_and_age(process: psutil.Process) -> tuple[str, float] | None:
    """Return the first word of a worker's title, and its seconds; None once it has ended."""
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline()).partition(" ")[0], time.time() - process.create_time()
    return None
