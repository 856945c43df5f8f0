"""StackedFrames, a wrapper that stacks the last observations like Stable-Baselines3's VecFrameStack."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import FrameStackObservation, TransformObservation

from rollout_cli.episodes.spaces import Array
from rollout_cli.errors import EnvTypeError

_IMAGE_AXES = 3


class StackedFrames(TransformObservation[Array, Any, Array]):
    """Concatenates the last `n` observations, the newest last; at the start of an episode, zeros fill the stack.

    The observations are concatenated along the last axis, or along the first axis for images with channels
    first. gymnasium's FrameStackObservation would add an axis.

    Args:
        env: An environment whose observation space is a Box.
        n: The number of observations.

    Raises:
        EnvTypeError: The observation space is not a Box.
    """

    def __init__(self, env: gymnasium.Env[Array, Any], n: int) -> None:
        space = env.observation_space
        if not isinstance(space, spaces.Box):
            raise EnvTypeError(
                f"StackedFrames needs a Box as observation space, got {type(space).__name__}",
                code="wrapper-space",
                hint="flatten the observations first: {wrapper=FlattenObservation}",
            )
        is_image = len(space.shape) == _IMAGE_AXES and space.dtype == np.uint8
        axis = 0 if is_image and int(np.argmin(space.shape)) == 0 else -1
        low = np.concatenate([space.low] * n, axis)
        high = np.concatenate([space.high] * n, axis)
        copied = TransformObservation(env, np.array, space)  # The environment may reuse its array.
        super().__init__(
            FrameStackObservation(copied, n, padding_type="zero"),
            lambda frames: np.concatenate(frames, axis),
            spaces.Box(low, high, dtype=space.dtype.type),
        )
