"""Watch: sees from what workers note whether one of them is stuck."""

from __future__ import annotations

from dataclasses import dataclass, field

from rollout_cli.black_box import Noted

_LOOKS = 8
"""A limit passes within an eighth of it."""

_SHORTEST, _LONGEST = 0.02, 1.0
"""Seconds between two looks."""


@dataclass(frozen=True, slots=True)
class Overdue:
    """A worker that is to be killed.

    Attributes:
        reason: Why, in words that go on from the worker's name.
        episodes: The episodes that took too long; none where it was a step.
    """

    reason: str
    episodes: tuple[int, ...] = ()


@dataclass(slots=True)
class _Seen:
    """What was seen of a worker, and for how many seconds it was running episodes meanwhile."""

    noted: Noted
    at: float
    stuck: float = 0.0
    episodes: dict[int, float] = field(default_factory=dict)


class Watch:
    """Keeps account of how long steps and episodes take. Times are seconds on any one clock.

    Only time in which a worker runs episodes counts, not what it waits for whoever takes them.

    Args:
        step_timeout: How long the step of a worker may take, with the reset before it; None for any time.
        episode_timeout: How long an episode may take; None for any time.
    """

    def __init__(self, step_timeout: float | None, episode_timeout: float | None) -> None:
        self._step_timeout, self._episode_timeout = step_timeout, episode_timeout
        self._seen: dict[int, _Seen] = {}
        limits = [limit for limit in (step_timeout, episode_timeout) if limit is not None]
        self.tick = min(max(min(limits) / _LOOKS, _SHORTEST), _LONGEST) if limits else None

    def is_due(self, worker: int, now: float) -> bool:
        """Return whether it is time to look at the worker."""
        seen = self._seen.get(worker)
        return self.tick is not None and (seen is None or now - seen.at >= self.tick)

    def look(self, worker: int, noted: Noted, now: float) -> Overdue | None:
        """Take what a worker noted; return whether it is overdue."""
        before = self._seen.get(worker)
        seen = self._seen[worker] = _Seen(noted, now)
        if before is None or self.tick is None or not (noted.busy and before.noted.busy):
            if before is not None:
                seen.episodes = before.episodes
            return None
        # Who looks may have been away for long; what a worker did meanwhile cannot be told.
        elapsed = min(now - before.at, 2 * self.tick)
        if (noted.beats, noted.begun) == (before.noted.beats, before.noted.begun):
            seen.stuck = before.stuck + elapsed
        known = before.noted.begun or ()
        seen.episodes = {
            number: before.episodes.get(number, 0.0) + elapsed if number in known else 0.0
            for number in noted.begun or ()
        }
        return self._overdue(seen)

    def _overdue(self, seen: _Seen) -> Overdue | None:
        if self._step_timeout is not None and seen.stuck > self._step_timeout:
            return Overdue(f"was killed, since a step took longer than {self._step_timeout:g} s,")
        limit = self._episode_timeout
        late = tuple(number for number, seconds in seen.episodes.items() if limit is not None and seconds > limit)
        if not late:
            return None
        which = f"episode {late[0]}" if len(late) == 1 else f"each of {len(late)} episodes"
        return Overdue(f"was killed, since {which} took longer than {limit:g} s,", late)

    def forget(self, worker: int) -> None:
        """Forget a worker that ended."""
        self._seen.pop(worker, None)
