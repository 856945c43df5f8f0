"""Progress: what a run tells while it goes on, and the one who passes nothing of it on."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """What a run tells while it goes on.

    `start` comes once, then any number of `update`, then `finish`, which may be called again and does nothing then.
    `notice` and `warn` may come at any time.
    """

    def start(self, *, label: str, total_steps: int | None, total_episodes: int | None) -> None:
        """Begin.

        Args:
            label: What is run, such as the environment's name; any text.
            total_steps: How many steps end the run, where steps end it.
            total_episodes: How many episodes end the run, where episodes end it.
        """

    def go_on_from(self, *, episodes: int, steps: int, return_sum: float) -> None:
        """Begin with what an earlier run did: at most once, between `start` and the first `update`."""

    def update(self, *, episodes: int, steps: int, return_sum: float, failures: int = 0) -> None:
        """Add finished episodes, their steps, the sum of their returns, and failures that were got over."""

    def notice(self, text: str) -> None:
        """Tell something worth knowing."""

    def warn(self, text: str) -> None:
        """Tell something that may spoil the data."""

    def finish(self) -> None:
        """End, whether the run went well or not."""


class NullProgress:
    """Says nothing: for callers that show progress themselves."""

    def start(self, *, label: str, total_steps: int | None, total_episodes: int | None) -> None:
        """Say nothing."""

    def go_on_from(self, *, episodes: int, steps: int, return_sum: float) -> None:
        """Say nothing."""

    def update(self, *, episodes: int, steps: int, return_sum: float, failures: int = 0) -> None:
        """Say nothing."""

    def notice(self, text: str) -> None:
        """Say nothing."""

    def warn(self, text: str) -> None:
        """Say nothing."""

    def finish(self) -> None:
        """Say nothing."""
