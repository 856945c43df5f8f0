"""Runs of the installed command that are killed, and what must hold of what they leave."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rollout_cli.dataset.verification import verify as verification
from tests.soak.errors import SoakError
from tests.support.datasets import has_commit
from tests.support.marked import environment, marked, new_mark, outlive
from tests.support.runs import data_hashes

RUN_SECONDS = 120
ORPHAN_SECONDS = 2.0
"""How long a worker may outlive its parent."""

_DIFFERING = {"worker", "wall_time_s"}
"""Columns of `meta/episodes` that two runs of one seed need not share."""


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


_OFTEN = ("--seed", "7", "--flush-every", "0.05", "--shard-bytes", str(256 << 10), "--workers", "2")
_AMOUNTS = {"collect": ("--timesteps", "150000"), "exact": ("--episodes-per-worker", "3500")}
_WORKERS = {"DefaultWorker": (), "VecWorker": ("--envs-per-worker", "4")}

SETTINGS = [
    Setting(f"{command}, {worker}", (command, *amount, *width, *_OFTEN))
    for command, amount in _AMOUNTS.items()
    for worker, width in _WORKERS.items()
]


@dataclass(slots=True)
class Reference:
    """An uninterrupted run.

    Attributes:
        data: The hash of each file in `data/`, by its path there.
        episodes: What `meta/episodes` says that does not depend on who ran an episode.
        changes: How many changes the run made on disk.
        seconds: How long it took.
        first_commit: The seconds until its first commit.
    """

    data: dict[str, str]
    episodes: pa.Table
    changes: int
    seconds: float
    first_commit: float


def refer(setting: Setting, folder: Path) -> Reference:
    """Run to the end."""
    output, note = folder / "reference", folder / "changes"
    began = time.monotonic()
    with process(victim(note, 0, setting.to(output))) as (running, _):
        wait_for_commit(running, output)
        first_commit = time.monotonic() - began
        finish(running)
    seconds = time.monotonic() - began
    verify(output)
    return Reference(data_hashes(output), episode_facts(output), int(note.read_text()), seconds, first_commit)


def victim(note: Path, change: int, arguments: Sequence[str], *, kind: str = "any") -> list[str]:
    """Return the words that run the command until it kills itself before a change on disk; with 0 it lives.

    Of the `kind` "commit" it is the first change of a commit from that one on.
    """
    return [sys.executable, "-m", "tests.soak.victim", str(note), str(change), kind, *arguments]


@contextmanager
def process(words: Sequence[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a process; give it and the mark that all of its offspring bear. Whatever is left is killed at the end."""
    mark = new_mark()
    running = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(mark))
    try:
        yield running, mark
    finally:
        running.kill()
        running.communicate()
        for left in marked(mark):
            left.kill()


def finish(running: subprocess.Popen[str], expected: int = 0) -> None:
    """Wait for the end of a process, and check its exit code."""
    stdout, stderr = running.communicate(timeout=RUN_SECONDS)
    if running.returncode != expected:
        raise SoakError(f"exit code {running.returncode}, expected {expected}: {running.args!r}\n{stdout}{stderr}")


def verify(output: Path) -> None:
    """Check a dataset as the command does that is there for it."""
    if faults := verification.verify(output).faults:
        raise SoakError(f"{output} does not verify: {[str(fault) for fault in faults[:5]]}")


def check_no_orphans(mark: str) -> None:
    """Check that what a process started ends soon after it."""
    if left := outlive(mark, ORPHAN_SECONDS):
        raise SoakError(f"these outlived their parent: {[(one.pid, one.name()) for one in left]}")


def episode_facts(output: Path) -> pa.Table:
    """Return the columns of `meta/episodes` that depend on the episodes alone."""
    files = sorted((output / "meta" / "episodes").rglob("*.parquet"))
    table = pa.concat_tables([pq.read_table(file) for file in files])
    return table.select([name for name in table.column_names if name not in _DIFFERING])


def wait_for_commit(running: subprocess.Popen[str], output: Path) -> None:
    """Wait until a run has committed something, or has ended."""
    deadline = time.monotonic() + RUN_SECONDS
    while not has_commit(output) and running.poll() is None:
        if time.monotonic() > deadline:
            raise SoakError(f"nothing was committed in {RUN_SECONDS} s: {running.args!r}")
        time.sleep(0.005)


def check_same(output: Path, reference: Reference) -> None:
    """Check that a dataset equals that of the uninterrupted run."""
    verify(output)
    if data_hashes(output) != reference.data:
        mine = data_hashes(output)
        differing = sorted(path for path in mine | reference.data if mine.get(path) != reference.data.get(path))
        raise SoakError(f"data/ differs from that of an uninterrupted run: {differing[:5]}")
    if not episode_facts(output).equals(reference.episodes):
        raise SoakError("meta/episodes differs from that of an uninterrupted run")
    status = json.loads((output / "meta" / "info.json").read_bytes())["status"]
    if status != "complete":
        raise SoakError(f"the dataset is {status}")
