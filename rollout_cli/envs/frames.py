"""StackedFrames: the last observations at once, as VecFrameStack of Stable-Baselines3 gives them."""

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
    """An environment whose observations are its last `n` ones, the newest at the end; before them are zeros.

    They stand one after another along the last axis, or along the first one of images whose channels come
    first. gymnasium's FrameStackObservation alone adds an axis instead.

    Args:
        env: An environment whose observations are a Box.
        n: How many observations are shown.

    Raises:
        EnvTypeError: If they are no Box.
    """

    def __init__(self, env: gymnasium.Env[Array, Any], n: int) -> None:
        space = env.observation_space
        if not isinstance(space, spaces.Box):
            raise EnvTypeError(
                f"StackedFrames stacks observations of a Box, not of a {type(space).__name__}",
                code="wrapper-space",
                hint="flatten them before: {wrapper=FlattenObservation}",
            )
        is_image = len(space.shape) == _IMAGE_AXES and space.dtype == np.uint8
        axis = 0 if is_image and int(np.argmin(space.shape)) == 0 else -1
        low = np.concatenate([space.low] * n, axis)
        high = np.concatenate([space.high] * n, axis)
        copied = TransformObservation(env, np.array, space)  # The environment may use its array again.
        super().__init__(
            FrameStackObservation(copied, n, padding_type="zero"),
            lambda frames: np.concatenate(frames, axis),
            spaces.Box(low, high, dtype=space.dtype.type),
        )
