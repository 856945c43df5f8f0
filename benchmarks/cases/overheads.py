"""Cases whose figure is no rate: the parent's share of a core, start-up, peak memory, ingest."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.cases.throughput import describe
from benchmarks.pairs import Settings, Side, alternate, run_side
from benchmarks.probes import NOTE
from benchmarks.product import WORKERS, collect, executable, missing, module
from benchmarks.report import number
from benchmarks.results import Result, Row
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
    """

    name: str
    title: str
    sides: tuple[Side, ...]

    def missing(self) -> str | None:
        """Return None: it needs nothing."""
        return None

    def measure(self, settings: Settings) -> Result:
        """Run each side in turn, and take what the long runs use beyond the short ones."""
        costs = alternate(self.sides, settings)
        rows = tuple(
            Row(
                f"{self.title}: {name}",
                "",
                Spread.of(cost.main_share for cost in side),
                "core",
                describe(side),
                "<= 0.10 / 0.05",
            )
            for name, side in costs.items()
        )
        return Result(self.name, rows, raw={name: [asdict(cost) for cost in side] for name, side in costs.items()})


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
    """

    name: str
    title: str
    ours: Timer
    other: Timer
    other_name: str
    goal: str

    def missing(self) -> str | None:
        """Return None: it needs nothing."""
        return None

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


@dataclass(frozen=True, slots=True)
class Ingest:
    """How fast the parent takes in episodes that cost nothing to make, with and without writing them.

    Attributes:
        name: Its name.
        title: What the table calls them.
        kind: A class of `benchmarks.synthetic`.
        length: Steps of each episode.
        step_bytes: Bytes of each step: observation, action and reward.
    """

    name: str
    title: str
    kind: str
    length: int
    step_bytes: int

    def missing(self) -> str | None:
        """Return why it cannot be run here."""
        return missing(("--worker-class",))

    def measure(self, settings: Settings) -> Result:
        """Run both in turn."""
        writing = collect("--worker-class", f"benchmarks.synthetic:{self.kind}", name="written", granule=self.length)
        dropping = Side("taken in only", self._drop, self.length)
        costs = alternate((writing, dropping), settings)
        rows = []
        for name, side in costs.items():
            rates = Spread.of(cost.rate / self.length for cost in side)
            megabytes = Spread.of(cost.rate * self.step_bytes / 1e6 for cost in side).median
            busy = Spread.of(cost.main_share for cost in side).median
            detail = f"{number(megabytes)} MB/s, parent {number(busy)} core; {describe(side)}"
            rows.append(Row(f"ingest, {self.title}, {name}", "", rates, "episodes/s", detail))
        written, dropped = ([cost.rate for cost in costs[side.name]] for side in (writing, dropping))
        ratio = Spread.of(paired_ratios(written, dropped))
        rows.append(Row(f"ingest, {self.title}, written", "taken in only", ratio))
        return Result(
            self.name, tuple(rows), raw={name: [asdict(cost) for cost in side] for name, side in costs.items()}
        )

    def _drop(self, steps: int, _: object) -> list[str]:
        return [*module("intake"), self.kind, str(WORKERS), str(steps)]


_NATIVE = ("--vectorization", "native", "--envs-per-worker", "1024")

OVERHEAD_CASES: Sequence[ParentShare | Duration | PeakMemory | Ingest] = (
    ParentShare(
        "parent-cpu",
        "parent's CPU with 2 workers",
        (
            collect("--policy", "benchmarks.policies:linear", name="CartPole, linear"),
            collect(name="CartPole, random"),
        ),
    ),
    Duration(
        "first-episode",
        "start of rollout to the first finished episode",
        _until_first_episode,
        _bare_first_episode,
        "one process that does no more",
        "<= 0.9 s / 0.5 s",
    ),
    Duration(
        "help",
        "rollout --help",
        _wall(executable(), "--help"),
        _wall(sys.executable, "-c", ""),
        "python -c ''",
        "< 0.3 s",
    ),
    PeakMemory("memory", "CartPole, random, 2 workers", collect()),
    PeakMemory(
        "memory-native",
        "native CartPole, N = 1024, random, 1 worker",
        collect(*_NATIVE, workers=1),
        options=("--vectorization", "--envs-per-worker"),
    ),
    # A step of CartPole is 16 bytes of observation and 8 each of action and reward.
    Ingest("ingest-short", "22-step episodes of 4 floats", "ShortEpisodes", 22, 32),
    Ingest("ingest-long", "500-step episodes of 4 floats", "LongEpisodes", 500, 32),
    Ingest("ingest-images", "250-frame episodes of 100 kB frames", "ImageEpisodes", 250, 210 * 160 * 3 + 16),
)
