"""`check` over the environments of the gallery: it says nothing of what is sound, and finds what models lack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import pytest
import stable_baselines3
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

import rollout_cli.run.check as module
from rollout_cli.errors import PolicyLoadError
from rollout_cli.options.config import CollectConfig
from rollout_cli.run.check import check
from tests.helpers.errors import raises

SOUND: dict[str, dict[str, Any]] = {
    **{
        name: {}
        for name in (
            *("CartPole-v1", "MountainCarContinuous-v0", "Acrobot-v1", "Pendulum-v1"),
            *("Blackjack-v1", "Taxi-v4", "FrozenLake-v1"),
            *("LunarLander-v3", "HalfCheetah-v5", "Humanoid-v5"),
            *("MiniGrid-Empty-5x5-v0", "BabyAI-GoToObj-v0"),
        )
    },
    "LunarLander-v3, continuous": {"env_kwargs": {"continuous": True}},
    "BipedalWalker-v3": {"fresh_env": True},
    # Their episodes are longer than these tests look.
    "CarRacing-v3": {"max_episode_length": 15},
    "ALE/Pong-v5": {"max_episode_length": 50},
    "tests.gallery.worlds:cartpole_swingup": {"max_episode_length": 50},
}
"""By environment, what a run of it needs."""


def findings(env: str, **options: Any) -> list[str]:
    """Return a line a finding that is not well."""
    config = CollectConfig(**{"env": env.partition(",")[0], "timesteps": 10_000, "seed": 1, **options})
    return [
        f"{entry['status']} {entry['check']}: {entry['what']}"
        for entry in check(config, seconds=100.0).document()["checks"]
        if entry["status"] != "ok"
    ]


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_STEPS", 400)


@pytest.mark.parametrize("env", SOUND)
def test_what_is_sound_passes(env: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No line but those that are well, of random actions."""
    if env.startswith("CarRacing"):
        monkeypatch.setattr(module, "MOST_STEPS", 45)
    assert [] == findings(env, **SOUND[env])


def test_what_is_known_of_others_is_found() -> None:
    """A Box2D world that lives on fails, and EnvPool's rows cannot be repeated: one line each."""
    (line,) = findings("BipedalWalker-v3")
    assert line.startswith("fail seeds: episode")
    native: dict[str, Any] = {"vectorization": "native", "envs_per_worker": 4}
    (line,) = findings("tests.gallery.worlds:cartpole_pool", **native)
    assert line.startswith("warn seeds: episodes cannot be repeated")


def test_statistics_of_a_vecnormalize(tmp_path: Path) -> None:
    """A model that lacks them, has those of another environment, or is not even named, fails by that."""
    for name in ("Pendulum-v1", "MountainCarContinuous-v0"):
        env = VecNormalize(DummyVecEnv([lambda name=name: gymnasium.make(name)]))
        model = stable_baselines3.A2C("MlpPolicy", env, device="cpu", policy_kwargs={"net_arch": [8]}, seed=0)
        model.learn(10)
        model.save(tmp_path / f"{name}.zip")
        env.save(str(tmp_path / f"{name}.pkl"))
    policy = {"policy": str(tmp_path / "Pendulum-v1.zip")}
    (line,) = findings("Pendulum-v1", **policy)
    assert "VecNormalize" in line
    other = {"vecnormalize": str(tmp_path / "MountainCarContinuous-v0.pkl")}
    (line,) = findings("Pendulum-v1", **policy, policy_kwargs=other)
    assert "(2,)" in line
    assert "(3,)" in line
    with raises(PolicyLoadError, "policy-unknown", "VecNormalize"):
        findings("Pendulum-v1", policy=str(tmp_path / "Pendulum-v1.pkl"))
