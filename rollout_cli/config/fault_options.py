"""Options of `CollectConfig`: what happens when something fails, or when the run is asked to end."""

from dataclasses import dataclass
from typing import Annotated, Literal

from rollout_cli.config.kinds import Choice, Integer, Seconds
from rollout_cli.config.options import FAULTS, Option

GRACE_SECONDS = 5.0
MAX_WORKER_RESTARTS = 10

_LIMIT = Seconds("SECONDS", "a number of seconds above 0", positive=True)


@dataclass(frozen=True, kw_only=True)
class FaultOptions:
    """What happens when something fails, or when the run is asked to end."""

    on_env_error: Annotated[
        Literal["fail", "retry", "skip"],
        Option(
            Choice("NAME", "'fail', 'retry' or 'skip'", choices=("fail", "retry", "skip")),
            FAULTS,
            "An episode whose environment or policy raises ends the run (fail), is run again up to three times in a "
            "worker built anew (retry), or is left out and reported (skip), which biases the data.",
        ),
    ] = "fail"
    on_worker_death: Annotated[
        Literal["fail", "skip"],
        Option(
            Choice("NAME", "'fail' or 'skip'", choices=("fail", "skip")),
            FAULTS,
            "An episode that kills its worker three times ends the run (fail), or is left out and reported (skip), "
            "which biases the data.",
        ),
    ] = "fail"
    max_worker_restarts: Annotated[
        int,
        Option(
            Integer("N", "an integer of at least 0"),
            FAULTS,
            "Start worker processes that died again, N times in all.",
            default=str(MAX_WORKER_RESTARTS),
        ),
    ] = MAX_WORKER_RESTARTS
    step_timeout: Annotated[
        float | None,
        Option(
            _LIMIT,
            FAULTS,
            "Kill a worker whose step, with the reset before it, takes longer; that counts as its death. A step of "
            "several environments is one.",
            default="no limit",
        ),
    ] = None
    episode_timeout: Annotated[
        float | None,
        Option(
            _LIMIT,
            FAULTS,
            "An episode that takes longer is treated as one whose environment raised.",
            default="no limit",
        ),
    ] = None
    grace: Annotated[
        float,
        Option(
            Seconds("SECONDS", "a number of seconds of at least 0"),
            FAULTS,
            "After Ctrl-C or SIGTERM, give episodes below the last finished one so long to end.",
            default="5",
        ),
    ] = GRACE_SECONDS
