"""EpisodeRules: what a worker does about user code that keeps to its contract only nearly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rollout_cli.guards import GUARD_BYTES, STEP_GUARD

ENDLESS_HINT = (
    "--max-episode-length N truncates it; --episode-step-guard says how long an episode without a limit may get"
)

OnInvalidAction = Literal["error", "clip", "warn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRules:
    """Rules that hold for every episode.

    Attributes:
        invalid_action: What becomes of an action outside of its space: its episode fails; it is moved to the nearest
            bound (which nan does not have); or it goes to the environment as it is, and the dataset tells of it.
        step_guard: Steps after which an episode without a limit fails.
    """

    invalid_action: OnInvalidAction = "error"
    step_guard: int = STEP_GUARD

    def most_steps(self, row_bytes: int) -> int:
        """Return how many steps an episode without a limit may have, where each has so many bytes of observations."""
        return max(1, min(self.step_guard, GUARD_BYTES // max(1, row_bytes)))


def endless(steps: int) -> str:
    """Return what is told of an episode that goes on after so many steps."""
    return f"the episode has no end: it is {steps:,} steps long"
