"""`Discrete.contains` and `MultiDiscrete.contains` of a worker's process answer as gymnasium's own do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Discrete, MultiDiscrete
from hypothesis import example, given
from hypothesis import strategies as st

from rollout_cli import fast_contains

plain_contains = Discrete.contains
plain_contains_all = MultiDiscrete.contains
KINDS = (np.int64, np.int32, np.uint8)


@pytest.fixture
def installed() -> Iterator[None]:
    """Let environments use it."""
    assert fast_contains.install()
    yield
    fast_contains.uninstall()


@given(st.sampled_from(KINDS), st.integers(1, 255), st.integers(-3, 3), st.integers(-300, 300))
@example(np.int64, 2, 0, 2)
@example(np.int64, 2, -1, -1)
def test_numbers_are_contained_as_before(kind: Any, n: int, start: int, number: int) -> None:
    """In every type of integer that has the number, of the space's own and others, and as Python's."""
    if kind is np.uint8 and start < 0:
        return
    space = Discrete(n, start=start, dtype=kind)
    types = [other for other in KINDS if np.iinfo(other).min <= number <= np.iinfo(other).max]
    values = [number, float(number), np.float64(number), *(other(number) for other in types)]
    expected = [plain_contains(space, value) for value in values]
    assert expected == [fast_contains._contains(space, value) for value in values]


@given(
    st.sampled_from((np.int8, np.int64)),
    st.tuples(st.integers(1, 127), st.integers(-128, 127)),
    st.lists(st.integers(-128, 127), min_size=2, max_size=2),
)
@example(np.int8, (123, 5), [5, -120])
@example(np.int8, (127, -128), [-128, -1])
def test_batches_are_contained_as_before(kind: Any, bounds: tuple[int, int], numbers: list[int]) -> None:
    """Up to the ends of their type, where a difference wraps around; other types and shapes too."""
    count, start = bounds
    count = min(count, 128 - start)
    space = MultiDiscrete(np.array([count, 1], kind), start=np.array([start, 0], kind), dtype=kind)
    values = [np.array(numbers).astype(other) for other in (kind, np.int16, np.uint8, np.float64, object)]
    values += [np.array([numbers], kind), np.array(numbers[:1], kind), np.array([start, 0], kind)]
    expected = [plain_contains_all(space, value) for value in (*values, numbers)]
    assert expected == [fast_contains._contains_all(space, value) for value in (*values, numbers)]


@pytest.mark.parametrize(
    "value", [True, np.True_, None, "1", np.array(1), np.array([1]), 1.0, np.float32(1), [1]], ids=repr
)
def test_other_values_are_gymnasiums_to_judge(value: Any, installed: None) -> None:
    """What is no integer of the space's own type gets gymnasium's own answer."""
    for space in (Discrete(2), Discrete(5, start=-1)):
        assert plain_contains(space, value) is space.contains(value)


def test_the_largest_numbers_do_not_wrap_around(installed: None) -> None:
    """A space that reaches beyond its type's end holds every number up to that end."""
    most = np.iinfo(np.int64).max
    space = Discrete(int(most), start=5)
    assert [True, True, False] == [space.contains(np.int64(number)) for number in (5, most, 4)]


def test_a_space_that_changes_is_asked_anew(installed: None) -> None:
    """Nothing is remembered of a space: some environments change theirs."""
    space = Discrete(2)
    before = space.contains(np.int64(2))
    space.n = np.int64(3)
    assert (False, True) == (before, space.contains(np.int64(2)))


def test_an_environment_still_refuses(installed: None) -> None:
    """CartPole's own check takes what it took, and refuses what it refused."""
    env = gymnasium.make("CartPole-v1").unwrapped
    env.reset(seed=1)
    env.step(np.int64(1))
    with pytest.raises(AssertionError, match="invalid"):
        env.step(np.int64(2))
    env.close()


class Even(Discrete[np.int64]):
    """Has an opinion of its own."""

    def contains(self, x: Any) -> bool:
        return super().contains(x) and int(x) % 2 == 0


def test_a_subclass_keeps_its_own(installed: None) -> None:
    """What a space of another kind overrides is asked as before."""
    assert [True, False, True, False] == [Even(4).contains(np.int64(number)) for number in (0, 1, 2, 4)]


def test_installing_twice_and_taking_away() -> None:
    """Twice is once; afterwards gymnasium has its own method back."""
    assert fast_contains.install()
    assert fast_contains.install()
    assert plain_contains is not Discrete.contains
    assert plain_contains_all is not MultiDiscrete.contains
    fast_contains.uninstall()
    assert plain_contains is Discrete.contains
    assert plain_contains_all is MultiDiscrete.contains


@pytest.mark.parametrize("name", ["_plain_contains", "_plain_contains_all"])
def test_where_gymnasium_differs_it_is_left_alone(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """If a trial shows other answers, gymnasium keeps its own methods."""
    monkeypatch.setattr(fast_contains, name, lambda _space, _value: True)
    assert not fast_contains.install()
    assert plain_contains is Discrete.contains
    assert plain_contains_all is MultiDiscrete.contains
