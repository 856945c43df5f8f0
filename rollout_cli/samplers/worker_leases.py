"""WorkerLeases: which worker has which numbers, and who gets the next ones."""

from __future__ import annotations

from collections.abc import Iterable

from rollout_cli.samplers.leasing import LeaseSizer
from rollout_cli.samplers.messages import Lease
from rollout_cli.samplers.number_runs import NumberRuns
from rollout_cli.samplers.plan import PlanState
from rollout_cli.samplers.ranges import shifted


class WorkerLeases:
    """The account of one call's leases.

    Attributes:
        open: By worker, the numbers that it was leased and that did not end.
        alone: By worker, numbers that it is to run one at a time, before all others: suspects of a death or failure.

    Args:
        plan: What to run; offsets.
        base: The episode number of offset 0.
        n_workers: How many workers there are.
        sizer: How far ahead workers are leased numbers.
    """

    def __init__(self, plan: PlanState, *, base: int, n_workers: int, sizer: LeaseSizer) -> None:
        self._plan, self._base, self._sizer = plan, base, sizer
        self.open = [NumberRuns() for _ in range(n_workers)]
        self.alone: list[list[int]] = [[] for _ in range(n_workers)]

    def lease(self, worker: int, *, buffer_is_full: bool) -> Lease:
        """Lease a worker what it should get now, which may be nothing.

        Args:
            worker: Who.
            buffer_is_full: Whether no new number should be begun but the lowest missing one.
        """
        if self.alone[worker]:
            lease = self._next_alone(worker)
        else:
            count = self._count(worker, buffer_is_full=buffer_is_full)
            lease = tuple(shifted(offsets, self._base) for offsets in self._plan.lease(worker, count)) if count else ()
        for numbers in lease:
            self.open[worker].add(numbers)
        return lease

    def _next_alone(self, worker: int) -> Lease:
        if self.open[worker]:
            return ()
        number = self.alone[worker].pop(0)
        return (range(number, number + 1),)

    def _count(self, worker: int, *, buffer_is_full: bool) -> int:
        has = len(self.open[worker])
        count = self._sizer.wanted(worker, has)
        open_by_all = sum(map(len, self.open))
        left = self._plan.still_needed(open_by_all) if count else None
        if left is not None:
            count = min(count, self._sizer.share(worker, left=left, open_numbers=has, open_by_all=open_by_all))
        if buffer_is_full:
            count = 0
        # What came back lies below what others run: it must run first, or the buffer could never drain.
        count = max(count, self._plan.n_returned(worker))
        if count <= 0 and self._lowest_missing_waits_for(worker, buffer_is_full=buffer_is_full):
            return 1
        return max(0, count)

    def _lowest_missing_waits_for(self, worker: int, *, buffer_is_full: bool) -> bool:
        """Return whether the worker's next number is the lowest missing one: it must run, or nothing would go on."""
        if any(self.open) and not buffer_is_full:
            return False  # What is open moves the run on; only a full buffer asks whether it is the lowest.
        own = self._plan.next_offset(worker)
        free = [self._plan.next_offset(other) for other in range(len(self.open))]
        taken = [numbers.lowest - self._base for numbers in self.open if numbers]
        taken += [numbers[0] - self._base for numbers in self.alone if numbers]
        return own is not None and own == min(offset for offset in (*taken, *free) if offset is not None)

    def give_back(self, worker: int, numbers: Iterable[int]) -> None:
        """Let numbers of the worker's be leased again, to anybody who may run them."""
        # A worker may give back what it was told to drop while its answer was on its way.
        self._free(worker, self.open[worker].take(numbers))

    def give_back_all(self, worker: int) -> None:
        """Let all numbers of the worker's be leased again."""
        self._free(worker, self.open[worker].take_all())

    def _free(self, worker: int, numbers: Iterable[int]) -> None:
        self._plan.give_back(worker, [number - self._base for number in numbers])

    def set_apart(self, worker: int, numbers: Iterable[int]) -> None:
        """Take numbers from what the worker runs; it is to run them later, one at a time."""
        self.alone[worker] = sorted({*self.alone[worker], *self.open[worker].take(numbers)})

    def drop_above(self, worker: int, ceiling: int) -> bool:
        """Forget the worker's numbers above a ceiling; return whether it runs any of them."""
        self.alone[worker] = [number for number in self.alone[worker] if number <= ceiling]
        return self.open[worker].drop_above(ceiling)
