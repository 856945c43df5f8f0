"""Sets of episode numbers as runs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_cli.samplers.number_runs import NumberRuns

RUNS = st.builds(lambda start, length: range(start, start + length), st.integers(0, 30), st.integers(0, 8))
STEPS = st.builds(lambda start, count: range(start, start + 3 * count, 3), st.integers(0, 30), st.integers(0, 4))
NUMBERS = st.lists(st.integers(0, 40), max_size=10)
OPERATIONS = st.lists(
    st.tuples(st.just("add"), RUNS | STEPS)
    | st.tuples(st.just("remove"), RUNS)
    | st.tuples(st.just("take"), NUMBERS)
    | st.tuples(st.just("drop_above"), st.integers(-1, 40))
    | st.tuples(st.just("take_all"), st.none()),
    max_size=30,
)


@given(OPERATIONS)
@settings(deadline=None)
def test_runs_are_a_set(operations: list[tuple[str, object]]) -> None:
    """Whatever is added and removed, and in whichever order, with runs that overlap, touch or are split."""
    runs, numbers = NumberRuns(), set[int]()
    for name, argument in operations:
        match name, argument:
            case "add", range():
                runs.add(argument)
                numbers.update(argument)
            case "remove", range():
                runs.remove(argument)
                numbers.difference_update(argument)
            case "take", list():
                assert sorted(numbers.intersection(argument)) == runs.take(argument)
                numbers.difference_update(argument)
            case "drop_above", int():
                assert any(number > argument for number in numbers) == runs.drop_above(argument)
                numbers = {number for number in numbers if number <= argument}
            case _:
                assert sorted(numbers) == runs.take_all()
                numbers.clear()
        assert (sorted(numbers), len(numbers)) == (sorted(runs), len(runs))
        assert [number in numbers for number in range(50)] == [number in runs for number in range(50)]
        assert not numbers or min(numbers) == runs.lowest


def test_what_follows_is_one_run() -> None:
    """So that a lease and what was leased before it are no more runs than one."""
    runs = NumberRuns()
    for numbers in (range(10, 20), range(30, 40), range(20, 30)):
        runs.add(numbers)
    assert ([10], [40]) == (runs._starts, runs._stops)


def test_nothing_has_no_lowest_number() -> None:
    """Whoever asks has to look first."""
    with pytest.raises(ValueError, match="empty"):
        _ = NumberRuns().lowest
