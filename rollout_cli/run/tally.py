"""The counts of a run in progress (`Tally`), what ended it, and the totals of a finished run (`CollectResult`)."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from rollout_cli.episodes.chunk import AnyChunk
from rollout_cli.episodes.notebook import html_table
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


@dataclass(frozen=True, slots=True)
class CollectResult:
    """The totals of a finished run.

    Attributes:
        path: The dataset's folder.
        stopped_by: The option that ended the run.
        episodes, steps: Totals of the dataset, including earlier runs that were resumed.
        mean_return: Mean over episodes of the sum of rewards.
        mean_length: Mean steps per episode.
        seed: The root seed.
        n_workers: Number of workers that ran.
        wall_time_s: Seconds from the first check to the last commit.
        sampling_time_s: Seconds from when the workers were ready to the last episode; 0 if nothing was left
            to run.
        steps_per_second: The steps of this run per second of `sampling_time_s`.
        reproducible: The verdict of the check that runs episodes again, as in info.json.
        acceptance: Counts of kept and rejected episodes; None without `keep`.
        skipped: Number of episodes that `on_env_error` or `on_worker_death` skipped.

    Example:
        >>> config = rollout_cli.CollectConfig(episodes=2, seed=0, sampler="local", output="two")
        >>> result = rollout_cli.collect(config)
        >>> result.stopped_by, result.episodes, result.reproducible["status"]
        ('episodes', 2, 'yes')
    """

    path: Path
    status: Literal["complete"]
    stopped_by: StoppedBy
    episodes: int
    steps: int
    mean_return: float
    mean_length: float
    seed: int
    n_workers: int
    wall_time_s: float
    sampling_time_s: float
    steps_per_second: float
    reproducible: Record
    acceptance: Record | None = None
    skipped: int = 0

    def _repr_html_(self) -> str:
        return html_table("CollectResult", asdict(self))
