"""Watch: finds workers that are stuck in a step or an episode, by what they note of themselves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

_LOOKS = 8  # Of one time-out.
_SHORTEST, _LONGEST = 0.02, 1.0  # Seconds between two looks.


class Notes(NamedTuple):
    """A snapshot of what a worker has noted of itself."""

    beats: int  # Turns and steps that were begun.
    busy: bool  # Whether the worker was in a turn, rather than waiting or sending.
    # The episodes that had begun and not ended; None where the box cannot say.
    numbers: tuple[int, ...] | None


@dataclass(slots=True)
class Watch:
    """Tracks how long a worker's step, with the reset before it, and its episodes take (seconds; None: any).

    Only time within its turns counts.
    """

    step_timeout: float | None
    episode_timeout: float | None
    _last: tuple[float, Notes] | None = None
    _stuck: float = 0.0
    _running: dict[int, float] = field(default_factory=dict)

    @property
    def tick(self) -> float | None:
        """Return how many seconds may pass between two looks; None where nothing is watched."""
        limits = [limit for limit in (self.step_timeout, self.episode_timeout) if limit is not None]
        return min(max(min(limits) / _LOOKS, _SHORTEST), _LONGEST) if limits else None

    def look(self, notes: Notes, now: float) -> tuple[str, tuple[int, ...]] | None:
        """Return None, or why the worker is to be killed, and its overdue episodes (none for a step)."""
        tick, last = self.tick, self._last
        if tick is None or (last is not None and now - last[0] < tick):
            return None
        self._last = now, notes
        if last is None or not (notes.busy and last[1].busy and notes.numbers):
            self._stuck = 0.0
            return None
        at, before = last
        # The sampler may have been away for long; nobody knows what the worker did meanwhile.
        elapsed = min(now - at, 2 * tick)
        self._stuck = self._stuck + elapsed if before == notes else 0.0
        if self.step_timeout is not None and self._stuck > self.step_timeout:
            return f"was killed, since a step took longer than {self.step_timeout:g} s,", ()
        ran_before = set(before.numbers or ())
        self._running = {
            n: self._running.get(n, 0.0) + elapsed if n in ran_before else 0.0 for n in notes.numbers
        }
        limit = self.episode_timeout
        late = tuple(
            number for number, seconds in self._running.items() if limit is not None and seconds > limit
        )
        if not late:
            return None
        which = f"episode {late[0]}" if len(late) == 1 else f"each of {len(late)} episodes"
        return f"was killed, since {which} took longer than {limit:g} s,", late
