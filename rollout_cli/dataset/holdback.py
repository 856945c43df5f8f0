"""What waits until the schema window closes: no row can be written before its columns are known."""

from __future__ import annotations

from collections import deque

from rollout_cli.chunk import Chunk
from rollout_cli.dataset.window import InfoSchema, SchemaWindow


class Holdback:
    """Keeps the first chunks of all lanes and shows them to the window in the order of their numbers.

    With one lane that is the order in which they come. With several, the window waits for the lane whose next episode
    has the number after the last one it saw: lane 1 begins where lane 0 ends.

    Args:
        n_lanes: How many lanes there are.
        base: The number of the first episode.
    """

    def __init__(self, *, n_lanes: int, base: int) -> None:
        self._window = SchemaWindow()
        self._held: list[tuple[Chunk, int]] = []
        self._unseen: list[deque[Chunk]] = [deque() for _ in range(n_lanes)]
        self._next_number = base

    @property
    def closed(self) -> bool:
        """Return whether the window knows the columns."""
        return self._window.closed

    def observe(self, chunk: Chunk) -> None:
        """Show the window episodes that are not kept."""
        if not self._window.closed:
            self._show(chunk)

    def hold(self, chunk: Chunk, lane: int) -> None:
        """Keep a chunk of a lane, and show the window what is next."""
        self._held.append((chunk, lane))
        self._unseen[lane].append(chunk)
        while not self._window.closed and (following := self._following()) is not None:
            self._show(following)

    def result(self) -> InfoSchema:
        """Return the columns; of all that was held where the window is still open."""
        for lane in self._unseen:
            while lane and not self._window.closed:
                self._show(lane.popleft())
        return self._window.result()

    def release(self) -> list[tuple[Chunk, int]]:
        """Give back the chunks with their lanes, in the order in which they came."""
        held, self._held = self._held, []
        self._unseen = [deque() for _ in self._unseen]
        return held

    def _following(self) -> Chunk | None:
        for lane in self._unseen:
            if lane and (len(self._unseen) == 1 or int(lane[0].numbers[0]) == self._next_number):
                return lane.popleft()
        return None

    def _show(self, chunk: Chunk) -> None:
        self._window.observe(chunk)
        if chunk.part is None or chunk.part.is_last:
            self._next_number = int(chunk.numbers[-1]) + 1
