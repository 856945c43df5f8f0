"""Plans: which numbers there are, who may run them, and when a run is done."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_cli.errors import ArgumentError, UsageError
from rollout_cli.samplers.leases import Leases, LeaseSize, Pace
from rollout_cli.samplers.plan import (
    NO_END,
    Episodes,
    EpisodesPerWorker,
    FreeNumbers,
    LengthEstimate,
    MinTimesteps,
    PartitionProgress,
    Plan,
    PlanState,
    contiguous_ranges,
    remaining,
    without,
)
from tests.helpers.errors import raises


def lengths_of(*lengths: int) -> Any:
    return np.array(lengths, np.int64)


class TestNumbers:
    @given(st.lists(st.integers(0, 9), max_size=6), st.sets(st.integers(0, 80)), st.integers(1, 4))
    def test_without_is_set_difference(self, counts: list[int], gone: set[int], step: int) -> None:
        """What is left of ranges of any step is what sets say."""
        runs = [range(10 * at, 10 * at + count * step, step) for at, count in enumerate(counts) if count]
        taken = contiguous_ranges(np.array(sorted(gone), np.int64))
        expected = Counter(n for run in runs for n in run if n not in gone)
        assert expected == Counter(n for run in without(runs, taken) for n in run)

    @given(st.sets(st.integers(0, 100)))
    def test_contiguous_ranges_are_the_numbers(self, numbers: set[int]) -> None:
        """They hold the same numbers, and none of them touches the next."""
        rising = np.array(sorted(numbers), np.int64)
        runs = contiguous_ranges(rising)
        assert sorted(numbers) == [n for run in runs for n in run]
        assert all(a.stop < b.start for a, b in pairwise(runs))


class TestFreeNumbers:
    def test_numbers_are_leased_lowest_first_and_released_ones_before_new_ones(self) -> None:
        """Released numbers lie below those that others run."""
        free = FreeNumbers(10, 30)
        assert [range(10, 15)] == free.lease(5)
        assert [range(15, 20)] == free.lease(5)
        free.release([range(12, 15)])
        assert (3, 12) == (free.n_released, free.next_number)
        assert [range(12, 14)] == free.lease(2)
        assert [range(14, 15), range(20, 23)] == free.lease(4)

    def test_a_number_stays_with_its_owner(self) -> None:
        """Where policies differ by worker, number i belongs to worker i % n, released or not."""
        state = PlanState(Episodes(4, NO_END), n_workers=3, by_worker=True)
        assert [range(4, 10, 3)] == state.free_numbers(1).lease(2)
        assert [range(6, 12, 3)] == state.free_numbers(0).lease(2)
        state.free_numbers(1).release([range(7, 8)])
        assert [range(5, 8, 3)] == state.free_numbers(2).lease(1)
        assert [range(7, 8)] == state.free_numbers(1).lease(1)

    def test_leases_are_whole_blocks(self) -> None:
        """A lease ends at a multiple of the block, so that rows are filled alike."""
        free = FreeNumbers(3, 100, block=8)
        assert [range(3, 8)] == free.lease(1)
        assert [range(8, 24)] == free.lease(9)

    def test_a_lease_holds_what_was_asked_for(self) -> None:
        """Also when it starts in the middle of a block; and no more than `most`, which no block exceeds."""
        free = FreeNumbers(3, 100, block=8)
        assert [range(3, 16)] == free.lease(6)
        assert [range(16, 20)] == free.lease(3, 4)
        assert [range(20, 25)] == free.lease(5, 4)


@given(
    st.data(),
    st.lists(st.integers(0, 9), min_size=1, max_size=60),
    st.integers(1, 120),
    st.integers(0, 5),
    st.booleans(),
)
@settings(max_examples=300)
def test_the_prefix_is_the_shortest_one_whatever_is_known_first(
    data: st.DataObject, lengths: list[int], target: int, first: int, bounded: bool
) -> None:
    """Lengths that become known in any order, in runs, give the end that adding them up one after another gives.

    Where there are too few steps, a plan that is bounded ends with the last of them.
    """
    bound = first + len(lengths) if bounded else NO_END
    state = PlanState(MinTimesteps(target, first, bound), n_workers=1)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(lengths))))) if len(lengths) > 1 else []
    runs = [(a, b) for a, b in pairwise(sorted({0, *cuts, len(lengths)})) if b > a]
    for start, stop in data.draw(st.permutations(runs)):
        state.complete(range(first + start, first + stop), lengths_of(*lengths[start:stop]))
    reached = int(np.searchsorted(np.cumsum(lengths), target))
    if reached < len(lengths):
        assert (True, first + reached + 1) == (state.done, state.stops[0])
    else:
        assert (bounded, bound) == (state.done, state.stops[0])


class TestPlanState:
    def test_a_range_is_done_when_all_its_numbers_are(self) -> None:
        """It ends with its last number, and one partition holds all."""
        state = PlanState(Episodes(5, 8), n_workers=2)
        assert [range(5, 8)] == state.free_numbers(1).lease(10)
        state.complete(range(6, 8), lengths_of(3, 3))
        assert (False, [8]) == (state.done, state.stops)
        state.complete(range(5, 6), lengths_of(3))
        assert state.done

    def test_steps_end_where_they_are_reached(self) -> None:
        """The last number needed is known once the lengths below it are; the mean length says how many are missing."""
        state = PlanState(MinTimesteps(10, first=2), n_workers=2)
        assert state.still_needed(5) is None
        state.complete(range(3, 5), lengths_of(4, 4))
        assert (1, 0) == (state.still_needed(0), state.still_needed(3))
        state.complete(range(2, 3), lengths_of(3))
        assert (True, [5], 0) == (state.done, state.stops, state.still_needed(0))

    def test_episodes_bound_a_number_of_steps(self) -> None:
        """No more numbers are leased than there may be, however many steps are missing."""
        state = PlanState(MinTimesteps(1_000, first=2, stop=6), n_workers=2)
        assert [range(2, 6)] == state.free_numbers(0).lease(10)
        state.complete(range(4, 6), lengths_of(1, 1))
        assert (2, 1) == (state.still_needed(0), state.still_needed(1))
        state.complete(range(2, 4), lengths_of(1, 1))
        assert (True, [6]) == (state.done, state.stops)

    def test_each_worker_has_a_partition(self) -> None:
        """Worker w runs its own range, from where an earlier run has left it."""
        state = PlanState(EpisodesPerWorker(4, first=10, done=(0, 3, 4)), n_workers=3, by_worker=True)
        assert (3, [10, 17, 22]) == (len(state.stops), state.firsts)
        assert [[range(10, 14)], [range(17, 18)], []] == [
            state.free_numbers(worker).lease(9) for worker in range(3)
        ]
        assert [0, 1, 2] == [state.partition(number) for number in (13, 14, 21)]
        assert [14, 18, 22] == state.stops
        state.free_numbers(0).release([range(12, 14)])
        assert (2, 0) == (state.free_numbers(0).n_released, state.free_numbers(1).n_released)
        state.complete(range(10, 14), lengths_of(1, 1, 1, 1))
        state.complete(range(17, 18), lengths_of(1))
        assert state.done


@pytest.mark.parametrize(
    ("plan", "covered", "left"),
    [
        (MinTimesteps(100), [(0, 0, None)], MinTimesteps(100)),
        (MinTimesteps(100), [(7, 60, None)], MinTimesteps(40, 7)),
        (MinTimesteps(100), [(7, 105, 9)], None),
        (MinTimesteps(100), [(7, 130, None)], None),
        (MinTimesteps(100, 2, 9), [(7, 60, None)], MinTimesteps(40, 7, 9)),
        (MinTimesteps(100, 2, 9), [(9, 60, 9)], None),
        (MinTimesteps(100, 2, 9), [(8, 105, 9)], None),
        (Episodes(2, NO_END), [(5, 30, None)], Episodes(5, NO_END)),
        (Episodes(2, 9), [(2, 0, None)], Episodes(2, 9)),
        (Episodes(2, 9), [(5, 30, None)], Episodes(5, 9)),
        (Episodes(2, 9), [(9, 30, None)], None),
        (EpisodesPerWorker(3), [(0, 0, None), (3, 0, None)], EpisodesPerWorker(3, 0, (0, 0))),
        (EpisodesPerWorker(3, 10), [(12, 9, None), (16, 9, None)], EpisodesPerWorker(3, 10, (2, 3))),
        (EpisodesPerWorker(3), [(3, 9, None), (6, 9, None)], None),
    ],
)
def test_what_is_left_of_a_plan(plan: Plan, covered: list[PartitionProgress], left: Plan | None) -> None:
    """A resumed run has the rest of its plan, and none where all is covered."""
    assert left == remaining(plan, covered)


@pytest.mark.parametrize(
    ("plan", "covered"),
    [
        (MinTimesteps(100), (7, 115, 10)),
        (MinTimesteps(100, 0, 9), (7, 115, 10)),
        (MinTimesteps(100, 0, 5), (6, 60, 10)),
        (Episodes(0, 5), (6, 60, None)),
    ],
)
def test_a_dataset_cannot_be_cut_short(plan: Plan, covered: PartitionProgress) -> None:
    """More than the plan asks for is a mistake of the user's, and the hint says so."""
    with raises(UsageError, "too-many-episodes") as caught:
        remaining(plan, [covered])
    assert caught.value.hint


@pytest.mark.parametrize(
    ("plan", "left"),
    [
        (Episodes(0, NO_END, 9), Episodes(20, NO_END, 5)),
        (MinTimesteps(100, 0, 50, 9), MinTimesteps(60, 20, 50, 5)),
        (Episodes(0, 50), Episodes(20, 50)),
        (MinTimesteps(100, kept=4), None),
        (MinTimesteps(35, kept=9), None),
        (MinTimesteps(100, 0, 20, 9), None),
    ],
)
def test_what_is_left_where_some_are_rejected(plan: Plan, left: Plan | None) -> None:
    """Of 20 episodes 4 were kept, of 40 steps."""
    assert left == remaining(plan, [(20, 40, 10)], n_episodes=4)


@pytest.mark.parametrize(
    ("plan", "counts"),
    [(Episodes(0, NO_END, 3), (4, 3)), (MinTimesteps(30), (40, 30)), (Episodes(0, 19, 9), (20, 19))],
)
def test_none_is_left_out_of_what_is_there(plan: Plan, counts: tuple[int, int]) -> None:
    """More kept, more steps, or more episodes that were run than the plan has."""
    with raises(UsageError, "too-many-episodes", *counts):
        remaining(plan, [(20, 40, 10)], n_episodes=4)


@pytest.mark.parametrize(
    "make",
    [
        lambda: MinTimesteps(0),
        lambda: MinTimesteps(5, -1),
        lambda: MinTimesteps(5, 3, 3),
        lambda: Episodes(0, 3, 0),
        lambda: Episodes(3, 3),
        lambda: Episodes(-1, 3),
        lambda: EpisodesPerWorker(0),
        lambda: EpisodesPerWorker(2, -1),
        lambda: EpisodesPerWorker(2, 0, (3,)),
    ],
)
def test_plans_check_their_numbers(make: Any) -> None:
    """A plan that nobody could run is not built."""
    with raises(ArgumentError, "plan-empty"):
        make()


class TestLengthEstimate:
    def test_equal_lengths_need_no_margin(self) -> None:
        """Four episodes of 500 steps have 2,000, also after the lengths of many calls were faded."""
        estimate = LengthEstimate()
        assert estimate.episodes_for(10) is None
        for _ in range(100):
            estimate.add(lengths_of(500, 500, 500))
            estimate.fade()
            assert (4, 5, 0) == tuple(map(estimate.episodes_for, (2_000, 2_001, -3)))

    def test_the_margin_is_one_standard_deviation(self) -> None:
        """Of 100 episodes with lengths 10 and 30, the sum of which is spread by 100 steps: five episodes."""
        estimate = LengthEstimate()
        estimate.add(lengths_of(10, 30))
        assert 105 == estimate.episodes_for(2_000)

    def test_earlier_calls_weigh_less_than_this_one(self) -> None:
        """A new policy's episodes may be much longer; sixteen old ones count."""
        estimate = LengthEstimate()
        estimate.add(lengths_of(*[10] * 1_000))
        estimate.fade()
        estimate.add(lengths_of(*[100] * 48))
        assert (16 + 48) == round(estimate.episodes)
        assert 4_960 == round(estimate.steps)


class TestLeases:
    def test_known_lengths_lease_all_that_is_needed_at_once(self) -> None:
        """A sole worker gets all numbers, however slow; two get equal shares, if these are short at their pace."""
        for n_workers, pace, expected in ((1, 1.0, [92]), (2, 1_000.0, [46, 46])):
            lengths = LengthEstimate()
            lengths.add(lengths_of(*[20] * 9))
            state = PlanState(MinTimesteps(1_840), n_workers=n_workers, lengths=lengths)
            paces = [Pace(0.0, episodes=pace, seconds=1.0) for _ in range(n_workers)]
            leases = Leases(state, n_workers=n_workers, paces=paces)
            for worker in range(n_workers):
                leases.lease(worker, buffer_is_full=False)
            assert expected == leases._counts

    def leases(self, plan: Plan, *, n_workers: int = 2, **size: Any) -> Leases:
        state = PlanState(plan, n_workers=n_workers)
        return Leases(state, n_workers=n_workers, size=LeaseSize(**size))

    def test_leases_grow_with_the_pace(self) -> None:
        """A worker that ends 1,000 episodes a second is leased some 200 at a time, and has at most two leases ahead."""
        leases = self.leases(Episodes(0, 10**6))
        assert (range(2),) == leases.lease(0, buffer_is_full=False)
        for at in range(1, 40):
            numbers = [n for run in leases.in_flight[0] for n in run][:100]
            leases.finished(0, contiguous_ranges(np.array(numbers, np.int64)), at * len(numbers) / 1000)
            leases.lease(0, buffer_is_full=False)
        assert 200 <= leases._counts[0] <= 420

    def test_workers_that_compile(self) -> None:
        """One gets all that a block may start; two get what their pace allows, so that their numbers interleave."""
        for n_workers, least, most in ((1, 2**17, 2**20), (2, 0, 64)):
            state = PlanState(Episodes(0, 10**6 if n_workers == 1 else NO_END), n_workers=n_workers)
            leases = Leases(state, n_workers=n_workers, block=16)
            leases.lease(0, buffer_is_full=False)
            leases.started(0, 9.0, compiles=True)
            leases.lease(0, buffer_is_full=False)
            leases.started(0, 99.0)  # It has compiled.
            assert least <= leases._counts[0] <= most
            leases.finished(0, [range(16)], 99.1)
            leases.lease(0, buffer_is_full=False)
            assert 32 <= leases._counts[0]
            assert leases._counts[0] <= most

    def test_the_last_leases_shrink(self) -> None:
        """Near the end a worker gets no more than half of its equal share of what is left."""
        leases = self.leases(Episodes(0, 40), seconds=10.0)
        leases.finished(0, [], 0.0)
        leases.lease(0, buffer_is_full=False)
        leases.finished(0, [range(2)], 0.01)
        leases.lease(0, buffer_is_full=False)
        assert 10 == leases._counts[0]

    def test_a_full_buffer_leaves_only_the_lowest_missing_number(self) -> None:
        """It is leased one at a time, and to nobody while it is in flight."""
        leases = self.leases(Episodes(0, 40))
        assert (range(1),) == leases.lease(0, buffer_is_full=True)
        assert () == leases.lease(1, buffer_is_full=True)
        leases.finished(0, [range(1)], 0.1)
        assert (range(1, 2),) == leases.lease(1, buffer_is_full=True)

    def test_isolated_numbers_run_alone_and_first(self) -> None:
        """A suspect is leased by itself, to its own worker, once that has nothing else."""
        leases = self.leases(Episodes(0, 40))
        leases.lease(0, buffer_is_full=False)
        leases.isolate(0, [1, 0])
        assert [(range(1),), ()] == [leases.lease(0, buffer_is_full=False) for _ in range(2)]
        leases.finished(0, [range(1)], 0.1)
        assert (range(1, 2),) == leases.lease(0, buffer_is_full=False)
        assert (range(2, 4),) == leases.lease(1, buffer_is_full=False)
