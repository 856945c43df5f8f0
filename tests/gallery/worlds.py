"""Factories for `--env tests.gallery.worlds:name`, for environments that no gymnasium id makes as it is wanted here."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


def minigrid() -> gymnasium.Env[Any, Any]:
    """Make MiniGrid, which registers its ids when it is imported; its missions are texts without a longest length."""
    import minigrid  # noqa: F401

    return gymnasium.make("MiniGrid-Empty-5x5-v0")


def pong(**kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Make Pong, whose frames are 210 x 160 x 3 bytes."""
    import ale_py

    gymnasium.register_envs(ale_py)
    return gymnasium.make("ALE/Pong-v5", **kwargs)


def pong_vector(num_envs: int) -> Any:
    """Make ALE's own vector environment, stepped in C++."""
    from ale_py import AtariVectorEnv

    return AtariVectorEnv("pong", num_envs=num_envs, max_num_frames_per_episode=240)


def cartpole_swingup() -> Any:
    """Make an environment of dm_control by way of shimmy."""
    from dm_control import suite
    from shimmy import DmControlCompatibilityV0

    return DmControlCompatibilityV0(suite.load("cartpole", "swingup"))


def cartpole_pool(num_envs: int, seed: int) -> Any:
    """Make EnvPool's CartPole, whose rows draw from the seed that it is built with: it ignores that of `reset`."""
    import envpool

    return envpool.make_gymnasium("CartPole-v1", num_envs=num_envs, seed=seed)


class ValidActions(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Says in the infos whether the action of a step was valid."""

    def step(self, action: Any) -> Any:
        is_valid = bool(self.env.get_wrapper_attr("action_masks")()[int(action)])
        *result, info = self.env.step(action)
        return *result, {**info, "is_valid": is_valid}


def invalid_actions() -> Any:
    """Make sb3_contrib's own environment with masks: three of eight actions are invalid in each step."""
    from sb3_contrib.common.envs import InvalidActionEnvDiscrete

    return ValidActions(InvalidActionEnvDiscrete(dim=8, ep_length=20, n_invalid_actions=3))


class _Line(gymnasium.Env[Any, Any]):
    """A walk on the numbers 0 to 9, which may not be left; the place where it starts decides how long it is."""

    observation_space = gymnasium.spaces.Box(0, 9, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place, self.steps = int(self.np_random.integers(10)), 0
        self.length = 20 - self.place
        return np.full(1, self.place, np.float32), {}

    def step(self, action: Any) -> Any:
        self.place, self.steps = self.place + (1 if action else -1), self.steps + 1
        return np.full(1, self.place, np.float32), 0.0, False, self.steps == self.length, {}


def masked_line() -> Any:
    """Make a walk whose valid actions ActionMasker knows."""
    from sb3_contrib.common.wrappers import ActionMasker

    return ValidActions(
        ActionMasker(_Line(), lambda env: np.array([env.unwrapped.place > 0, env.unwrapped.place < 9]))
    )


class AlwaysLeft:
    """Chooses action 0 for each observation of a batch."""

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        return np.zeros(len(observations), np.int64), {}
