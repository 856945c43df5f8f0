"""Tally: the counts of a run in progress, and what ended it."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Literal

from rollout_cli.episodes.chunk import AnyChunk
from rollout_cli.errors import RolloutError
from rollout_cli.keywords import Record
from rollout_cli.options.config import CollectConfig
from rollout_cli.run import reproduce

StoppedBy = Literal["timesteps", "episodes", "episodes_per_worker", "max_time", "keep_cap"]


@dataclass(slots=True)
class Tally:
    """The counts of a run in progress, and what ended it."""

    skipped: dict[int, str]  # The reasons for skipped episodes by number, including earlier runs.
    episodes: int = 0
    steps: int = 0
    return_sum: float = 0.0
    seconds: float = 0.0  # Since the workers were ready.
    failure: RolloutError | None = None  # The error that ended the sampling early.
    stopped_by: StoppedBy = "episodes"  # The option that ended the run, unless an error or a signal did.
    acceptance: Record | None = None  # Of all runs of the dataset; None without `keep`.
    early: reproduce.EarlyEpisodes = field(default_factory=reproduce.EarlyEpisodes)

    def until_failure(self, chunks: Iterator[AnyChunk]) -> Generator[AnyChunk, None, None]:
        """Yield chunks until the sampler raises, and store its error; errors of the writer are not caught."""
        try:
            yield from chunks
        except RolloutError as error:
            self.failure = error


def stopped_by(config: CollectConfig, totals: Record) -> StoppedBy:
    """Return the option that ended a run with these totals, which include earlier runs."""
    if config.timesteps is not None and totals["steps"] >= config.timesteps:
        return "timesteps"
    if config.keep is not None and (config.episodes is None or totals["episodes"] < config.episodes.stop):
        return "keep_cap"
    return "episodes" if config.episodes_per_worker is None else "episodes_per_worker"
