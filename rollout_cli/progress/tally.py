"""Tally: the sums of a run so far, and what they mean against the clock."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Tally:
    """The sums so far, and what they mean against the clock."""

    total_steps: int | None
    total_episodes: int | None
    started: float
    episodes: int = 0
    steps: int = 0
    return_sum: float = 0.0
    failures: int = 0
    steps_before: int = 0
    share_before: float = 0.0

    def go_on_from(self, *, episodes: int, steps: int, return_sum: float) -> None:
        """Begin with what an earlier run did, which took none of this one's time."""
        self.add(episodes=episodes, steps=steps, return_sum=return_sum, failures=0)
        self.steps_before = steps
        self.share_before = self.share or 0.0

    def add(self, *, episodes: int, steps: int, return_sum: float, failures: int) -> None:
        """Add one update."""
        self.episodes += episodes
        self.steps += steps
        self.return_sum += return_sum
        self.failures += failures

    @property
    def share(self) -> float | None:
        """The part that is done, 0 to 1, or None where the end is not known."""
        if self.total_steps:
            return min(1.0, self.steps / self.total_steps)
        if self.total_episodes:
            return min(1.0, self.episodes / self.total_episodes)
        return None

    def facts(self, now: float) -> list[str]:
        """Return what a person reads, in the same words for lines and bar."""
        elapsed = now - self.started
        facts = [
            _amount(self.steps, self.total_steps, "steps"),
            _amount(self.episodes, self.total_episodes, "episodes"),
            f"{(self.steps - self.steps_before) / elapsed if elapsed > 0 else 0:,.0f} steps/s",
        ]
        if self.episodes:
            facts.append(f"mean return {self.return_sum / self.episodes:.4g}")
        if self.failures:
            facts.append(f"{self.failures:,} failures")
        return facts

    def outlook(self, now: float) -> str:
        """Return how long it takes yet, or took where it is done or has no known end; empty where nothing is known."""
        elapsed = now - self.started
        if self.share is None or self.share == 1.0:
            return f"in {_duration(elapsed)}"
        gained = self.share - self.share_before
        return f"ETA {_duration(elapsed * (1.0 - self.share) / gained)}" if gained > 0.0 else ""


def _amount(number: int, total: int | None, unit: str) -> str:
    return f"{number:,} {unit}" if total is None else f"{number:,}/{total:,} {unit}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
