"""Cases of how fast one parent takes in episodes and writes them."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.cases.comparison import describe, raw_costs
from benchmarks.pairs import alternate
from benchmarks.product import WORKERS, collect, missing, module
from benchmarks.report import number
from benchmarks.results import Result, Row
from benchmarks.sides import Guess, Settings, Side
from benchmarks.stats import Spread, paired_ratios


@dataclass(frozen=True, slots=True)
class Ingest:
    """How fast the parent takes in episodes that cost nothing to make, with and without writing them.

    Attributes:
        name: Its name.
        title: What the table calls them.
        kind: A class of `benchmarks.synthetic`.
        length: Steps of each episode.
        step_bytes: Bytes of each step: observation, action and reward.
        rate: Roughly how many steps a second are taken in.
    """

    name: str
    title: str
    kind: str
    length: int
    step_bytes: int
    rate: float

    def missing(self) -> str | None:
        """Return why it cannot be run here."""
        return missing(("--worker-class",))

    @property
    def _sides(self) -> tuple[Side, Side]:
        of_class = "--worker-class", f"benchmarks.synthetic:{self.kind}"
        guess = Guess(rate=self.rate)
        return (
            collect(*of_class, name="written", granule=self.length, guess=guess),
            Side("taken in only", self._drop, self.length, guess),
        )

    def expected(self, settings: Settings) -> float:
        """Return about how many seconds it takes."""
        return sum(side.expected(settings) for side in self._sides)

    def measure(self, settings: Settings) -> Result:
        """Run both in turn."""
        rounds = alternate(self._sides, settings)
        rows = []
        for name, side in rounds.costs.items():
            rates = Spread.of(cost.rate / self.length for cost in side)
            megabytes = Spread.of(cost.rate * self.step_bytes / 1e6 for cost in side).median
            busy = Spread.of(cost.main_share for cost in side).median
            detail = f"{number(megabytes)} MB/s, parent {number(busy)} core; {describe(side)}"
            rows.append(Row(f"ingest, {self.title}, {name}", "", rates, "episodes/s", detail))
        written, dropped = ([cost.rate for cost in side] for side in rounds.costs.values())
        ratio = Spread.of(paired_ratios(written, dropped))
        rows.append(Row(f"ingest, {self.title}, written", "taken in only", ratio))
        return Result(self.name, tuple(rows), raw=raw_costs(self._sides, rounds))

    def _drop(self, steps: int, _: object) -> list[str]:
        return [*module("intake"), self.kind, str(WORKERS), str(steps)]


INGEST_CASES: tuple[Ingest, ...] = (
    # A step of CartPole is 16 bytes of observation and 8 each of action and reward.
    Ingest("ingest-short", "22-step episodes of 4 floats", "ShortEpisodes", 22, 32, 2e6),
    Ingest("ingest-long", "500-step episodes of 4 floats", "LongEpisodes", 500, 32, 3e6),
    Ingest("ingest-images", "250-frame episodes of 100 kB frames", "ImageEpisodes", 250, 210 * 160 * 3 + 16, 4000),
)
