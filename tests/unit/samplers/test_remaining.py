"""What is left of a plan behind what is settled, and that plans can begin there."""

from __future__ import annotations

import numpy as np
import pytest

from rollout_cli.errors import UsageError
from rollout_cli.samplers.plan import Episodes, EpisodesPerWorker, MinTimesteps, Plan
from rollout_cli.samplers.plan_states import begin_plan
from rollout_cli.samplers.remaining import SettledLane, remaining


@pytest.mark.parametrize(
    ("plan", "lanes", "left"),
    [
        (MinTimesteps(100), [SettledLane(0)], MinTimesteps(100, 0)),
        (MinTimesteps(100), [SettledLane(7, steps=60, last_length=9)], MinTimesteps(40, 7)),
        (MinTimesteps(100), [SettledLane(9, steps=103, last_length=4)], None),
        (MinTimesteps(100), [SettledLane(9, steps=100, last_length=1)], None),
        (Episodes(3, 9), [SettledLane(3)], Episodes(3, 9)),
        (Episodes(3, 9), [SettledLane(5, steps=20, last_length=1)], Episodes(5, 9)),
        (Episodes(3, 9), [SettledLane(9, steps=20, last_length=1)], None),
        (EpisodesPerWorker(4), [SettledLane(4), SettledLane(6), SettledLane(8)], EpisodesPerWorker(4, (4, 2, 0))),
        (EpisodesPerWorker(4), [SettledLane(4), SettledLane(8)], None),
    ],
)
def test_what_is_left(plan: Plan, lanes: list[SettledLane], left: Plan | None) -> None:
    """The same plan, begun behind what is settled; nothing where all of it is."""
    assert left == remaining(plan, lanes)


@pytest.mark.parametrize(
    ("plan", "lane"),
    [(MinTimesteps(100), SettledLane(9, steps=104, last_length=4)), (Episodes(3, 9), SettledLane(10))],
)
def test_more_than_the_plan_has_is_refused(plan: Plan, lane: SettledLane) -> None:
    """A whole run would have ended before the last of these episodes."""
    with pytest.raises(UsageError, match="more than"):
        remaining(plan, [lane])


def test_steps_are_counted_from_the_first_episode_left() -> None:
    """The ceiling is where the lengths behind the settled ones sum to what is missing."""
    state = begin_plan(MinTimesteps(10, first=5), n_workers=2)
    assert [range(5, 8)] == state.lease(0, 3)
    assert [range(8, 10)] == state.lease(1, 2)
    assert (5, None) == (state.first_of_lane(0), state.last_of_lane(0))
    state.settle(range(6, 8), np.array([6, 5]))
    assert (7, False) == (state.last_of_lane(0), state.done)
    state.settle(range(5, 6), np.array([4]))
    assert (6, True) == (state.last_of_lane(0), state.done)


def test_whole_blocks_are_leased_again_from_the_first_one_on() -> None:
    """Where numbers are leased in blocks, so that each has its row, a settled part of one is left out."""
    state = begin_plan(MinTimesteps(1000, first=5), n_workers=2, block=4)
    assert [range(5, 8)] == state.lease(0, 4)
    assert [range(8, 12)] == state.lease(0, 4)


def test_each_worker_goes_on_behind_its_own() -> None:
    """One has done all of its episodes, one some, one none."""
    state = begin_plan(EpisodesPerWorker(4, (4, 2, 0)), n_workers=3)
    assert [[], [range(6, 8)], [range(8, 12)]] == [state.lease(worker, 99) for worker in range(3)]
    assert [(4, 3), (6, 7), (8, 11)] == [(state.first_of_lane(lane), state.last_of_lane(lane)) for lane in range(3)]
    state.settle(range(6, 8), np.array([1, 1]))
    assert not state.done
    state.settle(range(8, 12), np.array([1, 1, 1, 1]))
    assert state.done


@pytest.mark.parametrize("make", [lambda: MinTimesteps(5, -1), lambda: EpisodesPerWorker(4, (5,))])
def test_places_that_cannot_be_are_refused(make: type[MinTimesteps]) -> None:
    """Where the plan is made."""
    with pytest.raises(ValueError, match=r"must be"):
        make()  # type: ignore[call-arg]
