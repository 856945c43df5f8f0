"""Replay buffers of Stable-Baselines3 that its algorithms filled and saved: the episodes are those of every step."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import stable_baselines3
from gymnasium.spaces import Box, Dict
from stable_baselines3.common.vec_env import DummyVecEnv

import rollout_cli
from tests.helpers.datasets import source_of


@dataclass
class Log:
    """What one episode was."""

    observations: list[Any]
    actions: list[Any] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    ends: tuple[bool, bool] = (False, True)


class Logging(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Logs every step, apart from the library under test."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.episodes: list[Log] = []

    def reset(self, **options: Any) -> Any:
        observation, info = self.env.reset(**options)
        self.episodes.append(Log([observation]))
        return observation, info

    def step(self, action: Any) -> Any:
        step = self.env.step(action)
        log = self.episodes[-1]
        log.observations.append(step[0])
        log.actions.append(action)
        log.rewards.append(float(step[1]))
        if step[2] or step[3]:
            log.ends = step[2], step[3] and not step[2]
        return step


class Named(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Gives the observation in two parts."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        low, high = env.observation_space.low, env.observation_space.high  # type: ignore[attr-defined]
        parts = {"first": slice(0, 1), "others": slice(1, None)}
        self.observation_space = Dict({name: Box(low[part], high[part]) for name, part in parts.items()})

    def observation(self, observation: Any) -> Any:
        return {"first": observation[:1], "others": observation[1:]}


CASES: dict[str, tuple[str, str, dict[str, Any], int]] = {
    "DQN": ("DQN", "CartPole-v1", {"buffer_size": 2_000}, 600),
    "SAC, actions of another scale": ("SAC", "Pendulum-v1", {"buffer_size": 2_000}, 900),
    "a full buffer": ("DQN", "CartPole-v1", {"buffer_size": 400}, 700),
    "less memory": (
        "DQN",
        "CartPole-v1",
        {
            "buffer_size": 2_000,
            "optimize_memory_usage": True,
            "replay_buffer_kwargs": {"handle_timeout_termination": False},
        },
        600,
    ),
    "named observations": ("SAC", "Pendulum-v1", {"buffer_size": 2_000}, 500),
}


@pytest.mark.parametrize("name", CASES)
def test_the_episodes_are_those_that_the_environments_ran(tmp_path: Path, name: str) -> None:
    algorithm, env_id, options, steps = CASES[name]
    is_named = name == "named observations"
    worlds = [Logging(gymnasium.make(env_id)) for _ in range(2)]
    rows: list[Any] = [Named(world) if is_named else world for world in worlds]
    model = getattr(stable_baselines3, algorithm)(
        "MultiInputPolicy" if is_named else "MlpPolicy",
        DummyVecEnv([lambda row=row: row for row in rows]),
        learning_starts=steps,  # Random actions suffice, and no time goes into training.
        seed=0,
        device="cpu",
        **options,
    )
    model.learn(steps)
    model.save_replay_buffer(tmp_path / "buffer.pkl")
    summary = rollout_cli.import_dataset(tmp_path / "buffer.pkl", tmp_path / "d", trust=True)
    assert [] == rollout_cli.verify(tmp_path / "d").faults
    assert ("sb3", list(summary.unknown)) == (
        summary.format,
        source_of(tmp_path / "d")["imported"]["unknown"],
    )
    expected = [log for world in worlds for log in kept(world, model.replay_buffer)]
    dataset = rollout_cli.load(tmp_path / "d")
    assert len(expected) == len(dataset)
    for log, episode in zip(expected, dataset, strict=True):
        seen = episode.observations
        last = episode.last_observation
        if is_named:
            seen = np.concatenate([seen["first"], seen["others"]], axis=1)
            last = np.concatenate([last["first"], last["others"]])
        np.testing.assert_array_equal(log.observations[:-1], seen)
        is_lost = name == "less memory" and log.ends[0]
        np.testing.assert_array_equal(np.full_like(last, np.nan) if is_lost else log.observations[-1], last)
        np.testing.assert_allclose(np.reshape(log.actions, episode.actions.shape), episode.actions, atol=1e-6)
        np.testing.assert_allclose(log.rewards, episode.rewards, rtol=1e-6)
        assert log.ends == (episode.terminated, episode.truncated)


def kept(world: Logging, buffer: Any) -> list[Log]:
    """Return the episodes of which the buffer still has steps, the first one without those that were replaced."""
    size = buffer.size()
    total = sum(len(log.actions) for log in world.episodes)
    replaced = total - size
    found = []
    for log in world.episodes:
        cut = min(replaced, len(log.actions))
        replaced -= cut
        if len(log.actions) > cut:
            found.append(Log(log.observations[cut:], log.actions[cut:], log.rewards[cut:], log.ends))
    return found


def test_other_pickles_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.pkl").write_bytes(b"\x80\x04N.")
    with pytest.raises(rollout_cli.RolloutError, match="expected a ReplayBuffer"):
        rollout_cli.import_dataset(tmp_path / "a.pkl", tmp_path / "d", trust=True)
    assert not (tmp_path / "d").exists()
