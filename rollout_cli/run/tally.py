"""What a run has done so far, and what ended it."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Literal

from rollout_cli.episodes.chunk import AnyChunk
from rollout_cli.errors import RolloutError
from rollout_cli.keywords import Record
from rollout_cli.run import reproduce

StoppedBy = Literal["timesteps", "episodes", "episodes_per_worker", "max_time", "keep_cap"]


@dataclass(slots=True)
class Tally:
    """What a run has done so far."""

    skipped: dict[int, str]  # By number, why an episode was skipped; those of earlier runs too.
    episodes: int = 0
    steps: int = 0
    return_sum: float = 0.0
    seconds: float = 0.0  # From when its workers were ready.
    failure: RolloutError | None = None  # The error that ended the sampling early.
    stopped_by: StoppedBy = "episodes"  # What ended it, if neither an error nor a signal did.
    acceptance: Record | None = None  # Of all runs that the dataset is of; None without `keep`.
    early: reproduce.EarlyEpisodes = field(default_factory=reproduce.EarlyEpisodes)

    def until_failure(self, chunks: Iterator[AnyChunk]) -> Generator[AnyChunk, None, None]:
        """Keep the sampler's error; the writer's is raised in the loop that this serves, and not here."""
        try:
            yield from chunks
        except RolloutError as error:
            self.failure = error
