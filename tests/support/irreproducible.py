"""Environments and a policy whose episodes differ when they are run again; each named by `module:attr`."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
from gymnasium.wrappers import NormalizeObservation, NormalizeReward, RecordEpisodeStatistics

from rollout_cli.episode_batch import EnvSpec
from tests.support.envs import BoxEnv, ChainEnv
from tests.support.policies import GaragePolicy


def normalised() -> Any:
    return NormalizeObservation(ChainEnv())


def frozen() -> Any:
    """Statistics that are no longer updated."""
    env = NormalizeObservation(ChainEnv())
    env.update_running_mean = False
    return env


def normalised_rewards() -> Any:
    return NormalizeReward(ChainEnv())


class SlowingEnv(ChainEnv):
    """Its steps take longer from episode to episode, so that no two episodes take equally long."""

    resets = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.resets += 1
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(1e-6 * self.resets)
        return super().step(action)


def timed() -> Any:
    return RecordEpisodeStatistics(SlowingEnv())


class CountingEnv(ChainEnv):
    """The noise of its observations is how many episodes it has begun."""

    resets = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.resets += 1
        return super().reset(seed=seed, options=options)

    def observe(self) -> Any:
        observation = super().observe()
        observation[2] = self.resets
        return observation


def secretive(token: str) -> ChainEnv:
    """An argument that looks like a secret."""
    assert token == "x"
    return ChainEnv()


class FailsAgainEnv(ChainEnv):
    """Raises ValueError when it is reset with one seed for the second time."""

    def __init__(self) -> None:
        super().__init__()
        self._seeds: set[int | None] = set()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed in self._seeds:
            raise ValueError("this seed was used before")
        self._seeds.add(seed)
        return super().reset(seed=seed, options=options)


class FailsLateEnv(ChainEnv):
    """Raises ValueError in its hundredth reset."""

    resets = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.resets += 1
        if self.resets == 100:
            raise ValueError("the hundredth reset is broken")
        return super().reset(seed=seed, options=options)


class CallsPolicy(GaragePolicy):
    """Acts by how often it was called, which `reset` does not clear."""

    def __init__(self, env_spec: EnvSpec) -> None:
        super().__init__(env_spec)
        self.calls = 0

    def place(self, observation: Any, row: int) -> float:
        self.calls += 1
        return (1e-4 * self.calls) % 1.0


def box() -> gymnasium.Env[Any, Any]:
    return BoxEnv()
