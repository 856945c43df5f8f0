"""Plans: which episodes a run consists of, whose they are, and where it ends."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_cli.samplers.plan import Episodes, EpisodesPerWorker, MinTimesteps, begin_plan
from rollout_cli.samplers.prefix import PrefixSum

lengths = st.lists(st.integers(0, 12), min_size=1, max_size=40)


def lowest_ceiling(known: dict[int, int], target: int) -> int | None:
    """Return the lowest j with known lengths of offsets up to j that sum to `target`: the definition, term by term."""
    for j in sorted(known):
        if sum(length for offset, length in known.items() if offset <= j) >= target:
            return j
    return None


@given(values=lengths, target=st.integers(1, 150), data=st.data())
def test_prefix_sum_has_the_lowest_ceiling_at_every_moment(values: list[int], target: int, data: st.DataObject) -> None:
    """After each length, in any order, the ceiling is the lowest offset up to which known lengths reach the target."""
    order = data.draw(st.permutations(range(len(values))))
    prefix = PrefixSum(target)
    known: dict[int, int] = {}
    for offset in order:
        if prefix.ceiling is None or offset <= prefix.ceiling:
            known[offset] = values[offset]
        prefix.add(offset, values[offset])
        assert lowest_ceiling(known, target) == prefix.ceiling
        assert prefix.complete == (prefix.ceiling is not None and set(range(prefix.ceiling + 1)) <= known.keys())
    serial = next((at for at, total in enumerate(accumulate(values)) if total >= target), None)
    assert serial == prefix.ceiling


@given(values=lengths, data=st.data())
def test_prefix_sum_expects_what_the_mean_length_says(values: list[int], data: st.DataObject) -> None:
    """While the target is out of reach, the estimate is the missing steps over the mean length so far, rounded up."""
    prefix = PrefixSum(1000)
    steps = 0
    for count, offset in enumerate(data.draw(st.permutations(range(len(values)))), start=1):
        prefix.add(offset, values[offset])
        steps += values[offset]
        expected = None if steps == 0 else -(-(1000 - steps) * count // steps)
        assert expected == prefix.expected_episodes()


def test_a_length_that_is_known_is_refused() -> None:
    """The same offset cannot count twice, in the prefix or ahead of it."""
    prefix = PrefixSum(100)
    prefix.add(0, 1)
    prefix.add(5, 1)
    for offset in (0, 5):
        with pytest.raises(ValueError, match=f"offset {offset} was already known"):
            prefix.add(offset, 1)


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
    state.settle(0, [4, 2], [1, 1])
    assert not state.done
    state.settle(0, [3], [1])
    assert state.done


def test_above_the_ceiling_nothing_is_leased_and_nothing_counts() -> None:
    """A ceiling ends the pool: what lies above is not leased, not even again, and its late lengths change nothing."""
    state = begin_plan(MinTimesteps(10), n_workers=2)
    state.lease(0, 6)
    state.settle(0, [3], [10])
    assert (3, False) == (state.ceiling, state.done)
    state.give_back(0, [2, 4, 5])
    state.settle(0, [4], [50])
    assert ([2], 3) == (numbers_of(state.lease(1, 10)), state.ceiling)
    state.settle(1, [0, 1, 2], [1, 1, 8])
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
    state.settle(0, [0, 1, 2, 3], [0, 2, 0, 1])
    assert (3, True) == (state.ceiling, state.done)


def test_in_order_of_arrival_whatever_ends_counts() -> None:
    """`arrival` is done as soon as the lengths of any episodes sum to the target, and never has a ceiling."""
    state = begin_plan(MinTimesteps(5), n_workers=2, order="arrival")
    state.lease(0, 4)
    state.settle(0, [3], [4])
    assert (False, 0) == (state.done, state.still_needed())
    state.settle(0, [1], [1])
    assert (True, None, None) == (state.done, state.ceiling, state.last_of_lane(0))
