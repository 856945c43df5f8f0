"""The reading cases: `python -m benchmarks reading`.

Each side is a process that first creates or opens the same episodes in its own format, and times only the reading.
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path

from benchmarks.cases import Case, Figure, Say, duration, ratio
from benchmarks.measure import Side, Spread, Usage, run
from benchmarks.peers import READERS, command_of


def ours(mode: str, kind: str, name: str = "rollout") -> Side:
    """Return a side of `benchmarks.read_loops`."""
    return Side(name, lambda steps, output: _command(mode, kind, steps, output), self_timed=True)


def _command(mode: str, kind: str, steps: int, output: Path) -> list[str]:
    return [sys.executable, "-m", "benchmarks.read_loops", mode, kind, str(steps), str(output)]


def theirs(name: str, kind: str) -> Side:
    """Return a side that runs another tool."""
    peer = next(peer for peer in READERS if peer.name == name)
    return Side(peer.title, lambda steps, output: command_of(peer, kind, steps, output), self_timed=True)


def against(name: str, what: str, mode: str, kind: str, others: dict[Side, str]) -> Case:
    """Return a case: the ratio of our rate to the rate of each other side."""
    case = ratio(f"reading-{name}", what, ours(mode, kind), others)
    peers = any(side.name != "numpy" for side in others)
    return Case(case.name, case.measure, tags=("reading", "peers") if peers else ("reading",))


def _read(mode: str, kind: str, steps: int) -> Usage:
    with tempfile.TemporaryDirectory() as output:
        return run(_command(mode, kind, steps, Path(output)))


def _seconds(mode: str, kind: str, count: int) -> float:
    document = _read(mode, kind, count).document
    return float(document["seconds"]) / int(document["steps"])


def each(name: str, what: str, mode: str, kind: str, *, count: int, bound: str) -> Case:
    """Return a case: the seconds per operation."""
    case = duration(f"reading-{name}", what, partial(_seconds, mode, kind, count), bound)
    return Case(case.name, case.measure, tags=("reading",))


def peak(name: str, what: str, mode: str, kind: str, bound: str) -> Case:
    """Return a case: the peak memory of a process that reads a complete dataset once."""

    def measure(pairs: int, seconds: float, say: Say) -> list[Figure]:
        del pairs, seconds
        _read("opened", kind, 1)  # It writes the dataset.
        usage = _read(mode, kind, 1)
        found = usage.peak / 2**20
        say(f"  reading-{name}: {found:.0f} MB")
        rate = int(usage.document["steps"]) / float(usage.document["seconds"])
        return [Figure(what, "", Spread.of([found]), "MB", bound, f"{rate:,.0f} steps/s")]

    return Case(f"reading-{name}", measure, tags=("reading",))


READING: tuple[Case, ...] = (
    against(
        "episodes",
        "episodes of 22 steps in order, all fields",
        "episodes",
        "cartpole",
        {theirs("minari-episodes", "cartpole"): ">= 80", theirs("hf-episodes", "cartpole"): ">= 2"},
    ),
    against(
        "frames",
        "episodes of 250 frames in order, all fields",
        "episodes",
        "pong",
        {theirs("minari-episodes", "pong"): "", theirs("hf-episodes", "pong"): ""},
    ),
    against(
        "transitions",
        "batches of 256 random transitions",
        "transitions",
        "cartpole",
        {ours("numpy_transitions", "cartpole", "numpy"): ">= 0.67"},
    ),
    against(
        "windows",
        "batches of 256 random windows of 20 steps",
        "windows",
        "cartpole",
        {ours("numpy_windows", "cartpole", "numpy"): ">= 0.67"},
    ),
    against(
        "transitions-peers",
        "batches of 256 random transitions",
        "transitions",
        "cartpole",
        {theirs(f"{name}-transitions", "cartpole"): "> 1" for name in ("torchrl", "tianshou")},
    ),
    against(
        "windows-peers",
        "batches of 256 random windows of 20 steps",
        "windows",
        "cartpole",
        {theirs(f"{name}-windows", "cartpole"): "> 1" for name in ("torchrl", "tianshou")},
    ),
    each("item", "`d[i]` at random, all fields", "items", "cartpole", count=200_000, bound="<= 5e-6"),
    each("load", "`load` of 10^7 steps", "opened", "cartpole-7", count=3, bound="<= 0.3"),
    peak("stream", "10^8 steps, episode by episode", "stream", "cartpole-8", "< 400"),
    peak("shuffled", "10^8 steps in shuffled batches", "shuffled", "cartpole-8", "< 400"),
    peak("flat", "10^7 transitions in memory", "in_memory", "cartpole-7", "< 600"),
)
