"""Options of `CollectConfig`: what happens when something fails, or when the run is asked to end."""

from dataclasses import dataclass
from typing import Annotated

from rollout_cli.config.kinds import Seconds
from rollout_cli.config.options import FAULTS, Option

GRACE_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class FaultOptions:
    """What happens when something fails, or when the run is asked to end."""

    grace: Annotated[
        float,
        Option(
            Seconds("SECONDS", "a number of seconds of at least 0"),
            FAULTS,
            "After Ctrl-C or SIGTERM, give episodes below the last finished one so long to end.",
            default="5",
        ),
    ] = GRACE_SECONDS
