"""RandomPolicy: distributed as the space's own samples, a function of the seed, the same in a row as alone."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from rollout_cli.episodes.spaces import SpaceRows
from rollout_cli.policies.noise import RowStreams, gumbel, normal, uniform
from rollout_cli.policies.random import RandomPolicy
from tests.helpers.strategies import any_space

SEEDS = st.integers(0, 2**64 - 1)
ALL = np.ones(1, bool)


def plain(space: Any, sample: Any) -> Any:
    return [np.asarray(value).tolist() for value in SpaceRows(space).columns(sample)]


def alone(space: Any, seed: int, steps: int) -> list[Any]:
    policy = RandomPolicy(space)
    policy.seed(seed)
    policy.reset()
    return [policy.get_action(None)[0] for _ in range(steps)]


@given(any_space(), st.lists(SEEDS, min_size=1, max_size=4), st.integers(1, 150))
def test_a_row_acts_as_alone(space: Any, seeds: list[int], steps: int) -> None:
    """Row j of get_actions gives, bit for bit, what get_action gives for its seed; each is in the space."""
    rows, policy = SpaceRows(space), RandomPolicy(space)
    mask = np.ones(len(seeds), bool)
    policy.seed_rows(mask, np.array(seeds, np.uint64))
    policy.reset(mask)
    batches = [rows.split(policy.get_actions(np.zeros(len(seeds)))[0]) for _ in range(steps)]
    for row, seed in enumerate(seeds):
        expected = alone(space, seed, steps)
        assert all(map(space.contains, expected))
        assert [plain(space, action) for action in expected] == [
            plain(space, batch[row]) for batch in batches
        ]


@pytest.mark.parametrize("space", [spaces.Discrete(1000), spaces.Box(-np.inf, 1.0, (2,)), spaces.Text(9)])
def test_rows_begin_one_by_one(space: Any) -> None:
    """A row that begins anew leaves the others where they are."""
    policy, rows = RandomPolicy(space), SpaceRows(space)
    seen: list[list[Any]] = [[], []]
    for step in range(30):
        if step in (0, 7):
            policy.seed_rows(np.array([True, step == 0]), np.array([step, 99], np.uint64))
        for row, action in enumerate(rows.split(policy.get_actions(np.zeros(2))[0])):
            seen[row].append(plain(space, action))
    assert [plain(space, one) for one in alone(space, 0, 7) + alone(space, 7, 23)] == seen[0]
    assert [plain(space, one) for one in alone(space, 99, 30)] == seen[1]


def test_actions_are_fixed_for_ever() -> None:
    """Another version of the code must not change recorded episodes."""
    assert [2, 3, 4, 2, 2, 3, 4, 2] == alone(spaces.Discrete(5), 1, 8)
    (action,) = alone(spaces.Box(-1.0, 1.0, (1,), np.float64), 1, 1)
    assert "0x1.10a2dec890258p-3" == float(action[0]).hex()


def test_seeds_count_in_all_their_bits() -> None:
    """Seeds that differ in one bit give other actions, and the same seed the same."""
    space = spaces.Discrete(1_000_000)
    seeds = [0, *(2**bit for bit in range(64))]
    seen = [alone(space, seed, 4) for seed in seeds]
    assert len(seeds) == len({tuple(actions) for actions in seen})
    assert seen == [alone(space, seed, 4) for seed in seeds]


def test_unseeded_policies_differ() -> None:
    """Without a seed, the operating system gives one."""
    space = spaces.Discrete(1_000_000)
    first, second = RandomPolicy(space), RandomPolicy(space)
    assert first.get_action(None) != second.get_action(None)
    observations = np.zeros(3)
    assert 6 == len(
        {*first.get_actions(observations)[0].tolist(), *second.get_actions(observations)[0].tolist()}
    )


@pytest.mark.parametrize(
    ("space", "low", "high"),
    [
        (spaces.Discrete(6, start=-2), -2, 3),
        (spaces.MultiDiscrete([2, 6], start=[5, -9]), [5, -9], [6, -4]),
        (spaces.MultiBinary((2, 2)), 0, 1),
        (spaces.Box(-3, 4, (2,), np.int8), -3, 4),
        (spaces.Box(250, 255, (2,), np.uint8), 250, 255),
        (spaces.Box(2**63, 2**63 + 3, (1,), np.uint64), 2**63, 2**63 + 3),
    ],
)
def test_integers_are_uniform(space: Any, low: Any, high: Any) -> None:
    """Each value from the lowest to the highest comes equally often."""
    actions = _many(space, 6_000)
    span = np.asarray(np.subtract(np.asarray(high, object), np.asarray(low, object)) + 1, float)
    assert np.all(actions.min(axis=0) == np.asarray(low))
    assert np.all(actions.max(axis=0) == np.asarray(high))
    for value in range(int(span.min())):
        share = np.mean(actions == np.asarray(low, object) + value, axis=0)
        assert np.allclose(share, 1 / span, atol=0.03)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("bounds", [(-2.0, 3.0), (0.0, 1.0), ("least", "greatest")])
def test_floats_are_uniform(dtype: Any, bounds: Any) -> None:
    """Also between the two ends of what the type holds, whose difference it does not hold."""
    limits = np.finfo(dtype)
    low, high = bounds if bounds[0] != "least" else (limits.min, limits.max)
    space = spaces.Box(low, high, (2,), dtype)
    actions = _many(space, 4_000)
    assert actions.dtype == dtype
    assert all(map(space.contains, actions))
    halves = actions.astype(np.float64) / 2
    share = (halves - float(low) / 2) / (float(high) / 2 - float(low) / 2)
    assert np.allclose([0.5, 0.5], share.mean(axis=0), atol=0.03)
    assert np.allclose([1 / 12**0.5] * 2, share.std(axis=0), atol=0.02)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-np.inf, np.inf, (3,)),
        spaces.Box(np.array([0.0, -np.inf]), np.array([np.inf, 1.0]), dtype=np.float64),
        spaces.Box(-(2**62), 2**62, (1,), np.int64),
        spaces.Discrete(2**40),
    ],
)
def test_the_rest_is_what_the_space_samples(space: Any) -> None:
    """Unbounded boxes and ranges of more than 32 bits are drawn by a seeded copy of the space; it stays as it was."""
    space.seed(5)
    before = space.np_random.bit_generator.state
    drawn = alone(space, 8, 5)
    assert before == space.np_random.bit_generator.state
    space.seed(8)
    assert [plain(space, space.sample()) for _ in range(5)] == [plain(space, action) for action in drawn]


def test_a_policy_of_its_own_kind_for_each_row() -> None:
    """Its flags say that its actions need no check and its rows no copies; it crosses a process border."""
    policy = RandomPolicy(spaces.Discrete(1000))
    assert (True, True, False) == (policy.acts_within_space, policy.row_wise, policy.row_by_row)
    policy.seed(3)
    copy = pickle.loads(pickle.dumps(policy))
    assert [policy.get_action(None) for _ in range(70)] == [copy.get_action(None) for _ in range(70)]


def _many(space: Any, count: int) -> Any:
    policy = RandomPolicy(space)
    policy.seed_rows(np.ones(count, bool), np.arange(count, dtype=np.uint64))
    return policy.get_actions(np.zeros(count))[0]


# -- the words below -------------------------------------------------------------------------------------------------


@given(SEEDS, st.lists(st.integers(0, 9), min_size=1, max_size=5))
def test_words_do_not_depend_on_how_many_are_drawn_at_once(seed: int, counts: list[int]) -> None:
    """A stream is one sequence, however it is cut."""
    cut, whole = RowStreams(1), RowStreams(1)
    for streams in (cut, whole):
        streams.seed(ALL, np.array([seed], np.uint64))
    words = np.concatenate([cut.words(count) for count in counts], axis=1)
    assert whole.words(sum(counts)).tolist() == words.tolist()


def test_words_are_random_in_every_bit() -> None:
    """Half of the bits are set, in each place, over steps and over neighbouring seeds."""
    streams = RowStreams(1_000)
    streams.seed(np.ones(1_000, bool), np.arange(1_000, dtype=np.uint64))
    words = streams.words(50)
    for at in range(64):
        bits = (words >> np.uint64(at)) & np.uint64(1)
        assert np.allclose(0.5, bits.mean(), atol=0.02)
        assert np.corrcoef(bits[:, 0], bits[:, 1])[0, 1] < 0.15


def test_distributions() -> None:
    """Uniform, Gumbel and normal numbers have the mean and deviation that they should, and are finite at the ends."""
    streams = RowStreams(1)
    streams.seed(ALL, np.zeros(1, np.uint64))
    ends = np.array([[0, 2**64 - 1]], np.uint64)
    for numbers, mean, deviation in (
        (uniform(streams.words(40_000)), 0.5, 1 / 12**0.5),
        (gumbel(streams.words(40_000)), np.euler_gamma, np.pi / 6**0.5),
        (normal(streams.words(80_000)), 0.0, 1.0),
    ):
        assert (1, 40_000) == numbers.shape
        assert np.allclose([mean, deviation], [numbers.mean(), numbers.std()], atol=0.03)
    assert all(np.isfinite(function(ends)).all() for function in (uniform, gumbel, normal))
    assert np.all((uniform(ends) >= 0) & (uniform(ends) < 1))
