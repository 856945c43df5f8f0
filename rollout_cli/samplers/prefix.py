"""PrefixSum: where a run of at least so many steps ends, from lengths that are learnt in any order."""

from __future__ import annotations

import bisect


class PrefixSum:
    """Finds the shortest prefix of 0, 1, 2, … whose lengths sum to a target, from lengths learnt in any order.

    As soon as the known lengths of the offsets up to some j sum to the target, the lowest such j is a ceiling. What is
    unknown below it still runs and may lower it; nothing above it can belong to the prefix.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._next = 0
        self._sum = 0
        # Offsets above the contiguous prefix, ascending, and their lengths: few, bounded by what is leased.
        self._ahead: list[int] = []
        self._lengths: dict[int, int] = {}
        self._ahead_sum = 0
        self.ceiling: int | None = None

    @property
    def complete(self) -> bool:
        """Return whether all lengths up to the ceiling are known."""
        return self.ceiling is not None and self._next > self.ceiling

    def add(self, offset: int, length: int) -> None:
        """Learn one length; those above the ceiling are ignored."""
        if self.ceiling is not None and offset > self.ceiling:
            return
        if offset < self._next or offset in self._lengths:
            raise ValueError(f"the length of offset {offset} was already known")
        bisect.insort(self._ahead, offset)
        self._lengths[offset] = length
        self._ahead_sum += length
        self._lower_ceiling()
        self._advance()

    def expected_episodes(self) -> int | None:
        """Return about how many episodes are missing, from the mean length so far; None while nothing is known."""
        known = self._next + len(self._ahead)
        steps = self._sum + self._ahead_sum
        if steps == 0:
            return None
        return max(0, -(-(self._target - steps) * known // steps))

    def _lower_ceiling(self) -> None:
        known = self._sum + self._ahead_sum
        while len(self._ahead) > 1 and known - self._lengths[self._ahead[-1]] >= self._target:
            known -= self._drop_last()
        if known >= self._target:
            self.ceiling = self._ahead[-1]

    def _drop_last(self) -> int:
        length = self._lengths.pop(self._ahead.pop())
        self._ahead_sum -= length
        return length

    def _advance(self) -> None:
        taken = 0
        while taken < len(self._ahead) and self._ahead[taken] == self._next:
            length = self._lengths.pop(self._next)
            self._sum += length
            self._ahead_sum -= length
            self._next += 1
            taken += 1
        del self._ahead[:taken]
