"""Plans: which episodes a run consists of, whose they are, and where it ends."""

from __future__ import annotations

import numpy as np
import pytest

from rollout_cli.samplers.plan import Episodes, EpisodesPerWorker, MinTimesteps, PlanState
from rollout_cli.samplers.plan_states import begin_plan


def settle(state: PlanState, lengths: dict[int, int]) -> None:
    """Settle offsets, each for itself."""
    for offset, length in lengths.items():
        state.settle(range(offset, offset + 1), np.array([length]))


@pytest.mark.parametrize("plan", [lambda: MinTimesteps(0), lambda: EpisodesPerWorker(0), lambda: Episodes(3, 3)])
def test_empty_plans_are_refused(plan: type[MinTimesteps]) -> None:
    """A plan of nothing is an error where it is made."""
    with pytest.raises(ValueError, match=r"must be at least 1|no range of episodes"):
        plan()  # type: ignore[call-arg]


def numbers_of(ranges: list[range]) -> list[int]:
    return [offset for leased in ranges for offset in leased]


def test_anyone_may_run_what_is_shared() -> None:
    """With one policy and one environment, workers are leased the lowest offsets in the order in which they ask."""
    state = begin_plan(MinTimesteps(1000), n_workers=3)
    assert [[0, 1], [2], [3, 4, 5]] == [numbers_of(state.lease(worker, n)) for worker, n in ((2, 2), (0, 1), (2, 3))]


@pytest.mark.parametrize(("plan", "first"), [(MinTimesteps(1000), 0), (Episodes(4, 40), 4)])
def test_by_worker_offset_i_belongs_to_worker_i_modulo_n(plan: MinTimesteps | Episodes, first: int) -> None:
    """With policies or environments by worker, offset i belongs to worker i % n_workers, wherever the plan begins."""
    state = begin_plan(plan, n_workers=3, by_worker=True)
    owners = {offset: worker for worker in range(3) for offset in numbers_of(state.lease(worker, 4))}
    assert {offset: offset % 3 for offset in range(first, first + 12)} == owners


def test_each_worker_has_its_own_range_and_lane() -> None:
    """Under EpisodesPerWorker, worker w runs offsets w * k to (w + 1) * k - 1, in lane w, and is leased no other."""
    state = begin_plan(EpisodesPerWorker(4), n_workers=3, by_worker=True)
    assert [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]] == [numbers_of(state.lease(w, 99)) for w in range(3)]
    assert [[], [], []] == [state.lease(worker, 1) for worker in range(3)]
    assert [0, 0, 1, 2] == [state.lane(offset) for offset in (0, 3, 4, 11)]
    assert [(0, 3), (4, 7), (8, 11)] == [(state.first_of_lane(lane), state.last_of_lane(lane)) for lane in range(3)]


def test_a_fixed_range_is_done_when_all_of_it_is_settled() -> None:
    """`Episodes` ends with its last open offset, in whatever order they end."""
    state = begin_plan(Episodes(2, 5), n_workers=1)
    state.lease(0, 3)
    assert (False, 4, 2) == (state.done, state.ceiling, state.first_of_lane(0))
    settle(state, {4: 1, 2: 1})
    assert not state.done
    settle(state, {3: 1})
    assert state.done


def test_above_the_ceiling_nothing_is_leased_and_nothing_counts() -> None:
    """A ceiling ends the pool: what lies above is not leased, not even again, and its late lengths change nothing."""
    state = begin_plan(MinTimesteps(10), n_workers=2)
    state.lease(0, 6)
    settle(state, {3: 10})
    assert (3, False) == (state.ceiling, state.done)
    state.give_back(0, [2, 4, 5])
    settle(state, {4: 50})
    assert ([2], 3) == (numbers_of(state.lease(1, 10)), state.ceiling)
    state.settle(range(3), np.array([1, 1, 8]))
    assert (2, True) == (state.ceiling, state.done)


def test_what_comes_back_is_leased_first() -> None:
    """Offsets that were given back are leased again before fresh ones, lowest first."""
    state = begin_plan(Episodes(0, 9), n_workers=2)
    state.lease(0, 5)
    state.give_back(0, [4, 1, 3])
    assert (3, 1) == (state.n_returned(1), state.next_offset(1))
    assert [1, 3, 4, 5] == numbers_of(state.lease(1, 4))


def test_skipped_episodes_count_no_steps() -> None:
    """An episode of length 0 belongs to the prefix without bringing its end nearer."""
    state = begin_plan(MinTimesteps(3), n_workers=1)
    state.lease(0, 4)
    state.settle(range(4), np.array([0, 2, 0, 1]))
    assert (3, True) == (state.ceiling, state.done)


def test_in_order_of_arrival_whatever_ends_counts() -> None:
    """`arrival` is done as soon as the lengths of any episodes sum to the target, and never has a ceiling."""
    state = begin_plan(MinTimesteps(5), n_workers=2, order="arrival")
    state.lease(0, 4)
    settle(state, {3: 4})
    assert (False, 0) == (state.done, state.still_needed(3))
    settle(state, {1: 1})
    assert (True, None, None) == (state.done, state.ceiling, state.last_of_lane(0))


def test_in_order_of_arrival_the_mean_length_says_how_many_more() -> None:
    """With 80 steps missing and 10 steps an episode so far, eight more are worth leasing, less what is leased."""
    state = begin_plan(MinTimesteps(100), n_workers=2, order="arrival")
    state.lease(0, 5)
    assert state.still_needed(5) is None
    state.settle(range(1, 3), np.array([4, 16]))
    assert 8 - 3 == state.still_needed(3)
