"""Exploration around a policy: its share and spread, the same in a row as alone, and what it refuses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings

from rollout_cli.episodes.batch import EnvSpec
from rollout_cli.episodes.spaces import SpaceRows
from rollout_cli.errors import PolicyLoadError
from rollout_cli.policies.adapt import adapt_policy
from rollout_cli.policies.explore import EpsilonPolicy, ExploringSource, NoisyPolicy
from rollout_cli.policies.policy import AdaptedPolicy
from rollout_cli.policies.random import RandomPolicy
from rollout_cli.policies.schemes.constant import ConstantPolicy
from tests.helpers.errors import raises
from tests.helpers.strategies import any_space
from tests.policies.checking import check_policy

BOX = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))
SEEDS = [5, 6, 2**64 - 1]


def seeded(policy: AdaptedPolicy, seed: int) -> AdaptedPolicy:
    assert policy.seed is not None
    policy.seed(seed)
    policy.reset()
    return policy


def check_rows_act_as_alone(space: Any, make: Callable[[], AdaptedPolicy], steps: int = 30) -> None:
    rows, policy = SpaceRows(space), make()
    assert policy.row_wise
    assert policy.seed_rows is not None
    policy.seed_rows(np.ones(3, bool), np.array(SEEDS, np.uint64))
    batches = [policy.get_actions(np.zeros(3)) for _ in range(steps)]
    for row, seed in enumerate(SEEDS):
        one = seeded(make(), seed)
        for actions, infos in batches:
            action, info = one.get_action(0.0)
            assert space.contains(action)
            columns = (rows.columns(tree) for tree in (action, rows.split(actions)[row]))
            assert [np.asarray(value).tolist() for value in next(columns)] == [
                np.asarray(value).tolist() for value in next(columns)
            ]
            assert info == {key: values[row] for key, values in infos.items()}


@settings(max_examples=20)
@given(any_space())
def test_a_row_explores_as_alone(space: Any) -> None:
    """In every space, what one row does follows from its seed alone."""
    check_rows_act_as_alone(space, lambda: EpsilonPolicy(RandomPolicy(space), space, 0.5))


def test_a_row_is_noisy_as_alone() -> None:
    """The same of Gaussian noise, also with uniform actions around it."""
    action = np.array([0.5, 3.0], np.float32)
    check_rows_act_as_alone(BOX, lambda: NoisyPolicy(ConstantPolicy(BOX, action), BOX, 0.2))
    check_rows_act_as_alone(BOX, lambda: EpsilonPolicy(NoisyPolicy(RandomPolicy(BOX), BOX, 0.2), BOX, 0.3))


def test_epsilon_is_the_share_of_uniform_actions_among_all() -> None:
    """P(greedy) = 1 - e + e/n, and `explored` says which steps were drawn: within five standard deviations."""
    n_steps, epsilon, space = 20_000, 0.3, spaces.Discrete(4)
    policy = seeded(EpsilonPolicy(ConstantPolicy(space, np.int64(2)), space, epsilon), 1)
    acted = [policy.get_action(0.0) for _ in range(n_steps)]
    explored = np.array([info["explored"] for _, info in acted])
    actions = np.array([action for action, _ in acted])
    for count, share in ((explored.sum(), epsilon), ((actions == 2).sum(), 1 - epsilon + epsilon / 4)):
        assert abs(count - n_steps * share) < 5 * math.sqrt(n_steps * share * (1 - share))
    assert (actions[~explored] == 2).all()
    assert np.bincount(actions[explored], minlength=4).min() > epsilon * n_steps / 4 * 0.9


def test_the_draws_are_others_than_those_of_the_policy() -> None:
    """A policy that draws from the seed that it gets must not decide together with the exploration."""
    space = spaces.Discrete(1000)
    policy = seeded(EpsilonPolicy(RandomPolicy(space), space, 0.5), 1)
    alone = seeded(RandomPolicy(space), 1)
    acted = [(policy.get_action(0.0), alone.get_action(0.0)[0]) for _ in range(2000)]
    assert all((action == own) != info["explored"] for (action, info), own in acted if action != own)
    own_when = [
        [own for (_, info), own in acted if info["explored"] is explored] for explored in (True, False)
    ]
    assert abs(np.mean(own_when[0]) - np.mean(own_when[1])) < 65  # Five standard deviations.


def test_exploration_around_a_policy_that_explores_by_itself() -> None:
    """Each has a stream of its own, so their shares add up, and `explored` says where either drew, in batches too."""
    space, n_steps = spaces.Discrete(1000), 4000

    def make() -> AdaptedPolicy:
        own = EpsilonPolicy(ConstantPolicy(space, np.int64(2)), space, 0.5, "exploration rate")
        return EpsilonPolicy(own, space, 0.2)

    policy = seeded(make(), 1)
    acted = [policy.get_action(0.0) for _ in range(n_steps)]
    explored = np.array([info["explored"] for _, info in acted])
    assert all(action == 2 or info["explored"] for action, info in acted)
    assert abs(explored.mean() - 0.6) < 5 * math.sqrt(0.6 * 0.4 / n_steps)
    check_rows_act_as_alone(space, make)


def test_a_policys_own_info_explored_is_kept_alone_and_in_rows() -> None:
    """Where it is true, so is that of the run, also of a policy with get_actions alone."""

    class Own:
        def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
            return np.zeros((len(observations), 2), np.float32), {
                "explored": np.ones(len(observations), bool)
            }

    policy = EpsilonPolicy(adapt_policy(Own(), EnvSpec(BOX, BOX)), BOX, 0.0)
    policy.seed(1)
    policy.seed_rows(np.ones(2, bool), np.array([1, 2], np.uint64))
    assert policy.get_action(BOX.low)[1]["explored"] is True
    assert policy.get_actions(np.stack([BOX.low] * 2))[1]["explored"].all()


def test_noise_is_in_units_of_half_the_width_and_clipped() -> None:
    """Its standard deviation is that of the option times (high - low) / 2, in each number; none leaves the Box."""
    middle = np.array([0.0, 5.0], np.float32)
    policy = seeded(NoisyPolicy(ConstantPolicy(BOX, middle), BOX, 0.1), 3)
    actions = np.array([policy.get_action(0.0)[0] for _ in range(5000)])
    assert actions.dtype == np.float32
    np.testing.assert_allclose(actions.std(axis=0), [0.2, 0.5], rtol=0.05)
    np.testing.assert_allclose(actions.mean(axis=0), middle, atol=0.04)
    wide = seeded(NoisyPolicy(ConstantPolicy(BOX, middle), BOX, 5.0), 3)
    actions = np.array([wide.get_action(0.0)[0] for _ in range(200)])
    assert (actions.min(axis=0) == BOX.low).all()
    assert (actions.max(axis=0) == BOX.high).all()


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3),
        spaces.Box(-np.inf, 1.0, (2,)),
        spaces.Box(0, 255, (2,), np.uint8),
        spaces.Tuple((BOX,)),
    ],
)
def test_noise_needs_a_box_with_bounds(space: Any) -> None:
    with raises(PolicyLoadError, "action-noise-space"):
        NoisyPolicy(RandomPolicy(space), space, 0.1)


class Recurrent:
    """It counts its steps, and needs action masks where `predict` takes them."""

    def __init__(self) -> None:
        self.params = {"more": 1}

    def reset(self) -> None:
        self.steps = 0

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        self.steps += 1
        return np.array([self.steps / 8, 2.0], np.float32), {"steps": self.steps}

    def get_param_values(self) -> Any:
        return self.params

    def set_param_values(self, params: Any) -> None:
        self.params = params


class Source:
    def load(self, env_spec: EnvSpec, *, deterministic: bool = False) -> AdaptedPolicy:
        return adapt_policy(Recurrent(), env_spec, deterministic=deterministic)

    def describe(self) -> dict[str, Any]:
        return {"scheme": None}


def test_all_else_is_the_policys_own() -> None:
    """Its reset, infos, parameters, record, and that it acts on one observation."""
    source, env_spec = ExploringSource(Source(), 0.0, 0.0), EnvSpec(BOX, BOX)
    policy = source.load(env_spec)
    check_policy(policy, env_spec, [BOX.low] * 3)
    assert (policy.row_by_row, policy.resets, type(policy.wrapped)) == (True, True, Recurrent)
    assert {"scheme": None} == source.describe()
    policy.reset()
    action, info = policy.get_action(BOX.low)
    assert ([0.125, 2.0], {"steps": 1, "explored": False}) == (action.tolist(), info)
    policy.set_param_values({"more": 2})
    assert {"more": 2} == policy.get_param_values() == policy.wrapped.params


def test_actions_of_another_shape_are_left_for_the_recorder() -> None:
    """One action for two rows is no action for each, whether a row explores or not."""
    inner = ConstantPolicy(BOX, BOX.low)
    inner.get_actions = lambda observations: (BOX.low, {})  # type: ignore[method-assign]
    policy = EpsilonPolicy(inner, BOX, 0.5)
    assert policy.seed_rows is not None
    policy.seed_rows(np.ones(2, bool), np.array(SEEDS[:2], np.uint64))
    for _ in range(4):
        assert (2,) == np.shape(policy.get_actions(np.zeros(2))[0])


def test_a_row_of_another_type_does_not_decide_that_of_the_others() -> None:
    """As a network gives them where an integer has no room in one row."""
    space = spaces.Box(0, 255, (1,), np.uint8)
    inner, given = ConstantPolicy(space, space.low), [np.zeros(1, np.uint8), np.array([300.0])]
    inner.get_actions = lambda observations: (given, {})  # type: ignore[method-assign]
    policy = EpsilonPolicy(inner, space, 0.5)
    assert policy.seed_rows is not None
    policy.seed_rows(np.ones(2, bool), np.array(SEEDS[:2], np.uint64))
    for _ in range(8):
        actions, infos = policy.get_actions(np.zeros(2))
        expected = [np.uint8, np.uint8 if infos["explored"][1] else float]
        assert expected == [action.dtype for action in actions]


def test_a_policy_that_needs_masks_gets_no_uniform_actions() -> None:
    """They might be invalid; noise hands the masks on."""
    inner = ConstantPolicy(BOX, BOX.low)
    inner.takes_masks = True
    inner.act = lambda observation, masks: (BOX.low, {"masks": masks})  # type: ignore[method-assign]
    policy = NoisyPolicy(inner, BOX, 0.1)
    assert (True, {"masks": "masks"}) == (policy.takes_masks, policy.act(0.0, "masks")[1])
    with raises(PolicyLoadError, "policy-masks"):
        EpsilonPolicy(inner, BOX, 0.1)
