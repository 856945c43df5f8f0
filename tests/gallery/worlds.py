"""Factories for `--env tests.gallery.worlds:name`, for environments that no gymnasium id makes as it is wanted here."""

from __future__ import annotations

from typing import Any

import gymnasium


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
