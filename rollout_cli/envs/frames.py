"""StackedFrames: the last observations at once, as VecFrameStack of Stable-Baselines3 gives them."""

from __future__ import annotations

from collections import deque
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rollout_cli.episodes.spaces import Array
from rollout_cli.errors import EnvTypeError

_IMAGE_AXES = 3


class StackedFrames(gymnasium.ObservationWrapper[Array, Any, Array]):
    """An environment whose observations are its last `n` ones, the newest at the end; before them are zeros.

    They stand one after another along the last axis, or along the first one of images whose channels come
    first. gymnasium's FrameStackObservation adds an axis instead.

    Args:
        env: An environment whose observations are a Box.
        n: How many observations are shown.

    Raises:
        EnvTypeError: If they are no Box.
    """

    def __init__(self, env: gymnasium.Env[Array, Any], n: int) -> None:
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, spaces.Box):
            raise EnvTypeError(
                f"StackedFrames stacks observations of a Box, not of a {type(space).__name__}",
                hint="flatten them before: {wrapper=FlattenObservation}",
            )
        is_image = len(space.shape) == _IMAGE_AXES and space.dtype == np.uint8
        self._axis = 0 if is_image and int(np.argmin(space.shape)) == 0 else -1
        self._empty = np.zeros(space.shape, space.dtype)
        self._frames = deque[Array](maxlen=n)
        low, high = (np.concatenate([bound] * n, self._axis) for bound in (space.low, space.high))
        self.observation_space = spaces.Box(low, high, dtype=space.dtype.type)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Begin an episode: its first observation stands behind zeros."""
        self._frames.extend([self._empty] * (self._frames.maxlen or 0))
        return super().reset(seed=seed, options=options)

    def observation(self, observation: Array) -> Array:
        """Return the last observations, this one at the end."""
        self._frames.append(np.array(observation))  # The environment may use its array again.
        return np.concatenate(self._frames, self._axis)
