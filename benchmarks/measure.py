"""Runs commands in turn and returns what they cost.

A figure is the median over rounds of a ratio between two sides that ran one after the other, so a machine
that slows down slows both. Start-up does not count: each side of a round runs twice, short and long, and its
rate is the difference of their steps over the difference of their times. CPU and memory are the kernel's own
figures (`wait4`).
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SHORT_SHARE = 0.1
"""The short run's length as a part of the long one's."""

_PR_SET_CHILD_SUBREAPER = 36
_ONE_THREAD_EACH = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class CommandError(Exception):
    """A timed command failed."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What one run of a command cost.

    Attributes:
        wall: Seconds from its start to the end of its first process.
        cpu_main: CPU seconds of its first process.
        cpu_others: CPU seconds of all other processes that it started.
        peak: Peak resident bytes of the largest process.
        document: The JSON object that it printed.
    """

    wall: float
    cpu_main: float
    cpu_others: float
    peak: int
    document: Mapping[str, Any]


def run(command: Sequence[str], *, environment: Mapping[str, str] | None = None) -> Usage:
    """Run a command to its end, with one thread for linear algebra in each of its processes.

    Raises:
        CommandError: If it fails.
    """
    # Workers are children of a fork server. This process inherits them when that has ended, and so learns
    # their cost.
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise CommandError("the processes of a run can be followed to their end on Linux only")
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        started = time.perf_counter()
        variables = {**os.environ, **_ONE_THREAD_EACH, **(environment or {})}
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, cwd=ROOT, env=variables
        )
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        wall = time.perf_counter() - started
        # `wait4` adds the processes that it waited for itself to its own time.
        times = (
            Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[11:15]
        )
        own, own_system, others, others_system = (int(ticks) / os.sysconf("SC_CLK_TCK") for ticks in times)
        _, status, main = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        orphans = _reap_orphans()
        output.seek(0)
        errors.seek(0)
        text = output.read().decode(errors="replace")
        if process.returncode != 0:
            last_lines = (errors.read().decode(errors="replace") or text).strip().splitlines()[-6:]
            raise CommandError(
                f"exit code {process.returncode} of {' '.join(command)}\n" + "\n".join(last_lines)
            )
    return Usage(
        wall,
        own + own_system,
        others + others_system + sum(orphan.ru_utime + orphan.ru_stime for orphan in orphans),
        max(used.ru_maxrss for used in (main, *orphans)) * 1024,
        _document(text),
    )


def _reap_orphans() -> list[resource.struct_rusage]:
    reaped: list[resource.struct_rusage] = []
    while True:
        try:
            _, _, used = os.wait4(-1, 0)
        except ChildProcessError:
            return reaped
        reaped.append(used)


def _document(text: str) -> dict[str, Any]:
    """Return the JSON object that is all of the output, or its last line; an empty one where there is none."""
    for candidate in (text, (text.strip().splitlines() or [""])[-1]):
        try:
            found = json.loads(candidate)
        except json.JSONDecodeError:
            continue
        if isinstance(found, dict):
            return found
    return {}


@dataclass(frozen=True, slots=True)
class Side:
    """One thing that is measured.

    Attributes:
        name: What the table calls it.
        command: Gives the command for a number of steps and an output folder; it prints JSON with the `steps`
            taken.
        granule: Steps are multiples of this.
        self_timed: Whether the document has the `seconds` from the first step to the end of saving; then one
            run a round is enough.
    """

    name: str
    command: Callable[[int, Path], list[str]]
    granule: int = 1
    self_timed: bool = False


@dataclass(frozen=True, slots=True)
class Cost:
    """What the steps of one round cost: those of the long run beyond the short one."""

    steps: int
    wall: float
    cpu_main: float = 0.0
    cpu_others: float = 0.0

    @property
    def rate(self) -> float:
        """Return steps a second."""
        return self.steps / self.wall

    @property
    def parent_share(self) -> float:
        """Return the part of a core that the first process used."""
        return self.cpu_main / self.wall


def take(side: Side, steps: int) -> Usage:
    """Run a side once for so many steps, rounded to its granule; its output is removed."""
    with tempfile.TemporaryDirectory() as folder:
        return run(side.command(max(1, round(steps / side.granule)) * side.granule, Path(folder) / "out"))


def cost(side: Side, steps: int) -> Cost:
    """Run one round of a side."""
    if side.self_timed:
        document = take(side, steps).document
        return Cost(int(document["steps"]), float(document["seconds"]))
    short, long = take(side, round(steps * SHORT_SHARE)), take(side, steps)
    taken = int(long.document["steps"]) - int(short.document["steps"])
    if taken <= 0 or long.wall <= short.wall:
        raise CommandError(f"{side.name}: the runs are too short to tell apart; give more --seconds")
    return Cost(
        taken, long.wall - short.wall, long.cpu_main - short.cpu_main, long.cpu_others - short.cpu_others
    )


def steps_for(side: Side, seconds: float) -> int:
    """Return about how many steps a side takes in so many seconds, found by runs that double."""
    start = 0.0 if side.self_timed else take(side, side.granule).wall
    steps = max(1000, side.granule)
    while True:
        usage = take(side, steps)
        taken = float(usage.document["seconds"]) if side.self_timed else usage.wall - start
        if taken > min(1.0, seconds / 3):
            return round(int(usage.document["steps"]) / taken * seconds)
        steps *= 4


def rounds(
    sides: Sequence[Side], *, pairs: int, seconds: float, say: Callable[[str], None]
) -> dict[str, list[Cost]]:
    """Run all sides in turn (A B A B …), `pairs` times; return the costs of each by its name."""
    steps = {side.name: steps_for(side, seconds) for side in sides}
    costs: dict[str, list[Cost]] = {side.name: [] for side in sides}
    for turn in range(1, pairs + 1):
        for side in sides:
            found = cost(side, steps[side.name])
            costs[side.name].append(found)
            say(f"  {turn}/{pairs} {side.name}: {found.rate:,.0f} steps/s")
    return costs


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some figures, with the least and the greatest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, figures: Iterable[float]) -> Spread:
        """Return the spread of at least one figure."""
        values = list(figures)
        return cls(statistics.median(values), min(values), max(values))

    def __str__(self) -> str:
        return f"{self.median:.3g} ({self.low:.3g}-{self.high:.3g})"
