"""What is known of a built environment."""

from __future__ import annotations

import json
from typing import Any

import gymnasium
import pytest
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit

from rollout_cli.envs import describe_env, env_record, has_time_limit
from rollout_cli.errors import EnvLoadError, UnsupportedSpaceError
from tests.support.envs import ALL_SPACE_ENVS, ChainEnv, UnsupportedEnv


def test_spaces_and_limit() -> None:
    """The spaces are the environment's, the limit that of gymnasium.make."""
    env = gymnasium.make("CartPole-v1")
    spec = describe_env(env)
    assert (env.observation_space, env.action_space, 500) == (
        spec.observation_space,
        spec.action_space,
        spec.max_episode_length,
    )


@pytest.mark.parametrize(
    ("env", "limit"),
    [
        (ChainEnv(), None),
        (TimeLimit(ChainEnv(), 6), 6),
        (RecordEpisodeStatistics(TimeLimit(TimeLimit(ChainEnv(), 6), 9)), 6),
        (TimeLimit(gymnasium.make("CartPole-v1"), 20), 20),
        (gymnasium.make("CartPole-v1", max_episode_steps=30), 30),
        (gymnasium.make("CartPole-v1", max_episode_steps=-1), None),
        (gymnasium.make("CartPole-v1").unwrapped, None),
        (gymnasium.make("Blackjack-v1"), None),
    ],
)
def test_the_limit_is_what_is_enforced(env: Any, limit: int | None) -> None:
    """The smallest limit that a wrapper counts; what only the spec says has no effect and is not told."""
    assert limit == describe_env(env).max_episode_length
    assert (limit is not None) == has_time_limit(env)


@pytest.mark.parametrize("kind", ALL_SPACE_ENVS)
def test_all_supported_spaces(kind: Any) -> None:
    """Every space that has columns is described."""
    env = kind()
    assert env.observation_space == describe_env(env).observation_space


def test_unsupported_spaces_are_refused() -> None:
    """A space without columns is an error at once, which names it and belongs to the environment."""
    with pytest.raises(UnsupportedSpaceError, match="Sequence space at 'found'") as caught:
        describe_env(UnsupportedEnv())
    assert isinstance(caught.value, EnvLoadError)


def test_record() -> None:
    """The header has the id, the spec as it was made, the class, and the wrappers from the outside in."""
    record = env_record(gymnasium.make("CartPole-v1", max_episode_steps=12))
    assert "CartPole-v1" == record["id"]
    assert 12 == json.loads(record["spec_json"])["max_episode_steps"]
    assert "gymnasium.envs.classic_control.cartpole.CartPoleEnv" == record["class"]
    assert "gymnasium.wrappers.common.TimeLimit" == record["wrappers"][0]
    assert 12 == record["max_episode_length"]


def test_record_without_a_spec() -> None:
    """An environment that gymnasium did not make has neither id nor spec."""
    record = env_record(ChainEnv())
    assert (None, None, []) == (record["id"], record["spec_json"], record["wrappers"])
    assert "tests.support.envs.ChainEnv" == record["class"]


def test_record_of_a_spec_that_json_cannot_hold() -> None:
    """The spec is left out where it holds a callable; the id stays."""

    def build(**kwargs: Any) -> ChainEnv:
        return ChainEnv(**kwargs)

    gymnasium.register("Callable-v0", build)
    try:
        record = env_record(gymnasium.make("Callable-v0"))
    finally:
        gymnasium.registry.pop("Callable-v0")
    assert ("Callable-v0", None) == (record["id"], record["spec_json"])
