"""What is left of a plan, part of which an earlier run has settled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollout_cli.errors import UsageError
from rollout_cli.samplers.plan import Episodes, EpisodesPerWorker, MinTimesteps, Plan


@dataclass(frozen=True, slots=True)
class SettledLane:
    """What is settled of one lane.

    Attributes:
        stop: One past the highest offset that is; the lane's first one where none is.
        steps: Steps of its episodes.
        last_length: Steps of the last of them; 0 where there is none.
    """

    stop: int
    steps: int = 0
    last_length: int = 0


def remaining(plan: Plan, lanes: Sequence[SettledLane]) -> Plan | None:
    """Return the plan of what is left; None where nothing is.

    Args:
        plan: The whole plan.
        lanes: What is settled of each of its lanes.

    Raises:
        UsageError: If more is settled than the plan has.
    """
    match plan:
        case MinTimesteps(timesteps):
            return _rest_of_steps(timesteps, lanes[0])
        case Episodes(_, stop):
            if lanes[0].stop > stop:
                raise _too_much(f"{lanes[0].stop:,} episodes are settled, more than the {stop:,} that are asked for")
            return Episodes(lanes[0].stop, stop) if lanes[0].stop < stop else None
        case EpisodesPerWorker(episodes):
            done = tuple(lane.stop - worker * episodes for worker, lane in enumerate(lanes))
            return EpisodesPerWorker(episodes, done) if min(done) < episodes else None


def _rest_of_steps(timesteps: int, lane: SettledLane) -> Plan | None:
    if lane.steps < timesteps:
        return MinTimesteps(timesteps - lane.steps, lane.stop)
    if lane.steps - lane.last_length >= timesteps:
        raise _too_much(f"there are {lane.steps:,} steps, more than a run of {timesteps:,} steps has")
    return None


def _too_much(message: str) -> UsageError:
    return UsageError(message, hint="a dataset can be extended, but not cut short: ask for more")
