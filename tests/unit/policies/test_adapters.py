"""Adapted policies are supplied with what they lack, and refuse what they cannot do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rollout_cli.episode_batch import EnvSpec
from rollout_cli.errors import PolicyError, PolicyLoadError
from rollout_cli.generators import GeneratorSet
from rollout_cli.policies import Policy, adapt_policy, check_policy
from tests.support import policies as samples
from tests.support.envs import ALL_SPACE_ENVS, SpaceEnv
from tests.unit.policies.candidates import BATCH, ENV_SPEC, OBSERVATION, Lone


class WithReset(Lone):
    """Has a state and a reset that knows no rows."""

    def __init__(self) -> None:
        self.resets = 0

    def reset(self) -> None:
        self.resets += 1


class Batched:
    """Offers get_actions alone."""

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        return (observations[:, 0] > 0.5).astype(np.int64), {"sum": observations.sum(axis=1)}


@pytest.mark.parametrize("candidate", [Lone(), Batched(), samples.plain_policy, samples.PredictPolicy(ENV_SPEC)])
def test_whatever_is_adapted_keeps_the_protocol(candidate: Any) -> None:
    """The adapted policy has all methods, and they satisfy the contract."""
    policy = adapt_policy(candidate, ENV_SPEC)
    assert isinstance(policy, Policy)
    check_policy(policy, ENV_SPEC, list(BATCH))


def test_get_action_alone() -> None:
    """get_actions calls it row by row; infos that some rows lack are masked."""
    policy = adapt_policy(Lone(), ENV_SPEC)
    assert policy.row_wise  # type: ignore[attr-defined]
    assert (np.int64(0), {"first": pytest.approx(0.1)}) == policy.get_action(OBSERVATION)
    actions, infos = policy.get_actions(BATCH)
    assert [0, 1] == actions.tolist()
    assert np.int64 == actions.dtype
    assert np.allclose([0.1, 0.9], infos["first"])
    assert [True, False] == infos["big"].mask.tolist()
    assert 1 == infos["big"][1]


def test_the_wrapped_method_is_called_directly() -> None:
    """A thin wrapper costs a step no further call."""
    lone = Lone()
    assert lone.get_action == adapt_policy(lone, ENV_SPEC).get_action


def test_get_actions_alone() -> None:
    """get_action calls it with one row."""
    action, info = adapt_policy(Batched(), ENV_SPEC).get_action(BATCH[1])
    assert np.int64(1) == action
    assert np.float32(0.9) == info["sum"]


def test_reset_without_a_mask() -> None:
    """A reset that takes no mask is called for all rows, and refused where only some begin."""
    wrapped = WithReset()
    policy = adapt_policy(wrapped, ENV_SPEC)
    policy.reset()
    policy.reset(np.array([True]))
    policy.reset(np.array([False, False]))
    assert 2 == wrapped.resets
    with pytest.raises(PolicyError, match="all rows at once"):
        policy.reset(np.array([True, False]))


def test_a_state_is_not_shared_by_rows() -> None:
    """A policy that resets but has no get_actions refuses a batch of more than one row."""
    policy = adapt_policy(WithReset(), ENV_SPEC)
    assert [1] == policy.get_actions(BATCH[1:])[0].tolist()
    assert not policy.row_wise  # type: ignore[attr-defined]
    with pytest.raises(PolicyError, match="one episode at a time"):
        policy.get_actions(BATCH)


def test_own_seed_methods_stay() -> None:
    """Seed and seed_rows of the wrapped policy are those of the adapted one; an attribute of that name is not."""

    class Seeded(Lone):
        def __init__(self) -> None:
            self.seeds: list[int] = []
            self.seed_rows = 3

        def seed(self, seed: int) -> None:
            self.seeds.append(seed)

    wrapped = Seeded()
    policy: Any = adapt_policy(wrapped, ENV_SPEC)
    policy.seed(8)
    assert [8] == wrapped.seeds
    assert not hasattr(policy, "seed_rows")


def test_parameters() -> None:
    """Without set_param_values only an empty set is taken; with it, it gets them."""
    policy = adapt_policy(Lone(), ENV_SPEC)
    policy.set_param_values(policy.get_param_values())
    with pytest.raises(PolicyError, match="no set_param_values"):
        policy.set_param_values({"gain": 2.0})


@pytest.mark.parametrize("kind", ALL_SPACE_ENVS)
def test_every_space_goes_through_rows(kind: type[SpaceEnv]) -> None:
    """A row-by-row batch takes every observation space apart and puts every action space together."""
    env = kind()  # type: ignore[call-arg]
    env.action_space.seed(0)
    action = env.action_space.sample()
    seen: list[bool] = []

    def act(observation: Any) -> Any:
        seen.append(env.observation_space.contains(observation))
        return action

    env_spec = EnvSpec(env.observation_space, env.action_space)
    check_policy(adapt_policy(act, env_spec), env_spec, [env.observation_space.sample() for _ in range(3)])
    assert [True] * 9 == seen


def test_callable_with_info() -> None:
    """A callable may give (action, info)."""
    policy = adapt_policy(lambda observation: (2, {"why": "so"}), ENV_SPEC)
    assert (2, {"why": "so"}) == policy.get_action(OBSERVATION)
    actions, infos = policy.get_actions(BATCH)
    assert [2, 2] == actions.tolist()
    assert ["so", "so"] == infos["why"].tolist()


def test_callable_whose_action_looks_like_a_pair() -> None:
    """For a Tuple space of something and a Dict, the pair is the action."""
    space = spaces.Tuple((spaces.Discrete(2), spaces.Dict({"x": spaces.Discrete(2)})))
    action = (1, {"x": 0})
    policy = adapt_policy(lambda observation: action, EnvSpec(ENV_SPEC.observation_space, space))
    assert (action, {}) == policy.get_action(OBSERVATION)


def test_deterministic_by_keyword() -> None:
    """A keyword `deterministic` is given."""

    class Keyword(samples.LinearPolicy):
        def get_action(self, observation: Any, *, deterministic: bool = False) -> tuple[Any, dict[str, Any]]:
            return np.int64(deterministic), {}

        def get_actions(self, observations: Any, deterministic: bool = False) -> tuple[Any, dict[str, Any]]:
            return np.full(len(observations), int(deterministic)), {}

    policy = adapt_policy(Keyword(ENV_SPEC), ENV_SPEC, deterministic=True)
    assert 1 == policy.get_action(OBSERVATION)[0]
    assert [1, 1] == policy.get_actions(BATCH)[0].tolist()
    called = adapt_policy(lambda observation, deterministic=False: int(deterministic), ENV_SPEC, deterministic=True)
    assert 1 == called.get_action(OBSERVATION)[0]


def test_deterministic_by_attribute() -> None:
    """A boolean attribute `deterministic` is set."""
    policy: Any = samples.LinearPolicy(ENV_SPEC)
    policy.deterministic = False
    adapt_policy(policy, ENV_SPEC, deterministic=True)
    assert policy.deterministic is True


@pytest.mark.parametrize("candidate", [samples.LinearPolicy(ENV_SPEC), Lone(), samples.plain_policy])
def test_deterministic_is_refused_where_there_is_no_such_mode(candidate: Any) -> None:
    """A policy that cannot be deterministic is not run as if it were."""
    with pytest.raises(PolicyLoadError, match="no deterministic mode") as caught:
        adapt_policy(candidate, ENV_SPEC, deterministic=True)
    assert "deterministic" in caught.value.hint


def test_the_environments_spaces_are_not_the_policys() -> None:
    """The search for generators finds those of the wrapped policy, and no space of the environment below it."""

    class Drawing(Lone):
        def __init__(self) -> None:
            self.rng = np.random.default_rng(0)

    space = spaces.Discrete(4, seed=0)
    policy = adapt_policy(Drawing(), EnvSpec(ENV_SPEC.observation_space, space))
    assert ["policy.wrapped.rng"] == GeneratorSet({"policy": policy}).paths
