"""Cases whose figure is no rate: the parent's share of a core, start-up, peak memory."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cases.comparison import describe, raw_costs
from benchmarks.cases.throughput import NATIVE, NATIVE_GUESS
from benchmarks.pairs import alternate
from benchmarks.probes import NOTE
from benchmarks.product import collect, executable, missing, module
from benchmarks.report import number
from benchmarks.results import Result, Row
from benchmarks.sides import Guess, Settings, Side, run_side
from benchmarks.stats import Spread, paired_ratios
from benchmarks.usage import run

_MB = 1 << 20


@dataclass(frozen=True, slots=True)
class ParentShare:
    """How much of a core the parent uses while its workers run at full rate.

    Attributes:
        name: Its name.
        title: What the table calls it.
        sides: Of each a figure is given.
        goal: The part of a core: at most, and aimed at.
    """

    name: str
    title: str
    sides: tuple[Side, ...]
    goal: str

    def missing(self) -> str | None:
        """Return None: it needs nothing."""
        return None

    def expected(self, settings: Settings) -> float:
        """Return about how many seconds it takes."""
        return sum(side.expected(settings) for side in self.sides)

    def measure(self, settings: Settings) -> Result:
        """Run each side in turn, and take what the long runs use beyond the short ones."""
        rounds = alternate(self.sides, settings)
        rows = tuple(
            Row(
                f"{self.title}: {name}",
                "",
                Spread.of(cost.main_share for cost in side),
                "core",
                describe(side),
                self.goal,
            )
            for name, side in rounds.costs.items()
        )
        return Result(self.name, rows, raw=raw_costs(self.sides, rounds))


Timer = Callable[[Path], float]
"""Runs something once, with a folder to write to, and returns seconds."""


@dataclass(frozen=True, slots=True)
class Duration:
    """How long something short takes, beside something that is known.

    Attributes:
        name: Its name.
        title: What the table calls it.
        ours: What is timed.
        other: What it is compared with.
        other_name: What the table calls that.
        goal: Seconds: at most, and aimed at.
        guess: About how many seconds both take.
    """

    name: str
    title: str
    ours: Timer
    other: Timer
    other_name: str
    goal: str
    guess: float

    def missing(self) -> str | None:
        """Return None: it needs nothing."""
        return None

    def expected(self, settings: Settings) -> float:
        """Return about how many seconds it takes."""
        return (settings.pairs + 1) * self.guess

    def measure(self, settings: Settings) -> Result:
        """Time both in turn, after one of each that fills the file caches and does not count."""
        times: dict[str, list[float]] = {"ours": [], "other": []}
        for turn in range(settings.pairs + 1):
            for name, timer in (("ours", self.ours), ("other", self.other)):
                with tempfile.TemporaryDirectory(dir=settings.scratch) as folder:
                    seconds = timer(Path(folder))
                if turn:
                    times[name].append(seconds)
                    settings.say(f"  {turn}/{settings.pairs} {name}: {seconds:.3f} s")
        ratios = Spread.of(paired_ratios(times["ours"], times["other"]))
        other = f"{number(Spread.of(times['other']).median)} s"
        rows = (
            Row(self.title, "", Spread.of(times["ours"]), "s", goal=self.goal),
            Row(self.title, self.other_name, ratios, detail=f"which takes {other}"),
        )
        return Result(self.name, rows, raw=times)


def _wall(*command: str) -> Timer:
    return lambda _: run(command).wall


def _until_first_episode(folder: Path) -> float:
    """Return the time from starting `rollout collect` to the end of a worker's first episode."""
    side = collect("--env", "benchmarks.probes:first_episode")
    noted = folder / "noted"
    started = time.monotonic_ns()
    run(side.command(1000, folder / "out"), environment={NOTE: str(noted)})
    return (int(noted.read_text(encoding="ascii")) - started) / 1e9


def _bare_first_episode(folder: Path) -> float:
    noted = folder / "noted"
    started = time.monotonic_ns()
    run(module("probes"), environment={NOTE: str(noted)})
    return (int(noted.read_text(encoding="ascii")) - started) / 1e9


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """How peak memory grows with the length of a run.

    Attributes:
        name: Its name.
        title: What the table calls it.
        side: What is run.
        sizes: Steps of each run, rising.
        options: Options of the product that it needs.
    """

    name: str
    title: str
    side: Side
    sizes: tuple[int, ...] = (10**5, 10**6, 10**7)
    options: tuple[str, ...] = ()

    def missing(self) -> str | None:
        """Return why it cannot be run here."""
        return missing(self.options)

    def expected(self, settings: Settings) -> float:
        """Return about how many seconds it takes."""
        del settings
        return sum(self.side.guess.start + size / self.side.guess.rate for size in self.sizes)

    def measure(self, settings: Settings) -> Result:
        """Run each size once: the kernel tells the peak, and it hardly varies."""
        peaks = {}
        for size in self.sizes:
            used = run_side(self.side, size, settings)[1]
            peaks[size] = (used.peak_main / _MB, used.peak_others / _MB)
            settings.say(f"  {size:,} steps: parent {peaks[size][0]:.0f} MB, worker {peaks[size][1]:.0f} MB")
        raw = {str(size): {"parent_mb": parent, "worker_mb": worker} for size, (parent, worker) in peaks.items()}
        return Result(self.name, (self._row("parent", 0, peaks), self._row("largest worker", 1, peaks)), raw=raw)

    def _row(self, who: str, at: int, peaks: dict[int, tuple[float, float]]) -> Row:
        first, last = self.sizes[0], self.sizes[-1]
        told = ", ".join(f"{number(peaks[size][at])} MB after {size:,}" for size in self.sizes)
        ratio = Spread.of([peaks[last][at] / peaks[first][at]])
        what = f"{self.title}: peak memory of the {who}, {last:,} steps"
        return Row(what, f"{first:,} steps", ratio, detail=told, goal="flat")


OVERHEAD_CASES: Sequence[ParentShare | Duration | PeakMemory] = (
    ParentShare(
        "parent-cpu",
        "parent's CPU with 2 workers",
        (
            collect("--policy", "benchmarks.policies:linear", name="CartPole, linear"),
            collect(name="CartPole, random"),
        ),
        "<= 0.10 / 0.05",
    ),
    ParentShare(
        "parents-wait",
        "parent's CPU with 4 workers",
        (
            collect(
                *("--env", "benchmarks.probes:Sleeping"),
                name="an environment that sleeps 10 ms a step",
                workers=4,
                guess=Guess(1.0, 390),
            ),
        ),
        "<= 0.02",
    ),
    Duration(
        "first-episode",
        "start of rollout to the first finished episode",
        _until_first_episode,
        _bare_first_episode,
        "one process that does no more",
        "<= 0.9 s / 0.5 s",
        1.4,
    ),
    Duration(
        "help",
        "rollout --help",
        _wall(executable(), "--help"),
        _wall(sys.executable, "-c", ""),
        "python -c ''",
        "< 0.3 s",
        0.3,
    ),
    PeakMemory("memory", "CartPole, random, 2 workers", collect()),
    PeakMemory(
        "memory-native",
        "native CartPole, N = 1024, random, 1 worker",
        collect(*NATIVE, workers=1, guess=NATIVE_GUESS),
        options=("--vectorization", "--envs-per-worker"),
    ),
)
