"""The built-in random policy."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rollout_cli.episode_batch import EnvSpec
from rollout_cli.errors import PolicyError, PolicyLoadError
from rollout_cli.generators import GeneratorSet
from rollout_cli.policies import Policy, check_policy, policy_source
from rollout_cli.policies.random import RandomPolicy
from rollout_cli.spaces import map_tree, tree_leaves

MIXED = np.array([-np.inf, 2.0, -np.inf, -1.0], np.float32), np.array([np.inf, np.inf, 3.0, 4.0], np.float32)

SPACES: dict[str, spaces.Space[Any]] = {
    "box": spaces.Box(-2.0, 5.0, (2, 3), np.float32),
    "box of different bounds": spaces.Box(np.array([0.0, -9.0]), np.array([1.0, 9.0]), dtype=np.float64),
    "0-d box": spaces.Box(0.0, 1.0, (), np.float32),
    "unbounded box": spaces.Box(-np.inf, np.inf, (3,), np.float64),
    "0-d unbounded box": spaces.Box(-np.inf, np.inf, (), np.float32),
    "half-bounded box": spaces.Box(*MIXED),
    "image": spaces.Box(0, 255, (8, 8, 3), np.uint8),
    "signed box": spaces.Box(-3, 4, (5,), np.int16),
    "half-bounded integers": spaces.Box(-np.inf, 5, (2,), np.int64),
    "64-bit box": spaces.Box(-(2**63), 2**63 - 1, (2,), np.int64),
    "bool box": spaces.Box(0, 1, (4,), np.bool_),
    "empty box": spaces.Box(0.0, 1.0, (0,), np.float32),
    "discrete": spaces.Discrete(4),
    "discrete from -1": spaces.Discrete(3, start=-1),
    "multi-discrete": spaces.MultiDiscrete([3, 1, 7]),
    "multi-discrete of two axes": spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[1, 0], [-4, 2]])),
    "multi-binary": spaces.MultiBinary((2, 3)),
    "text": spaces.Text(6, min_length=0, charset="xyz"),
    "dict": spaces.Dict({"turn": spaces.Discrete(3), "in": spaces.Dict({"push": spaces.Box(-1.0, 1.0, ())})}),
    "tuple": spaces.Tuple((spaces.Discrete(2), spaces.Text(3), spaces.Tuple((spaces.MultiBinary(2),)))),
    "empty dict": spaces.Dict({}),
}

each_space = pytest.mark.parametrize("space", SPACES.values(), ids=SPACES.keys())


def episode(policy: RandomPolicy, seed: int, length: int = 150) -> list[Any]:
    policy.seed(seed)
    policy.reset()
    return [policy.get_action(None)[0] for _ in range(length)]


def leaves_equal(expected: Any, actual: Any) -> bool:
    pairs = zip(tree_leaves(expected), tree_leaves(actual), strict=True)
    return all(np.array_equal(left, right) for left, right in pairs)


@each_space
def test_every_action_is_in_the_space(space: spaces.Space[Any]) -> None:
    """Every action is a sample of the space, over several blocks, in the type that the space's own sample has.

    But for those of a Discrete, which are Python's integers: these are looked up in the space several times as fast.
    """
    actions = episode(RandomPolicy(space), 0)
    assert all(space.contains(action) for action in actions)
    expected = [int if isinstance(leaf, np.int64) else type(leaf) for leaf in tree_leaves(space.sample())]
    assert expected == [type(leaf) for leaf in tree_leaves(actions[0])]


def test_what_is_prepared_changes_no_action() -> None:
    """Episodes whose seeds were prepared, run to the end of their second block or not, are those of their seeds."""
    plain, prepared = RandomPolicy(spaces.Discrete(5)), RandomPolicy(spaces.Discrete(5))
    assert prepared.shortcut.prepare is not None
    prepared.shortcut.prepare([7, 8, 9])
    for seed in (8, 7, 8, 11):
        assert episode(plain, seed) == episode(prepared, seed)


def test_the_shortcut_gives_what_get_action_gives() -> None:
    """The same actions, one way or the other, and in turns."""
    policy = RandomPolicy(spaces.Discrete(5))
    expected = episode(policy, 3)
    policy.seed(3)
    policy.reset()
    one_by_one = [policy.shortcut.act(None) if at % 2 else policy.get_action(None)[0] for at in range(len(expected))]
    assert expected == one_by_one
    assert (4, {}) == policy.shortcut.pair(4)


@each_space
def test_an_episode_follows_from_its_seed(space: spaces.Space[Any]) -> None:
    """One seed gives one episode, whatever was drawn before it, in this policy and in another."""
    first = RandomPolicy(space)
    expected = episode(first, 7)
    episode(first, 8, length=11)
    assert leaves_equal(tuple(expected), tuple(episode(first, 7)))
    assert leaves_equal(tuple(expected), tuple(episode(RandomPolicy(space), 7)))


@pytest.mark.parametrize("name", ["box", "discrete", "unbounded box", "dict", "text"])
def test_seeds_give_different_episodes(name: str) -> None:
    """Two seeds give different actions."""
    policy = RandomPolicy(SPACES[name])
    assert not leaves_equal(tuple(episode(policy, 0)), tuple(episode(policy, 1)))


@each_space
def test_rows_are_the_episodes_of_their_seeds(space: spaces.Space[Any]) -> None:
    """Row j of a batch acts bit for bit as get_action under its seed, also where its neighbours start anew."""
    if not tree_leaves(space.sample()):
        return
    policy, alone = RandomPolicy(space), RandomPolicy(space)
    observations = np.zeros((3, 2))
    seeds = np.array([11, 12, 13])
    policy.seed_rows(np.ones(3, bool), seeds)
    policy.reset(np.ones(3, bool))
    begun = [policy.get_actions(observations)[0] for _ in range(70)]
    second_only = np.array([False, True, False])
    policy.seed_rows(second_only, np.array([0, 99, 0]))
    policy.reset(second_only)
    later = [policy.get_actions(observations)[0] for _ in range(30)]
    rows = [[map_tree(lambda leaf, row=row: leaf[row], tree) for tree in begun + later] for row in range(3)]
    assert leaves_equal(tuple(episode(alone, 11, length=100)), tuple(rows[0]))
    expected = episode(alone, 12, length=70) + episode(alone, 99, length=30)
    assert leaves_equal(tuple(expected), tuple(rows[1]))
    assert leaves_equal(tuple(episode(alone, 13, length=100)), tuple(rows[2]))


def test_reset_drops_what_was_drawn_ahead() -> None:
    """After a reset without a seed the generator goes on, and the rest of its block is not used."""
    policy = RandomPolicy(SPACES["discrete"])
    ahead = episode(policy, 5, length=128)
    policy.seed(5)
    policy.get_action(None)
    policy.reset()
    assert ahead[64:] == [policy.get_action(None)[0] for _ in range(64)]


def test_a_seed_alone_begins_anew() -> None:
    """What was drawn ahead under another seed is not used, with or without a reset."""
    policy = RandomPolicy(SPACES["discrete"])
    expected = episode(policy, 5, length=40)
    episode(policy, 6, length=3)
    policy.seed(5)
    assert expected == [policy.get_action(None)[0] for _ in range(40)]
    for seed in (6, 5):
        policy.seed_rows(np.ones(1, bool), [seed])
        rows = [policy.get_actions(np.zeros((1, 2)))[0][0] for _ in range(40)]
    assert expected == rows


def test_distribution_of_a_bounded_box() -> None:
    """A bounded Box is drawn uniformly: mean and spread are those of the interval."""
    actions = np.array(episode(RandomPolicy(spaces.Box(-2.0, 4.0, (1,), np.float64)), 0, length=20_000))
    assert np.isclose(1.0, actions.mean(), atol=0.05)
    assert np.isclose(6.0 / np.sqrt(12), actions.std(), atol=0.05)


def test_distribution_of_a_half_bounded_box() -> None:
    """Each coordinate has the distribution that Box gives its kind of interval."""
    actions = np.array(episode(RandomPolicy(SPACES["half-bounded box"]), 0, length=20_000))
    assert np.allclose([0.0, 3.0, 2.0, 1.5], actions.mean(axis=0), atol=0.06)
    assert np.allclose([1.0, 1.0, 1.0, 5.0 / np.sqrt(12)], actions.std(axis=0), atol=0.06)


def test_distribution_of_half_bounded_integers() -> None:
    """Integers with one bound are the floor of gymnasium's draws: the bound itself comes with 1 - 1/e."""
    for low, high in ((3, np.inf), (-np.inf, 3)):
        actions = np.array(episode(RandomPolicy(spaces.Box(low, high, (1,), np.int32)), 0, length=20_000))
        assert np.isclose(1 - np.exp(-1), (actions == 3).mean(), atol=0.02)


@pytest.mark.parametrize("name", ["discrete from -1", "signed box", "bool box"])
def test_every_integer_is_as_likely(name: str) -> None:
    """All values of an integer leaf come at even odds, its ends included."""
    space = SPACES[name]
    values, counts = np.unique(np.array(episode(RandomPolicy(space), 0, length=8_000)), return_counts=True)
    assert np.isclose(counts.min() / counts.max(), 1.0, atol=0.12)
    low = space.start if isinstance(space, spaces.Discrete) else int(space.low.flat[0])  # type: ignore[attr-defined]
    assert low == values[0]


def test_it_satisfies_the_protocol() -> None:
    """It is a Policy, its batch is what the space needs, and it calls itself row-wise."""
    env_spec = EnvSpec(spaces.Box(0.0, 1.0, (2,)), SPACES["dict"])
    policy = RandomPolicy(env_spec.action_space)
    assert isinstance(policy, Policy)
    check_policy(policy, env_spec, [env_spec.observation_space.sample() for _ in range(5)])
    assert policy.row_wise


def test_it_has_no_parameters() -> None:
    """An empty set of parameters is accepted, any other is an error."""
    policy = RandomPolicy(SPACES["discrete"])
    policy.set_param_values(policy.get_param_values())
    with pytest.raises(PolicyError, match="no parameters"):
        policy.set_param_values({"gain": 1.0})


def test_its_generators_are_seeded_once() -> None:
    """The search for generators finds none in it, since `seed` sets them."""
    assert GeneratorSet({"policy": RandomPolicy(SPACES["discrete"])}).paths == []


def test_it_leaves_the_space_alone() -> None:
    """The space that it draws from never draws itself."""
    space = spaces.Discrete(3)
    episode(RandomPolicy(space), 0)
    assert space._np_random is None


def test_it_can_be_pickled_in_mid_block() -> None:
    """A copy goes on where the original stands."""
    policy = RandomPolicy(SPACES["tuple"])
    episode(policy, 3, length=10)
    copy = pickle.loads(pickle.dumps(policy))
    expected = [policy.get_action(None)[0] for _ in range(100)]
    assert leaves_equal(tuple(expected), tuple(copy.get_action(None)[0] for _ in range(100)))


def test_source() -> None:
    """The SPEC `random` names it; it refuses to be deterministic and takes nothing after its name."""
    env_spec = EnvSpec(spaces.Box(0.0, 1.0, (2,)), spaces.Discrete(2))
    source = pickle.loads(pickle.dumps(policy_source("random")))
    assert isinstance(source.load(env_spec), RandomPolicy)
    assert "random" == source.label
    assert {"spec": "random", "path": None, "sha256": None} == source.describe()
    with pytest.raises(PolicyLoadError, match="deterministic") as caught:
        source.load(env_spec, deterministic=True)
    assert "--deterministic" in caught.value.hint
    with pytest.raises(PolicyLoadError, match="'3'"):
        policy_source("random:3")


def test_rows_that_begin_anew_after_one_step() -> None:
    """Nothing that was made for their first seeds is used for the next ones."""
    policy, fresh = RandomPolicy(spaces.Discrete(1000)), RandomPolicy(spaces.Discrete(1000))
    for seeds in (np.arange(9), np.arange(9) + 50):
        policy.begin_rows(np.arange(9), seeds, 9)
        actions, _ = policy.get_actions(np.zeros(9))
    fresh.begin_rows(np.arange(9), np.arange(9) + 50, 9)
    assert fresh.get_actions(np.zeros(9))[0].tolist() == actions.tolist()


def test_rows_that_begin_while_others_are_drawn_ahead() -> None:
    """Steps are drawn ahead where no row begins; one that begins, at any step, changes nothing for the others."""
    rows, seeds = RandomPolicy(spaces.Discrete(1000)), [3, 4, 5]
    ones = [RandomPolicy(spaces.Discrete(1000)) for _ in seeds]
    rows.seed_rows(np.ones(3, bool), np.array(seeds))
    for one, seed in zip(ones, seeds, strict=True):
        one.seed(seed)
    for step in range(70):
        if step in {1, 2, 9, 40}:
            begun = step % 3
            rows.begin_rows(np.array([begun]), np.array([step]), 3)
            ones[begun].seed(step)
        actions, _ = rows.get_actions(np.zeros((3, 1)))
        assert [one.get_action(None)[0] for one in ones] == actions.tolist()
