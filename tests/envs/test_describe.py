"""The facts about a built environment, and how native vector environments are built."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import gymnasium
import pytest
from gymnasium.vector import SyncVectorEnv, VectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit

from rollout_cli.envs.describe import describe_env, env_spec_of, time_limit_of
from rollout_cli.envs.source import as_env_source, build_native, env_source
from rollout_cli.errors import EnvLoadError
from tests.helpers.errors import raises
from tests.workers.worlds import ChainEnv


def test_spaces_and_limit() -> None:
    """The spaces are the environment's, the limit the lower one of its own and the run's."""
    env = env_source("CartPole-v1").build()
    spec = env_spec_of(env)
    assert (env.observation_space, env.action_space) == (spec.observation_space, spec.action_space)
    limits = [env_spec_of(env, limit).max_episode_length for limit in (None, float("inf"), 7, 900)]
    assert [500, 500, 7, 500] == limits
    assert 7 == env_spec_of(ChainEnv(), 7).max_episode_length


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
        (env_source("CartPole-v1").build(), 500),
        (env_source("CartPole-v1", {"max_episode_steps": 30}).build(), 30),
        (env_source("CartPole-v1", {"max_episode_steps": -1}).build(), None),
        (env_source("Blackjack-v1").build(), None),
        (gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point"), 500),
        (
            gymnasium.make_vec(
                "CartPole-v1", 2, vectorization_mode="vector_entry_point", max_episode_steps=9
            ),
            9,
        ),
        (SyncVectorEnv([ChainEnv]), None),
    ],
)
def test_the_limit(env: Any, limit: int | None) -> None:
    """The lowest of the TimeLimit wrappers, or the spec's where the environment was built without them."""
    assert limit == time_limit_of(env)


@pytest.mark.parametrize("arguments", [{}, {"max_episode_steps": 12}, {"sutton_barto_reward": True}])
def test_the_record_is_the_original_spec(arguments: Any) -> None:
    """What the environment is built without for speed is in the recorded spec all the same."""
    made = describe_env(gymnasium.make("CartPole-v1", **arguments))
    built = describe_env(env_source("CartPole-v1", arguments).build())
    for name in ("id", "class", "max_episode_length"):
        assert made[name] == built[name]
    assert json.loads(made["spec_json"]) == json.loads(built["spec_json"])
    assert made["render_fps"] == built["render_fps"] == 50
    assert [] == built["wrappers"]
    again = gymnasium.make(gymnasium.envs.registration.EnvSpec.from_json(built["spec_json"]))
    assert made["max_episode_length"] == time_limit_of(again)


def test_the_record_of_wrappers_and_of_nothing() -> None:
    """Wrappers from the outside in; without a spec neither id nor JSON."""
    record = describe_env(TimeLimit(ChainEnv(), 5))
    assert (None, None, 5) == (record["id"], record["spec_json"], record["max_episode_length"])
    assert ["gymnasium.wrappers.common.TimeLimit"] == record["wrappers"]
    assert "tests.workers.worlds.ChainEnv" == record["class"]


def test_the_record_of_a_vector_environment() -> None:
    """Its rows, and how they are reset, are there too."""
    record = describe_env(gymnasium.make_vec("CartPole-v1", 4, vectorization_mode="vector_entry_point"))
    # gymnasium 1.0 does not say it.
    mode = "NextStep" if hasattr(gymnasium.vector, "AutoresetMode") else None
    assert ("CartPole-v1", 4, mode, 500) == tuple(
        record[name] for name in ("id", "num_envs", "autoreset_mode", "max_episode_length")
    )


def test_the_record_of_a_spec_that_json_cannot_hold() -> None:
    """The JSON is left out; the id stays."""

    def make(**kwargs: Any) -> ChainEnv:
        return ChainEnv(**kwargs)

    gymnasium.register("Callable-v0", make)
    try:
        record = describe_env(env_source("Callable-v0").build())
    finally:
        gymnasium.registry.pop("Callable-v0")
    assert ("Callable-v0", None) == (record["id"], record["spec_json"])


# -- native vector environments ----------------------------------------------------------------------------------------


class Modes(SyncVectorEnv):
    """Resets its rows in any mode."""

    def __init__(self, num_envs: int, autoreset_mode: Any = "NextStep") -> None:
        super().__init__([ChainEnv] * num_envs, autoreset_mode=autoreset_mode)


class OwnMode(SyncVectorEnv):
    """Resets its rows in one mode."""

    def __init__(self, num_envs: int) -> None:
        super().__init__([ChainEnv] * num_envs)


class OtherModes(SyncVectorEnv):
    """Takes a mode, but not every one, as ALE up to 0.12 does."""

    def __init__(self, num_envs: int, autoreset_mode: Any = "SameStep") -> None:
        if autoreset_mode is gymnasium.vector.AutoresetMode.DISABLED:
            raise ValueError("Invalid autoreset_mode: Disabled")
        super().__init__([ChainEnv] * num_envs, autoreset_mode=autoreset_mode)


def mode(env: VectorEnv[Any, Any, Any]) -> str:
    return str(env.metadata["autoreset_mode"].value)


def test_a_native_environment_is_asked_not_to_reset_itself() -> None:
    """Only where it can be, and nothing else is asked for."""
    assert "Disabled" == mode(build_native(as_env_source(Modes), 3, 0))
    same_step = replace(as_env_source(Modes), kwargs={"autoreset_mode": "SameStep"})
    assert "SameStep" == mode(build_native(same_step, 3, 0))
    assert "NextStep" == mode(build_native(as_env_source(OwnMode), 3, 0))
    assert "SameStep" == mode(build_native(as_env_source(OtherModes), 3, 0))
    cartpole = build_native(env_source("CartPole-v1", {"max_episode_steps": 9}), 5, 0)
    assert ("NextStep", 5, 9) == (mode(cartpole), cartpole.num_envs, time_limit_of(cartpole))


def seeded(num_envs: int, seed: int = 42, **others: Any) -> Any:
    env = OwnMode(num_envs)
    env.metadata = {**env.metadata, "given": seed}
    return env


def test_a_native_environment_that_takes_a_seed_gets_one() -> None:
    """Unless the arguments have it; what is recorded of an environment does not have it."""
    sources = [replace(as_env_source(seeded), kwargs=kwargs) for kwargs in ({}, {"seed": 3})]
    built = [build_native(source, 2, 7) for source in sources]
    assert [7, 3] == [env.metadata["given"] for env in built]
    gymnasium.register("Seeded-v0", vector_entry_point="tests.envs.test_describe:seeded")
    try:
        built = [build_native(env_source("Seeded-v0", kwargs), 2, 7) for kwargs in ({}, {"seed": 3})]
    finally:
        gymnasium.registry.pop("Seeded-v0")
    assert [7, 3] == [env.metadata["given"] for env in built]
    assert [False, True] == ['"seed"' in describe_env(env)["spec_json"] for env in built]


def single_rows(num_envs: int) -> Any:
    return OwnMode(num_envs + 1)


@pytest.mark.parametrize(
    ("source", "error", "hint"),
    [
        (env_source("Blackjack-v1"), ("env-not-vector", "Blackjack-v1"), 'vectorization="native"'),
        (as_env_source(ChainEnv), ("env-not-vector", "'ChainEnv'"), 'vectorization="native"'),
        (as_env_source(ChainEnv()), ("env-not-vector", "'ChainEnv'"), "num_envs"),
        (as_env_source(lambda num_envs: 3), ("env-not-vector", "int"), "num_envs"),
        (as_env_source(single_rows), ("env-row-count", 3, 2), "num_envs"),
        (replace(as_env_source(Modes), kwargs={"autoreset_mode": "x"}), ("env-build", "ValueError"), ""),
    ],
)
def test_native_environments_that_are_refused(source: Any, error: tuple[Any, ...], hint: str) -> None:
    """Every way to fail is one clear line, with what to do next."""
    with raises(EnvLoadError, *error) as caught:
        build_native(source, 2, 0)
    assert "\n" not in caught.value.message
    assert caught.value.hint
    assert hint in caught.value.hint
