"""Options of `CollectConfig`: how much a run collects."""

from dataclasses import dataclass
from typing import Annotated

from rollout_cli.config.kinds import EpisodeRange, Episodes
from rollout_cli.config.options import AMOUNT, COUNT, Option
from rollout_cli.guards import STEP_GUARD

_AMOUNTS = frozenset({"timesteps", "episodes"})


@dataclass(frozen=True, kw_only=True)
class AmountOptions:
    """How much a run collects."""

    timesteps: Annotated[
        int | None,
        Option(
            COUNT,
            AMOUNT,
            "Collect the shortest run of episodes that has at least N steps.",
            short="-n",
            commands=("collect",),
            rivals=_AMOUNTS,
        ),
    ] = None
    episodes: Annotated[
        EpisodeRange | None,
        Option(
            Episodes("N|A:B", "a number of episodes of at least 1, or a range A:B with 0 <= A < B"),
            AMOUNT,
            "Collect N episodes, or those numbered A to B-1.",
            commands=("collect",),
            rivals=_AMOUNTS,
        ),
    ] = None
    episodes_per_worker: Annotated[
        int | None,
        Option(COUNT, AMOUNT, "Collect exactly N episodes from each worker.", short="-k", commands=("exact",)),
    ] = None
    max_episode_length: Annotated[
        int | None,
        Option(COUNT, AMOUNT, "Truncate an episode after N steps.", default="the environment's own limit"),
    ] = None
    episode_step_guard: Annotated[
        int,
        Option(
            COUNT,
            AMOUNT,
            "End the run at an episode of N steps in an environment that has no limit.",
            default="1000000",
        ),
    ] = STEP_GUARD
