"""What the chunks of one call must be: the plan's episodes, each once, in order, under what the call gave."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from rollout_cli.chunk import Chunk
from rollout_cli.samplers.plan import Episodes, EpisodesPerWorker, MinTimesteps, Plan
from tests.unit.samplers.counting_worker import Lengths


class Delivery:
    """The account of one call.

    Args:
        plan: What was asked for.
        base: The number of offset 0.
        rewards: By worker, what stands in each step of an episode that it owns.
        lengths: How long each episode is.
        by_worker: Whether offset i belongs to worker i % n.
        arrival: Whether episodes come as they end.
    """

    def __init__(
        self, plan: Plan, *, base: int, rewards: Sequence[float], lengths: Lengths, by_worker: bool, arrival: bool
    ) -> None:
        self.plan, self.base, self.arrival = plan, base, arrival
        self.numbers: list[int] = []
        self._rewards, self._lengths, self._by_worker = rewards, lengths, by_worker
        self._part: tuple[int, int] | None = None  # The number and index of the part that must come next.

    def take(self, chunk: Chunk) -> None:
        """Take a chunk; whatever is wrong with it alone, or with its place, is seen at once."""
        numbers = chunk.numbers.tolist()
        if chunk.part is None:
            assert self._part is None, "an episode came between the parts of another"
            assert [self._lengths(number) for number in numbers] == chunk.lengths.tolist()
            self.numbers += numbers
        else:
            self._take_part(numbers[0], chunk)
        rewards = iter(chunk.rewards.tolist())
        for number, length in zip(numbers, chunk.lengths.tolist(), strict=True):
            assert {self._reward(number)} == {next(rewards) for _ in range(length)}
        assert len(self.numbers) == len(set(self.numbers)), "an episode came twice"
        if not self.arrival:
            for lane in self._lanes().values():
                assert sorted(lane) == lane

    def _take_part(self, number: int, chunk: Chunk) -> None:
        part = chunk.part
        assert part is not None
        assert (number, part.index) == (self._part or (number, 0))
        assert part.episode_length == self._lengths(number)
        self._part = None if part.is_last else (number, part.index + 1)
        if part.index == 0:
            self.numbers.append(number)

    def _reward(self, number: int) -> float:
        offset = number - self.base
        if isinstance(self.plan, EpisodesPerWorker):
            return self._rewards[offset // self.plan.episodes]
        if self._by_worker:
            return self._rewards[offset % len(self._rewards)]
        (reward,) = set(self._rewards)
        return reward

    @property
    def has_lanes(self) -> bool:
        """Return whether each worker's episodes are in an order of their own."""
        return isinstance(self.plan, EpisodesPerWorker)

    def _lane(self, number: int) -> int:
        return (number - self.base) // self.plan.episodes if isinstance(self.plan, EpisodesPerWorker) else 0

    def _lanes(self) -> dict[int, list[int]]:
        lanes = defaultdict(list)
        for number in self.numbers:
            lanes[self._lane(number)].append(number)
        return lanes

    def check_end(self, skipped: Collection[int], next_number: int, *, done: bool) -> None:
        """Check that all is there; of a call that ended early, that nothing is missing before what is there.

        Args:
            skipped: The numbers that are left out, of this call and all before it.
            next_number: Where the next call begins.
            done: Whether the call came to its end.
        """
        left_out = {number for number in skipped if number >= self.base}
        came = {*self.numbers, *left_out}
        assert not left_out.intersection(self.numbers)
        assert max((number + 1 for number in came), default=self.base) == next_number
        if done:
            assert self._part is None, "the parts of an episode are not complete"
        if done and self.arrival and isinstance(self.plan, MinTimesteps):
            assert sum(map(self._lengths, self.numbers)) >= self.plan.timesteps
        elif done:
            assert self._expected(left_out) == came
        elif not self.arrival:
            self._check_prefixes(came)

    def _expected(self, left_out: Collection[int]) -> set[int]:
        match self.plan:
            case MinTimesteps(timesteps, first):
                numbers: list[int] = []
                while sum(self._lengths(number) for number in numbers if number not in left_out) < timesteps:
                    numbers.append(self.base + first + len(numbers))
                return set(numbers)
            case Episodes(first, stop):
                return set(range(self.base + first, self.base + stop))
            case EpisodesPerWorker(episodes):
                starts = [self.base + self.plan.first_of(worker) for worker in range(len(self._rewards))]
                stops = [self.base + (worker + 1) * episodes for worker in range(len(self._rewards))]
                return {number for ends in zip(starts, stops, strict=True) for number in range(*ends)}

    def _check_prefixes(self, came: set[int]) -> None:
        for lane in {self._lane(number) for number in came}:
            first = self.base + self._first(lane)
            numbers = sorted(number for number in came if self._lane(number) == lane)
            assert list(range(first, first + len(numbers))) == numbers

    def _first(self, lane: int) -> int:
        return self.plan.first_of(lane) if isinstance(self.plan, EpisodesPerWorker) else self.plan.first
