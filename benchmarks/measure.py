"""Measures the time, CPU and memory of commands that run alternately.

A figure is the median over rounds of the ratio between two sides that run alternately, so a slow phase of the
machine affects both. Start-up time is excluded: each side runs twice per round, short and long, and its rate is
the difference of their steps divided by the difference of their times. CPU and memory are measured by the
kernel (`wait4`).
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
"""Length of the short run as a fraction of the long run's."""

_PR_SET_CHILD_SUBREAPER = 36
_ONE_THREAD_EACH = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class CommandError(Exception):
    """A timed command failed."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The cost of one run of a command.

    Attributes:
        wall: Seconds from its start to the end of its first process.
        cpu_main: CPU seconds of its first process.
        cpu_others: CPU seconds of all other processes of the command.
        peak: Peak resident bytes of the largest process.
        document: The JSON object that it printed.
    """

    wall: float
    cpu_main: float
    cpu_others: float
    peak: int
    document: Mapping[str, Any]


def run(command: Sequence[str], *, environment: Mapping[str, str] | None = None) -> Usage:
    """Run a command and return its cost; each of its processes uses one thread for linear algebra.

    Raises:
        CommandError: If the command fails.
    """
    # Workers are children of a fork server. When it ends, this process becomes their parent, and `wait4`
    # returns their cost.
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise CommandError("benchmarks need Linux to wait for all processes of a run")
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
    """Return the JSON object that is the complete output or its last line, or an empty object if neither is."""
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
    """One side of a comparison: a command to measure.

    Attributes:
        name: The name in the table.
        command: Returns the command for a number of steps and an output folder; the command prints JSON with
            the `steps` taken.
        granule: Steps are multiples of this.
        self_timed: True if the document has the `seconds` from the first step to the end of saving; then one
            run per round is enough.
    """

    name: str
    command: Callable[[int, Path], list[str]]
    granule: int = 1
    self_timed: bool = False


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of the steps of one round: the long run minus the short run."""

    steps: int
    wall: float
    cpu_main: float = 0.0
    cpu_others: float = 0.0

    @property
    def rate(self) -> float:
        """Return steps per second."""
        return self.steps / self.wall

    @property
    def parent_share(self) -> float:
        """Return the fraction of a core that the first process used."""
        return self.cpu_main / self.wall


def take(side: Side, steps: int) -> Usage:
    """Run a side once for `steps`, rounded to a multiple of its granule, and delete its output."""
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
        raise CommandError(
            f"{side.name}: the long run was not slower than the short one; pass more --seconds"
        )
    return Cost(
        taken, long.wall - short.wall, long.cpu_main - short.cpu_main, long.cpu_others - short.cpu_others
    )


def steps_for(side: Side, seconds: float) -> int:
    """Estimate the number of steps that a side takes in `seconds`, by doubling the length of runs."""
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
    """Run all sides alternately (A B A B …), `pairs` times, and return the costs of each side by name."""
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
    """The median, minimum and maximum of some figures."""

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
